"""Which path requests take, and why: drafts or none, how many rows, which kernels, and what that promises.

One place decides, from facts alone. The engine does what it says, and `lucebox doctor` prints the same sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from pylucebox._backends import Backend, Device
from pylucebox._errors import InvalidArgumentError
from pylucebox._sidecar import SidecarVerdict
from pylucebox._spec import SpecReason, SpecState, spec_active, spec_inactive
from pylucebox.width import MAX_WIDTH

__all__ = ["BackEnd", "Dispatch", "Kernels", "Promise", "back_end", "check_caches", "decide_spec", "dispatch"]


class Kernels(str, Enum):
    """How the rows of one call are computed; the values appear in JSON."""

    ONE_ROW = "one-row"
    """A decode step of a single token."""

    FEW_ROWS = "few-rows"
    """Several rows of one step: drafts, or several sequences."""

    MANY_ROWS = "many-rows"
    """Prefill. Its kernels are the fastest ones, and the same with drafts and without."""


class Promise(str, Enum):
    """What is promised of a verify step; the values appear in JSON."""

    NO_DRAFTS = "no-drafts"
    """Nothing is verified, so there is nothing to promise."""

    BITS = "bits"
    """Every row has the bits it has alone: the tokens are those of decoding without drafts, always."""

    UNVERIFIED = "unverified"
    """The rule that takes drafts is the same, but the kernels have not been shown to give a row in company the bits it
    has alone. Where two tokens are about equally likely the text may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackEnd:
    """What computes the layers.

    Attributes
    ----------
    name
        ggml's name, for example ``CPU`` or ``CUDA``.
    is_cpu
        Whether it is the CPU back end.
    features
        Names of the instruction sets and options it was built with and found.
    """

    name: str
    is_cpu: bool
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """The path that requests take.

    Attributes
    ----------
    spec
        Whether drafts are made, and if not, why.
    promise, reason
        What that promises of the text, and why.
    max_rows
        Rows of the widest step of a sequence that runs alone.
    rows_together
        Rows that each of `n_seq` sequences is sure to get when all run together: a step has eight rows over all of
        them, since only up to that many keep their bits.
    notes
        What else is to be known, in sentences.
    """

    spec: SpecState
    promise: Promise
    reason: str
    max_rows: int
    rows_together: int
    notes: tuple[str, ...] = ()
    _why_few: str = field(default="", repr=False)

    def step(self, n_rows: int) -> tuple[Kernels, str]:
        """Return the kernels that a call with so many rows takes, and why.

        Parameters
        ----------
        n_rows
            Rows of the batch over all sequences, at least 1.
        """
        if n_rows == 1:
            return Kernels.ONE_ROW, "one row is what all others are compared with"
        if n_rows <= MAX_WIDTH:
            return Kernels.FEW_ROWS, self._why_few
        return (
            Kernels.MANY_ROWS,
            f"more than {MAX_WIDTH} rows are a prompt: fast kernels, the same with and without drafts",
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "spec": self.spec.as_dict(),
            "promise": self.promise.value,
            "reason": self.reason,
            "max_rows": self.max_rows,
            "rows_together": self.rows_together,
            "notes": list(self.notes),
        }


_GPUS: Final = ("gpu", "igpu")


def back_end(backends: Iterable[Backend], devices: Iterable[Device], device: str, n_gpu_layers: int) -> BackEnd:
    """Return what computes the layers, as the native library chooses it.

    Parameters
    ----------
    backends, devices
        Those of this machine, as `SystemInfo` has them.
    device
        As `Engine` takes it: ``"auto"``, ``"cpu"`` or a name.
    n_gpu_layers
        As `Engine` takes it.
    """
    features = {entry.name: frozenset(entry.features) for entry in backends}
    wanted = [entry for entry in devices if entry.name == device or (device == "auto" and entry.kind in _GPUS)]
    found = sorted(wanted, key=lambda entry: entry.kind == "igpu")  # an integrated one only when there is no other
    if n_gpu_layers == 0 or not found or found[0].kind == "cpu":
        return BackEnd(name="CPU", is_cpu=True, features=features.get("CPU", frozenset()))
    name = found[0].backend
    return BackEnd(name=name, is_cpu=False, features=features.get(name, frozenset()))


def decide_spec(verdict: SidecarVerdict, verify_width: int) -> SpecState:
    """Say whether drafts are made, by what was found and asked for; loading may still fail.

    Parameters
    ----------
    verdict
        The MTP block that belongs to the model.
    verify_width
        As `Engine` takes it: 1 asks for no drafts.
    """
    if verify_width == 1:
        return spec_inactive(SpecReason.OFF_REQUESTED, "verify_width=1 asks for no drafts")
    if not verdict.accepted:
        return spec_inactive(verdict.reason_code, verdict.reason)
    return spec_active(f"MTP block from {verdict.path}")


_QUANTISED_CACHES: Final = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


