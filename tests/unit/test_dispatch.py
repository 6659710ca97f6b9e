"""Every path a request can take, and its reason: a table of situations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pylucebox._backends import Backend, Device
from pylucebox._dispatch import (
    BackEnd,
    Dispatch,
    Kernels,
    Promise,
    back_end,
    check_caches,
    decide_spec,
    dispatch,
)
from pylucebox._errors import InvalidArgumentError
from pylucebox._sidecar import SidecarVerdict
from pylucebox._spec import SpecReason, spec_inactive

X86 = BackEnd(name="CPU", is_cpu=True, features=frozenset({"AVX2", "FMA", "REPACK", "LLAMAFILE"}))
AVX512 = replace(X86, features=X86.features | {"AVX512", "AVX512_VNNI"})
AMX = replace(AVX512, features=AVX512.features | {"AMX_INT8"})
OLD = replace(X86, features=frozenset({"SSE3"}))
ARM = BackEnd(name="CPU", is_cpu=True, features=frozenset({"NEON", "DOTPROD", "MATMUL_INT8"}))
KLEIDI = replace(ARM, features=ARM.features | {"KLEIDIAI"})
CUDA = BackEnd(name="CUDA", is_cpu=False)
CUDA_INVARIANT = BackEnd(name="CUDA", is_cpu=False, features=frozenset({"BATCH_INVARIANT", "USE_GRAPHS"}))
HIP = BackEnd(name="ROCm", is_cpu=False)
HIP_INVARIANT = BackEnd(name="ROCm", is_cpu=False, features=frozenset({"BATCH_INVARIANT"}))
VULKAN = BackEnd(name="Vulkan", is_cpu=False)

MODEL = Path("m.gguf")
IN_FILE = SidecarVerdict(
    model_path=MODEL, path=MODEL, kind="in-file", accepted=True, reason_code=SpecReason.ACTIVE, reason="it is inside"
)
SIDECAR = replace(IN_FILE, path=Path("mtp-m.gguf"), kind="sidecar", reason="it fits the model")
BORROWING = replace(SIDECAR, borrows_embedding=True, borrows_head=True)


def refused(code: SpecReason, reason: str) -> SidecarVerdict:
    return SidecarVerdict(model_path=MODEL, reason_code=code, reason=reason)


OFF = refused(SpecReason.OFF_REQUESTED, "drafting was switched off")
NONE = refused(SpecReason.NO_SIDECAR, "no mtp-*.gguf lies beside it")
OTHER_ARCH = refused(SpecReason.UNSUPPORTED_ARCH, "this build drafts for qwen4exp only, the model is llama")
OTHER_MODEL = refused(SpecReason.SIDECAR_MISMATCH, "embedding length is 2560 in the model and 2048 in this file")
BROKEN = refused(SpecReason.SIDECAR_UNREADABLE, "the download is incomplete")
LAYOUT = refused(SpecReason.SIDECAR_LAYOUT, "its projection is stored in two halves")


@dataclass(frozen=True)
class Situation:
    """What is there and what was asked for. Defaults: a sidecar that fits, on a CPU that was tested."""

    verdict: SidecarVerdict = SIDECAR
    verify_width: int = 0
    n_seq: int = 1
    back: BackEnd = X86
    fails: SpecReason | None = None  # what opening the block comes to

    def path(self) -> Dispatch:
        spec = decide_spec(self.verdict, self.verify_width)
        if self.fails is not None:
            spec = spec_inactive(self.fails, "it did not open")
        return dispatch(spec, self.back, verify_width=self.verify_width, n_seq=self.n_seq)


ACTIVE = SpecReason.ACTIVE
CASES: list[tuple[str, Situation, tuple[SpecReason, Promise, int, int], str]] = [
    # what is drafted with
    ("block in the file", Situation(IN_FILE), (ACTIVE, Promise.BITS, 8, 8), "up to 8 rows the bits it has alone"),
    ("sidecar", Situation(), (ACTIVE, Promise.BITS, 8, 8), "up to 8 rows the bits it has alone"),
    ("borrowing sidecar", Situation(BORROWING), (ACTIVE, Promise.BITS, 8, 8), "up to 8 rows"),
    ("switched off", Situation(OFF), (SpecReason.OFF_REQUESTED, Promise.NO_DRAFTS, 1, 1), "was switched off"),
    ("no sidecar", Situation(NONE), (SpecReason.NO_SIDECAR, Promise.NO_DRAFTS, 1, 1), "no mtp-*.gguf lies beside"),
    ("other model", Situation(OTHER_ARCH), (SpecReason.UNSUPPORTED_ARCH, Promise.NO_DRAFTS, 1, 1), "qwen4exp only"),
    ("wrong sidecar", Situation(OTHER_MODEL), (SpecReason.SIDECAR_MISMATCH, Promise.NO_DRAFTS, 1, 1), "2048"),
    ("broken sidecar", Situation(BROKEN), (SpecReason.SIDECAR_UNREADABLE, Promise.NO_DRAFTS, 1, 1), "incomplete"),
    ("foreign layout", Situation(LAYOUT), (SpecReason.SIDECAR_LAYOUT, Promise.NO_DRAFTS, 1, 1), "two halves"),
    (
        "block that the loader refuses",
        Situation(fails=SpecReason.LOAD_FAILED),
        (SpecReason.LOAD_FAILED, Promise.NO_DRAFTS, 1, 1),
        "it did not open",
    ),
    (
        "no memory for the block's context",
        Situation(fails=SpecReason.CONTEXT_FAILED),
        (SpecReason.CONTEXT_FAILED, Promise.NO_DRAFTS, 1, 1),
        "it did not open",
    ),
    # how wide
    ("width 1", Situation(verify_width=1), (SpecReason.OFF_REQUESTED, Promise.NO_DRAFTS, 1, 1), "verify_width=1"),
    ("width 2", Situation(verify_width=2), (ACTIVE, Promise.BITS, 2, 2), "up to 8 rows"),
    ("width 8", Situation(verify_width=8), (ACTIVE, Promise.BITS, 8, 8), "up to 8 rows"),
    # how many sequences
    ("two sequences", Situation(n_seq=2), (ACTIVE, Promise.BITS, 8, 4), "up to 8 rows"),
    ("three sequences", Situation(n_seq=3), (ACTIVE, Promise.BITS, 8, 2), "up to 8 rows"),
    ("three narrow sequences", Situation(verify_width=2, n_seq=3), (ACTIVE, Promise.BITS, 2, 2), "up to 8 rows"),
    ("five sequences", Situation(n_seq=5), (ACTIVE, Promise.BITS, 8, 1), "up to 8 rows"),
    ("eight sequences, width 4", Situation(verify_width=4, n_seq=8), (ACTIVE, Promise.BITS, 4, 1), "up to 8 rows"),
    # on what
    ("AVX-512", Situation(back=AVX512), (ACTIVE, Promise.BITS, 8, 8), "up to 8 rows"),
    ("AMX", Situation(back=AMX), (ACTIVE, Promise.UNVERIFIED, 8, 8), "CPU kernels for AMX"),
    ("no AVX2", Situation(back=OLD), (ACTIVE, Promise.UNVERIFIED, 8, 8), "only CPU kernels with AVX2"),
    ("ARM", Situation(back=ARM), (ACTIVE, Promise.UNVERIFIED, 8, 8), "int8 matrix instructions of ARM"),
    ("KleidiAI", Situation(back=KLEIDI), (ACTIVE, Promise.UNVERIFIED, 8, 8), "KleidiAI and the int8"),
    ("CUDA", Situation(back=CUDA), (ACTIVE, Promise.UNVERIFIED, 8, 8), "kernels of CUDA have not been shown"),
    ("CUDA, rows apart", Situation(back=CUDA_INVARIANT), (ACTIVE, Promise.BITS, 8, 8), "bits it has alone are on"),
    ("HIP, rows apart", Situation(back=HIP_INVARIANT), (ACTIVE, Promise.UNVERIFIED, 8, 8), "have not been run on it"),
    ("HIP", Situation(back=HIP, verify_width=4), (ACTIVE, Promise.UNVERIFIED, 4, 4), "kernels of ROCm"),
    ("Vulkan", Situation(back=VULKAN, n_seq=2), (ACTIVE, Promise.UNVERIFIED, 8, 4), "kernels of Vulkan"),
    ("GPU, no sidecar", Situation(NONE, back=CUDA), (SpecReason.NO_SIDECAR, Promise.NO_DRAFTS, 1, 1), "no drafts"),
]


def test_there_are_as_many_cases_as_promised() -> None:
    assert len({name for name, *_ in CASES}) == len(CASES) >= 21
    assert {expected[0] for _, _, expected, _ in CASES} == set(SpecReason) - {
        SpecReason.NO_MTP_IN_FILE,  # of a file that was looked at; the model's verdict is then that there is no sidecar
        SpecReason.NOT_CHOSEN,
        SpecReason.NOT_WORTH_IT,  # of a request
        SpecReason.UNSUPPORTED_MODE,  # of the server, as the next
        SpecReason.POLICY_FAILED,
    }


@pytest.mark.parametrize(
    ("situation", "expected", "reason"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_path_and_reason(situation: Situation, expected: tuple[SpecReason, Promise, int, int], reason: str) -> None:
    path = situation.path()
    assert (path.spec.reason_code, path.promise, path.max_rows, path.rows_together) == expected
    assert reason in path.reason
    assert path.spec.effective == (path.promise is not Promise.NO_DRAFTS)
    assert path.spec.requested == (path.spec.reason_code is not SpecReason.OFF_REQUESTED)
    assert path.as_dict()["reason"] == path.reason


@pytest.mark.parametrize(
    ("n_rows", "kernels"),
    [
        (1, Kernels.ONE_ROW),
        (2, Kernels.FEW_ROWS),
        (8, Kernels.FEW_ROWS),
        (9, Kernels.MANY_ROWS),
        (512, Kernels.MANY_ROWS),
    ],
)
@pytest.mark.parametrize("back", [X86, CUDA], ids=["CPU", "GPU"])
def test_kernels_go_by_the_rows_of_a_batch(n_rows: int, kernels: Kernels, back: BackEnd) -> None:
    path = Situation(back=back).path()
    found, why = path.step(n_rows)
    assert found is kernels
    assert why
    if found is Kernels.FEW_ROWS:
        assert why == path.reason


def test_what_is_not_seen_in_the_text_is_in_the_notes() -> None:
    assert Situation(verify_width=4).path().notes == ()
    (adaptive,) = Situation().path().notes
    assert "is 1 where drafts do not pay" in adaptive
    (two,) = Situation(verify_width=8, n_seq=2).path().notes
    assert "each has 4 rows or more" in two
    (many,) = Situation(verify_width=4, n_seq=6).path().notes
    assert "none of them drafts" in many
    company, _ = Situation(verify_width=8, n_seq=2, back=CUDA).path().notes
    assert "may get other bits than alone" in company
    assert Situation(NONE, n_seq=2, back=CUDA).path().notes == (company,)
    assert Situation(NONE, n_seq=2).path().notes == ()


def test_why_the_block_reads_prompts_in_passes_of_its_own_is_in_the_notes() -> None:
    spec = decide_spec(SIDECAR, 4)
    found = dispatch(spec, X86, verify_width=4, n_seq=1, own_pass_reason="it is on another device")
    assert found.notes == ("the MTP block reads prompts in passes of its own: it is on another device",)
    without = dispatch(decide_spec(NONE, 4), X86, verify_width=4, n_seq=1, own_pass_reason="there is no block")
    assert without.notes == ()


# ---- caches


@pytest.mark.parametrize("cache_type", ["q8_0", "q4_0", "iq4_nl"])
def test_a_quantised_v_cache_needs_flash_attention(cache_type: str) -> None:
    check_caches(cache_type, None)
    check_caches(cache_type, True)
    with pytest.raises(InvalidArgumentError, match="flash_attn"):
        check_caches(cache_type, False)


@pytest.mark.parametrize("cache_type", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("flash_attn", [None, True, False])
def test_a_float_v_cache_goes_with_either_attention(cache_type: str, flash_attn: bool | None) -> None:
    check_caches(cache_type, flash_attn)


# ---- which back end


def device(name: str, kind: str, backend: str) -> Device:
    return Device(name=name, description="", kind=kind, backend=backend, memory_free_bytes=0, memory_total_bytes=0)


BACKENDS = (
    Backend(name="CPU", features={"AVX2": "1"}),
    Backend(name="CUDA", features={}),
    Backend(name="Vulkan", features={}),
)
CPU_ONLY = (device("CPU", "cpu", "CPU"),)
WITH_GPU = (device("Vulkan0", "igpu", "Vulkan"), device("CUDA0", "gpu", "CUDA"), *CPU_ONLY)


@pytest.mark.parametrize(
    ("devices", "wanted", "n_gpu_layers", "name"),
    [
        (CPU_ONLY, "auto", -1, "CPU"),
        (CPU_ONLY, "cpu", -1, "CPU"),
        (CPU_ONLY, "CPU", -1, "CPU"),
        (WITH_GPU, "auto", -1, "CUDA"),
        (WITH_GPU, "auto", 3, "CUDA"),
        (WITH_GPU, "auto", 0, "CPU"),
        (WITH_GPU, "cpu", -1, "CPU"),
        (WITH_GPU, "Vulkan0", -1, "Vulkan"),
        (WITH_GPU[:1], "auto", -1, "Vulkan"),
    ],
)
def test_back_end_is_that_of_the_device_the_library_takes(
    devices: tuple[Device, ...], wanted: str, n_gpu_layers: int, name: str
) -> None:
    found = back_end(BACKENDS, devices, wanted, n_gpu_layers)
    assert (found.name, found.is_cpu) == (name, name == "CPU")
    assert found.features == (frozenset({"AVX2"}) if name == "CPU" else frozenset())
