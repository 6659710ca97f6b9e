"""What drafts are picked from, and how it is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from _gguf_bytes import I32, TABLES, Typed, write_model

from pylucebox import InvalidArgumentError, LoadError
from pylucebox._drafting import decide_draft_vocab, memory_note, path_note
from pylucebox._sidecar import SidecarVerdict
from pylucebox._spec import SpecReason

NORMAL, CONTROL = 1, 3


def verdict(tmp_path: Path, types: list[int] | None) -> SidecarVerdict:
    fields = {} if types is None else {"tokenizer__ggml__token_type": Typed(I32, types)}
    n = 6 if types is None else len(types)
    tables = {name: [4, n] for name in TABLES}
    path = write_model(tmp_path / "m.gguf", tables, tokens=[f"t{i}" for i in range(n)], **fields)
    return SidecarVerdict(model_path=path, path=path, accepted=True, reason_code=SpecReason.ACTIVE, reason="it fits")


@pytest.fixture
def found(tmp_path: Path) -> SidecarVerdict:
    return verdict(tmp_path, [NORMAL] * 5 + [CONTROL])


def test_special_tokens_then_the_lowest_ids(found: SidecarVerdict) -> None:
    vocab = decide_draft_vocab(3, found)
    assert vocab.ids == (0, 1, 5)
    assert "3 of 6 tokens" in vocab.reason


@pytest.mark.parametrize("n", [6, 64_000])
def test_no_more_tokens_than_asked_for(found: SidecarVerdict, n: int) -> None:
    vocab = decide_draft_vocab(n, found)
    assert vocab.ids == ()
    assert f"no more than the {n}" in vocab.reason


def test_off(found: SidecarVerdict) -> None:
    assert decide_draft_vocab("off", found).ids == ()


@pytest.mark.parametrize("request_", [2, "off", 64_000])
def test_a_head_of_some_tokens_keeps_them(found: SidecarVerdict, request_: int | str) -> None:
    vocab = decide_draft_vocab(request_, replace(found, n_draft_vocab=4))
    assert vocab.ids == ()
    assert "4 tokens of the MTP file's head" in vocab.reason


def test_a_file_of_ids(found: SidecarVerdict, tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_text("4 2,2")
    assert decide_draft_vocab(path, found).ids == (2, 4)
    path.write_text("4 6")
    with pytest.raises(InvalidArgumentError, match="0 to 5"):
        decide_draft_vocab(path, found)
    with pytest.raises(LoadError):
        decide_draft_vocab(tmp_path / "none", found)


def test_too_few_for_the_special_tokens(found: SidecarVerdict) -> None:
    with pytest.raises(InvalidArgumentError, match="2 to 6"):
        decide_draft_vocab(1, found)


def test_a_model_that_does_not_tell_its_special_tokens(tmp_path: Path) -> None:
    vocab = decide_draft_vocab(3, verdict(tmp_path, None))
    assert vocab.ids == ()
    assert "token_type" in vocab.reason


def test_how_drafts_are_launched() -> None:
    assert "one launch" in path_note("")
    assert path_note("it rains").endswith("waits for it: it rains")


def test_what_the_block_adds_to_memory() -> None:
    mib = 2**20
    model = SimpleNamespace(
        mtp_source="sidecar", mtp_size_bytes=9 * mib, mtp_block_bytes=7 * mib, draft_rows_bytes=3 * mib
    )
    session = SimpleNamespace(mtp_context_bytes=4 * mib, mtp_compute_bytes=mib // 2)
    assert memory_note(model, session) == (
        "MTP adds 16.5 MiB of memory: block 7.0, its K/V 4.0, rows to draft from 3.0, scratch 0.5,"
        " tables of its file 2.0"
    )
    model.mtp_source, model.mtp_size_bytes, model.draft_rows_bytes = "in-file", 0, 0
    assert memory_note(model, session) == "MTP adds 11.5 MiB of memory: block 7.0, its K/V 4.0, scratch 0.5"