def check_caches(cache_type_v: str, flash_attn: bool | None) -> None:
    """Refuse caches that the attention cannot read.

    Raises
    ------
    InvalidArgumentError
        The V cache is quantised and flash attention is off, which stores V the other way round, so that a block of
        values would span several tokens.
    """
    if flash_attn is False and cache_type_v in _QUANTISED_CACHES:
        allowed = "f32, f16 or bf16 with flash_attn=False; leave flash_attn on for a quantised V cache"
        raise InvalidArgumentError(argument="cache_type_v", value=cache_type_v, allowed=allowed)


def dispatch(
    spec: SpecState,
    back: BackEnd,
    *,
    verify_width: int,
    n_seq: int,
    own_pass_reason: str = "",
    draft_notes: tuple[str, ...] = (),
) -> Dispatch:
    """Say which path requests take.

    Parameters
    ----------
    spec
        From `decide_spec`, or what became of it.
    back
        What computes the layers.
    verify_width
        Width the engine is opened for: 0 adaptive, 1 none, 2 to 8.
    n_seq
        Sequences that may run together, 1 to 8.
    own_pass_reason
        Why the MTP block reads prompts in passes of its own instead of the trunk's, as `NativeSession` has it.
    draft_notes
        What is to be known of how drafts are made.
    """
    same_bits, why = _few_rows(back)
    if not spec.effective:
        return Dispatch(
            spec=spec,
            promise=Promise.NO_DRAFTS,
            reason=f"no drafts, so one row a step for each sequence: {spec.reason}",
            max_rows=1,
            rows_together=1,
            notes=_company(n_seq, same_bits=same_bits),
            _why_few=why,
        )
    max_rows = verify_width or MAX_WIDTH
    together = min(max_rows, max(1, MAX_WIDTH // n_seq))
    notes = list(_company(n_seq, same_bits=same_bits))
    if together < max_rows:
        rows = "row" if together == 1 else "rows"
        drafts = "none of them drafts" if together == 1 else f"each has {together} {rows} or more"
        notes.append(f"while all {n_seq} sequences run together {drafts}: a step has {MAX_WIDTH} rows over all of them")
    if verify_width == 0:
        notes.append("the width is chosen cycle by cycle, and is 1 where drafts do not pay")
    if own_pass_reason:
        notes.append(f"the MTP block reads prompts in passes of its own: {own_pass_reason}")
    notes += draft_notes
    return Dispatch(
        spec=spec,
        promise=Promise.BITS if same_bits else Promise.UNVERIFIED,
        reason=why,
        max_rows=max_rows,
        rows_together=together,
        notes=tuple(notes),
        _why_few=why,
    )


def _company(n_seq: int, *, same_bits: bool) -> tuple[str, ...]:
    """Say what several sequences do to each other even without drafts."""
    if n_seq == 1 or same_bits:
        return ()
    return ("a sequence that runs with others may get other bits than alone on this back end",)


# Features of the CPU back end whose kernels for several rows are not the ones that the tests have run. `AMX_INT8` has a
# branch of its own for one row and is left out of our builds (cmake/no-amx.cmake), but not of everybody's;
# `MATMUL_INT8` computes two rows at a time, and KleidiAI and the vector extensions bring kernels of their own
# (ggml/src/ggml-cpu: amx/mmq.cpp, arch/arm/quants.c, kleidiai/).
_OWN_KERNELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "AMX_INT8": "AMX",
        "KLEIDIAI": "KleidiAI",
        "SME": "SME",
        "SVE": "SVE",
        "MATMUL_INT8": "the int8 matrix instructions of ARM",
        "RISCV_V": "the vector extension of RISC-V",
        "VSX": "VSX",
        "VXE": "VXE",
        "WASM_SIMD": "WebAssembly",
    }
)
# What the tests of exactness have been run with.
_TESTED: Final = "AVX2"

# What a GPU's back end calls its kernels that do not mix rows (GGML_CUDA_BATCH_INVARIANT), and the back ends whose ones
# `lucebox exactness` has found the same in every bit. HIP's are the same sources, but have not run yet.
_INVARIANT: Final = "BATCH_INVARIANT"
_INVARIANT_TESTED: Final = frozenset({"CUDA"})


def _few_rows(back: BackEnd) -> tuple[bool, str]:
    """Tell whether two to eight rows keep their bits on a back end, and why."""
    if not back.is_cpu and back.name in _INVARIANT_TESTED and _INVARIANT in back.features:
        return True, f"kernels of {back.name} that give each of up to {MAX_WIDTH} rows the bits it has alone are on"
    if not back.is_cpu and _INVARIANT in back.features:
        why = "are on, but the tests of exactness have not been run on it yet"
        return False, f"the kernels of {back.name} that give a row in company the bits it has alone {why}"
    if not back.is_cpu:
        return False, f"the kernels of {back.name} have not been shown to give a row in company the bits it has alone"
    own = [words for feature, words in _OWN_KERNELS.items() if feature in back.features]
    if own:
        return False, f"the CPU kernels for {' and '.join(own)} have not been shown to give a row the bits it has alone"
    if _TESTED not in back.features:
        return False, f"only CPU kernels with {_TESTED} have been tested, and this processor or build has none"
    return True, f"the CPU kernels give each of up to {MAX_WIDTH} rows the bits it has alone"
