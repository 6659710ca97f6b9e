"""What the trunk's graph writes for the MTP block has the bytes that the block itself writes, in passes of its own.

States are compared whole: the block's K, V, raw and pooled index keys, the pair that waits, and all of the trunk.
Before that each session drafts once, which computes what waits but the newest pair.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from _layouts import load, metadata_of, save, with_ratios
from _parity import shipped_pair

from pylucebox._errors import CancelledError
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask
from pylucebox.testing import K_QUANT_SPEC, TinySpec, write_tiny_model

OPTIONS = SessionOptions(n_ctx=512, n_ubatch=128, max_width=8)
GREEDY = SamplingParams(temperature=0, seed=0, ignore_eos=True)
TEXT = "One, two, three and four. The quick brown fox jumps over the lazy dog; then it sleeps. "
CHECKSUM = struct.calcsize("<IIiiIIIIQQ")  # struct state_header of state.cpp: behind these fields, 8 bytes

SPECS = {
    "in the file": TinySpec(),
    "own tables": TinySpec(mtp="sidecar", weight_type="bf16"),
    "borrowed tables": TinySpec(mtp="shared", weight_type="q8_0"),
    "K quants": replace(K_QUANT_SPEC, mtp="sidecar", weight_type="q4_K"),
    "random": TinySpec(kind="random", hc_count=2),
    "dense": TinySpec(mtp="sidecar"),
}
NAMES = ["built-in", *SPECS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Model]]:
    """Return models by name, each opened once."""
    opened: dict[str, Model] = {}

    def get(name: str) -> Model:
        if name not in opened:
            if name == "built-in":
                path, mtp = shipped_pair()
            else:
                path, mtp = _write(tmp_path_factory.mktemp("writer"), name)
            opened[name] = Model(ModelOptions(path=path, mtp_path=mtp, mtp_in_file=mtp is None))
        return opened[name]

    yield get
    for each in opened.values():
        each.close()


def _write(folder: Path, name: str) -> tuple[Path, Path | None]:
    files = write_tiny_model(folder / "m.gguf", SPECS[name])
    if name != "dense":
        return files.model, files.sidecar
    assert files.sidecar is not None
    header, tensors = load(files.sidecar)
    return files.model, save(folder / "mtp-dense.gguf", with_ratios(metadata_of(header), [0, 0, 0, 4, 0]), tensors)


def ids_of(model: Model, n_tokens: int, skip: int = 0) -> list[int]:
    ids = model.tokenize(TEXT * (1 + n_tokens // 20), add_special=False, parse_special=False)
    return ids[skip : skip + n_tokens]


def both(model: Model, options: SessionOptions = OPTIONS) -> tuple[NativeSession, NativeSession]:
    """Open a session whose trunk writes for the block, and one whose block has passes of its own."""
    writing, own_pass = (NativeSession(model, replace(options, mtp_kv_in_trunk=on)) for on in (True, False))
    assert writing.info.mtp_kv_in_trunk
    assert not writing.own_pass_reason
    assert not own_pass.info.mtp_kv_in_trunk
    assert own_pass.own_pass_reason == "it was not asked for"
    return writing, own_pass


def prefill(session: NativeSession, ids: list[int], seq: int = 0, *, use_mtp: bool = True) -> None:
    session.prefill(seq, ids, session.open_sampler(GREEDY, None), use_mtp=use_mtp)


def whole_state(session: NativeSession, seq: int = 0) -> bytes:
    """Return a saved state without its checksum, with all pairs but the newest computed."""
    session.draft(seq, 1)
    state = session.state_save(seq)
    return state[:CHECKSUM] + state[CHECKSUM + 8 :]


# ---- prompts --------------------------------------------------------------------------------------------------------

# The last token always runs alone. Chunks before it: none; 1; 17; 512; 512, 512 and a rest; 2048 and 1.
SHORT = [(32, 1), (32, 2), (128, 18), (512, 513)]
LONG = [(512, 1100), (2048, 2050)]
PROMPTS = [(name, *prompt) for name in NAMES for prompt in (SHORT if name in SPECS else SHORT + LONG)]
PROMPTS += [("in the file", *prompt) for prompt in LONG]


@pytest.mark.parametrize(("name", "n_ubatch", "n_prompt"), PROMPTS)
def test_bytes_of_a_prompt(model: Callable[[str], Model], name: str, n_ubatch: int, n_prompt: int) -> None:
    opened = model(name)
    ids = ids_of(opened, n_prompt)
    states = []
    for session in both(opened, replace(OPTIONS, n_ctx=max(n_prompt + 16, 64), n_ubatch=n_ubatch)):
        prefill(session, ids)
        states.append(whole_state(session))
        session.close()
    assert states[0] == states[1]


CACHES = [
    pytest.param({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, id="q8_0"),
    pytest.param({"cache_type_k": "f32", "cache_type_v": "f32"}, id="f32"),
    pytest.param({"flash_attn": False}, id="no flash attention"),
]


@pytest.mark.parametrize("cache", CACHES)
def test_bytes_in_other_caches(model: Callable[[str], Model], cache: dict[str, object]) -> None:
    opened = model("in the file")
    states = []
    for session in both(opened, replace(OPTIONS, **cache)):
        prefill(session, ids_of(opened, 300))
        session.cycle([Ask(0, 5, 100)])
        states.append(whole_state(session))
        session.close()
    assert states[0] == states[1]


# ---- cycles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_bytes_after_cycles(model: Callable[[str], Model], name: str) -> None:
    sessions = both(model(name))
    accepted = set()
    for session in sessions:
        prefill(session, ids_of(model(name), 150))
    for cycle in range(40):
        # Never more than eight pairs wait in the session with passes of its own: more take kernels of other bits.
        width = (8, 4, 1, 2, 1, 1, 8, 3)[cycle % 8]
        results = [session.cycle([Ask(0, width, 500)])[0][0] for session in sessions]
        assert results[0] == results[1]
        accepted.add((width, results[0].n_accepted))
        if cycle % 5 == 4:  # not always: pairs of cycles without drafts wait in the session with passes of its own
            assert whole_state(sessions[0]) == whole_state(sessions[1])
    assert any(width - 1 > n for width, n in accepted), "no draft was taken back"
    assert any(n > 0 for _, n in accepted) or name == "random", "no draft was accepted"
    for session in sessions:
        session.close()


def test_drafts_that_were_proposed_and_not_verified(model: Callable[[str], Model]) -> None:
    sessions = both(model("in the file"))
    for session in sessions:
        prefill(session, ids_of(model("in the file"), 40))
    for n_more, width in ((7, 3), (2, 1), (4, 8), (5, 2), (0, 1)):
        found = []
        for session in sessions:
            proposals, _ = session.propose([(0, n_more)])
            found.append((proposals, session.cycle([Ask(0, width, 500)])[0][0], whole_state(session)))
        assert found[0] == found[1]
    for session in sessions:
        session.close()


def test_a_forced_token(model: Callable[[str], Model]) -> None:
    sessions = both(model("in the file"))
    ids = ids_of(model("in the file"), 60)
    for session in sessions:
        prefill(session, ids[:40])
    for n, token in enumerate(ids[40:]):
        for session in sessions:
            session.force(0, token)
            session.cycle([Ask(0, 1, 500)])
        if n % 4 == 3:  # more than eight pairs at once would take other kernels
            assert whole_state(sessions[0]) == whole_state(sessions[1])
    for session in sessions:
        session.close()


# ---- several sequences, and what happens to them --------------------------------------------------------------------


def test_sequences_together(model: Callable[[str], Model]) -> None:
    opened = model("in the file")
    sessions = both(opened, replace(OPTIONS, n_seq=4, even_drafts=False))
    n_prompts = (90, 1, 33, 150)
    found: list[list[object]] = [[], []]
    for session, results in zip(sessions, found, strict=True):
        for seq, n_prompt in enumerate(n_prompts):
            prefill(session, ids_of(opened, n_prompt, skip=seq), seq, use_mtp=seq != 2)
        for widths in [(1, 1, 1, 1), (3, 2, 1, 2), (4, 4, 0, 0), (0, 0, 1, 7), (1, 5, 1, 1)] * 3:
            asks = [Ask(seq, width, 500) for seq, width in enumerate(widths) if width]
            results.append(session.cycle(asks)[0])
        for seq in (0, 1, 3):
            results.append(session.draft(seq, 4))
        results.append(session.state_save(2))  # never drafted, so nothing waits
    assert found[0] == found[1]
    for session in sessions:
        session.close()


def test_reset_and_reuse(model: Callable[[str], Model]) -> None:
    opened = model("built-in")
    sessions = both(opened)
    for session in sessions:
        prefill(session, ids_of(opened, 200))
        session.cycle([Ask(0, 8, 500)])
        session.clear(0)
        prefill(session, ids_of(opened, 30, skip=7), use_mtp=False)
        session.cycle([Ask(0, 1, 500)])
        session.clear(0)
        prefill(session, ids_of(opened, 77, skip=3))
        session.cycle([Ask(0, 4, 500)])
    assert whole_state(sessions[0]) == whole_state(sessions[1])
    for session in sessions:
        session.close()


@pytest.mark.parametrize("saving", [0, 1], ids=["saved with", "saved without"])
@pytest.mark.parametrize("loading", [0, 1], ids=["loaded with", "loaded without"])
def test_a_saved_state_goes_on_in_another_sequence_and_session(
    model: Callable[[str], Model], saving: int, loading: int
) -> None:
    sessions = both(model("in the file"), replace(OPTIONS, n_seq=2, even_drafts=False))
    from_session, to_session = sessions[saving], sessions[loading]
    prefill(from_session, ids_of(model("in the file"), 100))
    for width in (8, 1, 1, 4, 1, 1, 1):
        from_session.cycle([Ask(0, width, 500)])
    state = from_session.state_save(0)  # without, some pairs wait
    to_session.state_load(1, state, to_session.open_sampler(GREEDY, None))
    for width in (4, 8, 1, 3):
        went_on = from_session.cycle([Ask(0, width, 500)])[0][0]
        copied = to_session.cycle([Ask(1, width, 500)])[0][0]
        assert copied[1:] == went_on[1:]
    assert to_session.draft(1, 7) == from_session.draft(0, 7)
    for session in sessions:
        session.close()


def test_after_a_cancelled_prompt(model: Callable[[str], Model]) -> None:
    opened = model("built-in")
    writing, own_pass = both(opened)
    ids = ids_of(opened, 400)
    with pytest.raises(CancelledError):
        writing.prefill(0, ids, writing.open_sampler(GREEDY, None), use_mtp=True, progress=lambda done: done < 0.5)
    for session in (writing, own_pass):
        prefill(session, ids)
    assert whole_state(writing) == whole_state(own_pass)
    writing.close()
    own_pass.close()


def test_the_last_cell_of_the_context(model: Callable[[str], Model]) -> None:
    opened = model("in the file")
    sessions = both(opened, replace(OPTIONS, n_ctx=64, n_ubatch=32))
    results = []
    for session in sessions:
        prefill(session, ids_of(opened, 57))
        results.append([])
        while session.n_past(0) < 64:
            results[-1].append(session.cycle([Ask(0, 8, 500)])[0][0])
        session.close()
    assert results[0] == results[1]


# ---- what it saves --------------------------------------------------------------------------------------------------


def test_rows_that_the_block_computes_itself(model: Callable[[str], Model]) -> None:
    found = []
    for session in both(model("built-in")):
        prefill(session, ids_of(model("built-in"), 300))
        rows = []
        for width in (8, 3, 1, 1, 3):
            (result,), times = session.cycle([Ask(0, width, 500)])
            rows.append(times.n_draft_rows)
        assert result.n_drafted == 2
        found.append(rows)
        session.close()
    writing, own_pass = found
    # one row a draft; what cycles without drafts left to the block, each but the first of them, comes on top
    assert writing == [7, 2, 0, 0, 3]
    assert own_pass[1] > 2
