"""Large GGUF files: whole or not there, resumable, and never written by two at once."""

from __future__ import annotations

import fcntl
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pylucebox import _gguf_write
from pylucebox._errors import LoadError, WriteError
from pylucebox._gguf import read_file, read_model
from pylucebox._gguf_write import MetaPair, TensorPlan, Written, pack_bool, pack_i32s, pack_text, pack_u32, write_gguf

METADATA = [
    MetaPair("general.architecture", pack_text("qwen4exp")),
    MetaPair("count", pack_u32(7)),
    MetaPair("flag", pack_bool(True)),
    MetaPair("list", pack_i32s([1, -2])),
]


class BrokenOffError(Exception):
    """Ends the writing in the middle."""


def values(first: int, count: int, row: int) -> bytes:
    return struct.pack(f"<{count * row}f", *range(first * row, (first + count) * row))


def plan(name: str, row: int, n_rows: int, log: list[tuple[str, int, int]] | None = None) -> TensorPlan:
    def read_rows(first: int, count: int) -> bytes:
        if log is not None:
            log.append((name, first, count))
        return values(first, count, row)

    return TensorPlan(name=name, shape=(row, n_rows), type_name="f32", read_rows=read_rows)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gguf_write, "_PIECE_BYTES", 24)  # two rows of three values


def stop_after(n_pieces: int) -> Callable[[int, int], None]:
    left = [n_pieces]

    def progress(done: int, total: int) -> None:
        assert 0 < done <= total
        left[0] -= 1
        if not left[0]:
            raise BrokenOffError

    return progress


class Names(NamedTuple):
    target: Path
    part: Path
    journal: Path


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names(tmp_path / "x.gguf", tmp_path / "x.gguf.part", tmp_path / "x.gguf.part.json")


def write(names: Names, log: list[tuple[str, int, int]] | None = None, **options: object) -> Written:
    tensors = [plan("a.weight", 3, 5, log), plan("b.weight", 3, 4, log)]
    return write_gguf(names.target, METADATA, tensors, **{"source": "s", **options})  # type: ignore[arg-type]


def test_what_is_written_is_what_is_read(names: Names) -> None:
    written = write(names)
    file = read_file(names.target)
    assert dict(file.metadata) == {"general.architecture": "qwen4exp", "count": 7, "flag": True, "list": (1, -2)}
    assert file.tensors["a.weight"].shape == (3, 5)
    assert read_model(names.target).read_tensor("b.weight") == values(0, 4, 3)
    assert read_model(names.target).read_tensor("a.weight", 12, 24) == values(1, 2, 3)
    assert (written.n_bytes, written.n_bytes_resumed) == (names.target.stat().st_size, 0)
    assert list(names.target.parent.iterdir()) == [names.target]


@pytest.mark.parametrize("n_pieces", range(1, 7))
def test_broken_off_at_any_piece_it_goes_on_and_gives_the_same_file(names: Names, n_pieces: int) -> None:
    write(names)
    whole = names.target.read_bytes()
    names.target.unlink()
    with pytest.raises(BrokenOffError):
        write(names, progress=stop_after(n_pieces))
    assert not names.target.exists()
    log: list[tuple[str, int, int]] = []
    written = write(names, log)
    assert names.target.read_bytes() == whole
    assert written.n_bytes_resumed > 0
    pieces = [("a.weight", 0, 2), ("a.weight", 2, 2), ("a.weight", 4, 1), ("b.weight", 0, 2), ("b.weight", 2, 2)]
    assert log == pieces[n_pieces - 1 :]


def test_bytes_that_were_not_noted_are_written_again(names: Names) -> None:
    write(names)
    whole = names.target.read_bytes()
    names.target.unlink()
    with pytest.raises(BrokenOffError):
        write(names, progress=stop_after(3))
    with names.part.open("ab") as file:
        file.write(b"of a piece that was cut off")
    write(names)
    assert names.target.read_bytes() == whole


def test_another_source_starts_over(names: Names) -> None:
    with pytest.raises(BrokenOffError):
        write(names, progress=stop_after(4))
    assert write(names, source="other").n_bytes_resumed == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"plan": 1}', '{"plan": "x", "n_bytes": -1}'])
def test_damaged_journal_starts_over(names: Names, text: str) -> None:
    with pytest.raises(BrokenOffError):
        write(names, progress=stop_after(4))
    names.journal.write_text(text)
    assert write(names).n_bytes_resumed == 0


def test_file_that_lost_its_end_starts_over(names: Names) -> None:
    with pytest.raises(BrokenOffError):
        write(names, progress=stop_after(4))
    names.part.write_bytes(names.part.read_bytes()[:10])
    assert write(names).n_bytes_resumed == 0
    assert read_model(names.target).read_tensor("a.weight") == values(0, 5, 3)


def test_file_that_is_there_is_kept_unless_asked_otherwise(names: Names) -> None:
    names.target.write_bytes(b"old")
    with pytest.raises(WriteError, match="--force") as caught:
        write(names)
    assert caught.value.path == str(names.target)
    assert names.target.read_bytes() == b"old"
    write(names, overwrite=True)
    assert read_file(names.target).version == 3


def test_old_file_stays_until_the_new_one_is_whole(names: Names) -> None:
    names.target.write_bytes(b"old")
    with pytest.raises(BrokenOffError):
        write(names, overwrite=True, progress=stop_after(5))
    assert names.target.read_bytes() == b"old"


def test_two_writers_exclude_each_other(names: Names) -> None:
    with names.part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(WriteError, match="another process"):
            write(names)


def test_full_disk_is_told_before_anything_is_written(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(names.target.parent)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(WriteError, match="are free"):
        write(names)
    assert not names.target.exists()


def test_disk_that_fills_up_while_writing_leaves_what_can_be_resumed(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [3]

    def sync(_handle: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(_gguf_write.os, "fsync", sync)
        with pytest.raises(WriteError, match="No space left"):
            write(names)
    assert not names.target.exists()
    assert write(names).n_bytes_resumed > 0


def test_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="No such file"):
        write(Names(tmp_path / "no" / "x.gguf", tmp_path, tmp_path))


def test_error_of_the_source_is_passed_on(names: Names) -> None:
    def gone(_first: int, _count: int) -> bytes:
        raise LoadError("cannot read 'x'", path="x", seen="it is gone")

    broken = TensorPlan(name="a", shape=(3, 5), type_name="f32", read_rows=gone)
    with pytest.raises(LoadError, match="it is gone"):
        write_gguf(names.target, METADATA, [broken], source="s")
