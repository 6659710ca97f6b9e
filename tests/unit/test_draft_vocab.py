"""Which tokens a draft head covers."""

from __future__ import annotations

from pathlib import Path

import pytest
from _gguf_bytes import I32, TABLES, Typed, write_model

from pylucebox._draft_vocab import choose_draft_ids, read_draft_ids
from pylucebox._errors import InvalidArgumentError, LoadError, ModelFormatError
from pylucebox._gguf import GgufModel, read_model

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def file_with(tmp_path: Path, types: list[int]) -> GgufModel:
    tokens = [f"t{i}" for i in range(len(types))]
    tables = {name: [4, len(types)] for name in TABLES}
    stored = Typed(I32, types)
    path = write_model(tmp_path / "m.gguf", tables, tokens=tokens, tokenizer__ggml__token_type=stored)
    return read_model(path)


@pytest.mark.parametrize("n", [3, 4, 6])
def test_special_tokens_then_the_lowest_ids(tmp_path: Path, n: int) -> None:
    model = file_with(tmp_path, [NORMAL, NORMAL, NORMAL, UNUSED, CONTROL, USER])
    assert choose_draft_ids(model, n).tolist() == sorted([4, 5, *[0, 1, 2, 3][: n - 2]])


def test_long_lists_are_read_from_the_file(tmp_path: Path) -> None:
    types = [NORMAL] * 5000 + [CONTROL]
    assert choose_draft_ids(file_with(tmp_path, types), 3).tolist() == [0, 1, 5000]


@pytest.mark.parametrize("n", [-1, 0, 2, 7])
def test_sizes_that_cannot_be_had(tmp_path: Path, n: int) -> None:
    model = file_with(tmp_path, [NORMAL, NORMAL, NORMAL, UNUSED, CONTROL, USER])
    with pytest.raises(InvalidArgumentError, match="3 to 6"):
        choose_draft_ids(model, n)


def test_file_that_does_not_tell_what_is_special(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    with pytest.raises(ModelFormatError, match="token_type"):
        choose_draft_ids(read_model(path), 3)


def test_ids_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text("7, 3\n3 0\n")
    assert read_draft_ids(path, 8).tolist() == [0, 3, 7]


@pytest.mark.parametrize("text", ["", "8", "-1", "x", "1.5", "²"])
def test_files_that_hold_no_ids(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ids.txt"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError):
        read_draft_ids(path, 8)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(LoadError):
        read_draft_ids(tmp_path / "no", 8)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(LoadError):
        read_draft_ids(tmp_path / "binary", 8)
