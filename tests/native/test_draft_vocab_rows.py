"""Drafts from rows of the LM head: those of a file that has only these rows, and what it takes of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from _layouts import Stored, layout_e, layout_i, load, metadata_of, save
from _models import WriteModel

from pylucebox import Engine, InvalidArgumentError
from pylucebox._draft_vocab import choose_draft_ids
from pylucebox._gguf import read_model
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox.testing import K_QUANT_SPEC, TinyModelFiles, TinySpec

OPTIONS = SessionOptions(n_ctx=256, n_ubatch=64, max_width=8)
PROMPT = list(b"One, two, three and four. The quick brown fox")
PLACES = pytest.mark.parametrize("mtp", ["in-file", "sidecar", "shared"])
# A multiple of what the CPU's own layouts take at a time, and none.
N_ROWS = pytest.mark.parametrize("n_rows", [96, 101])
GREEDY = SamplingParams(temperature=0, seed=0)
Chain = tuple[list[int], list[float]]


def chains(
    files: TinyModelFiles, ids: Sequence[int] = (), *, chain: bool = True, mtp: Path | None = None
) -> list[Chain]:
    """Return seven drafts after each of eight prompts."""
    sidecar = mtp or files.sidecar
    options = ModelOptions(path=files.model, mtp_path=sidecar, mtp_in_file=sidecar is None, draft_ids=tuple(ids))
    model = Model(options)
    session = NativeSession(model, replace(OPTIONS, draft_chain=chain))
    assert session.info.draft_chain == chain
    found = []
    for n_prompt in range(len(PROMPT) - 8, len(PROMPT)):
        session.clear(0)
        session.prefill(0, PROMPT[:n_prompt], session.open_sampler(GREEDY, None), use_mtp=True)
        found.append(session.draft(0, 7))
    session.close()
    model.close()
    return found


def with_rows(files: TinyModelFiles, path: Path, ids: Sequence[int]) -> Path:
    """Write an MTP file that has these rows of the head only."""
    assert files.sidecar is not None
    header, tensors = load(files.sidecar)
    (block,) = {int(name.split(".")[1]) for name in tensors if name.startswith("blk.")}
    return save(path, metadata_of(header), layout_e(tensors, block, {}, ids))


@N_ROWS
@PLACES
@pytest.mark.parametrize("weight_type", ["q4_0", "f16"])
def test_rows_draft_as_a_file_that_has_only_them(
    write_model: WriteModel, tmp_path: Path, mtp: str, weight_type: str, n_rows: int
) -> None:
    ids = [*range(97, 97 + n_rows - 40), *range(200, 240)]
    spec = TinySpec(weight_type=weight_type, mtp="sidecar")
    whole = write_model(spec)
    expected = chains(whole, mtp=with_rows(whole, tmp_path / "mtp-rows.gguf", ids), chain=False)
    files = write_model(replace(spec, mtp=mtp))
    for chain in (True, False):
        found = chains(files, ids, chain=chain)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
        for (_, probs), (_, wanted) in zip(found, expected, strict=True):
            assert probs == pytest.approx(wanted, rel=1e-4)


def test_rows_of_blocks_of_256(write_model: WriteModel, tmp_path: Path) -> None:
    whole = write_model(replace(K_QUANT_SPEC, weight_type="q4_K", mtp="sidecar"))
    ids = list(range(60, 188))
    expected = chains(whole, mtp=with_rows(whole, tmp_path / "mtp-rows.gguf", ids), chain=False)
    assert [tokens for tokens, _ in chains(whole, ids)] == [tokens for tokens, _ in expected]


def test_a_list_of_all_tokens_changes_nothing(write_model: WriteModel) -> None:
    files = write_model(TinySpec(mtp="shared", weight_type="q8_0"))
    full = chains(files, chain=False)
    assert chains(files, range(288), chain=False) == full


def test_special_tokens_are_drafted(write_model: WriteModel) -> None:
    files = write_model(TinySpec(mtp="shared"))
    special = choose_draft_ids(read_model(files.model), 8).tolist()[1:]  # the lowest ordinary one is left out
    assert min(special) >= 256
    for chain in (True, False):
        drafted = {token for tokens, _ in chains(files, special, chain=chain) for token in tokens}
        assert drafted
        assert drafted <= set(special)


def test_a_head_of_the_file_under_another_name_is_the_one_that_counts(write_model: WriteModel, tmp_path: Path) -> None:
    files = write_model(TinySpec(mtp="sidecar", weight_type="q8_0"))
    assert files.sidecar is not None
    header, tensors = load(files.sidecar)
    (block,) = {int(name.split(".")[1]) for name in tensors if name.startswith("blk.")}
    path = save(tmp_path / "mtp-private.gguf", metadata_of(header), layout_i(tensors, block, {}))
    ids = list(range(97, 193))
    assert chains(files, ids, mtp=path) == chains(files, ids)


def row_bytes(tensor: Stored) -> int:
    return len(tensor.data) // tensor.shape[1]


def test_memory_of_the_rows(write_model: WriteModel) -> None:
    files = write_model(TinySpec(mtp="sidecar", weight_type="q8_0"))
    assert files.sidecar is not None
    tensors = load(files.sidecar)[1]
    all_options = ModelOptions(path=files.model, mtp_path=files.sidecar)
    whole, rows = Model(all_options), Model(replace(all_options, draft_ids=tuple(range(64))))
    head = tensors["output.weight"]
    assert (whole.info.n_draft_vocab, whole.info.draft_rows_bytes) == (288, 0)
    assert rows.info.n_draft_vocab == 64
    # rows and ids, each padded to what the back end aligns to
    assert 0 <= rows.info.draft_rows_bytes - 64 * (row_bytes(head) + 4) < 256
    # the head that the rows were taken from is not loaded
    assert whole.info.mtp_size_bytes - rows.info.mtp_size_bytes == len(head.data)
    block = sum(len(tensor.data) for name, tensor in tensors.items() if name.startswith("blk."))
    assert whole.info.mtp_block_bytes == rows.info.mtp_block_bytes == block
    whole.close()
    rows.close()


def test_scratch_memory_does_not_grow_with_logits_of_a_prompt(write_model: WriteModel) -> None:
    """Only few rows of a call give logits, so a longer chunk must not reserve them for all its rows."""
    model = Model(ModelOptions(path=write_model(TinySpec(vocab_multiple=32768)).model, mtp_in_file=True))
    sizes = []
    for n_ubatch in (32, 256):
        session = NativeSession(model, replace(OPTIONS, n_ubatch=n_ubatch))
        sizes.append((session.info.compute_bytes, session.info.mtp_compute_bytes))
        session.close()
    model.close()
    of_logits = 224 * 32768 * 4
    for small, large in zip(*sizes, strict=True):
        assert large - small < of_logits


@pytest.mark.parametrize("ids", [[5, 4], [5, 5], [-1, 3], [3, 288]])
def test_ids_that_cannot_be(write_model: WriteModel, ids: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must ascend and be in 0\.\.287"):
        Model(ModelOptions(path=write_model(TinySpec()).model, mtp_in_file=True, draft_ids=tuple(ids)))


def test_a_head_that_covers_a_part_takes_no_list(write_model: WriteModel, tmp_path: Path) -> None:
    files = write_model(TinySpec(mtp="sidecar"))
    path = with_rows(files, tmp_path / "mtp-rows.gguf", range(0, 288, 2))
    with pytest.raises(InvalidArgumentError, match="covers only a part"):
        Model(ModelOptions(path=files.model, mtp_path=path, draft_ids=(1, 2)))
    with Engine(files.model, mtp=path, n_threads=1, n_ctx=256, draft_vocab=64) as engine:
        assert any("144 tokens of the MTP file's head" in note for note in engine.dispatch.notes)
        assert engine.info.n_draft_vocab == 144


def test_text_does_not_depend_on_the_draft_vocabulary(write_model: WriteModel, tmp_path: Path) -> None:
    path = write_model(TinySpec(mtp="shared", weight_type="q8_0")).model
    listed = tmp_path / "ids.txt"
    listed.write_text(" ".join(map(str, range(97, 123))))
    texts, accepted = [], []
    expected = {"off": "all tokens", 64_000: "no more than the 64000", 200: "200 of 288", listed: "26 of 288"}
    for vocab, words in expected.items():
        with Engine(path, n_threads=1, n_ctx=256, draft_vocab=vocab) as engine:
            reply = engine.generate("abcabcabd", max_tokens=48, verify_width=5)
            texts.append(reply.token_ids)
            accepted.append(reply.stats.num_accepted_tokens)
            (note,) = [note for note in engine.dispatch.notes if note.startswith("drafts are picked from")]
            assert words in note
            assert any(note.startswith("MTP adds ") for note in engine.dispatch.notes)
    assert texts == [texts[0]] * 4
    assert accepted[0] == accepted[1]
