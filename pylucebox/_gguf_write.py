"""Write a GGUF file of any size: piece by piece, resumable, and under its name only when it is whole.

The bytes go to ``NAME.part``, and ``NAME.part.json`` says how many of them are known to be on the disk and what they
are made from. A second run with the same plan goes on from there, one with another plan starts over. The last step
gives the file its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from pylucebox._errors import LuceboxError, WriteError
from pylucebox._gguf_parse import DEFAULT_ALIGNMENT, TENSOR_TYPES

__all__ = ["MetaPair", "TensorPlan", "Written", "pack_bool", "pack_text", "pack_u32", "write_gguf"]

_PIECE_BYTES: Final = 32 << 20
_VERSION: Final = 3
_NUMBERS: Final = {name: (number, block, n_bytes) for number, (name, block, n_bytes) in TENSOR_TYPES.items()}

# enum gguf_type in ggml/include/gguf.h
_U32, _BOOL, _STRING = 4, 7, 8


class MetaPair(NamedTuple):
    """A key and its value as stored: type number and payload."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlan:
    """A tensor to write.

    Attributes
    ----------
    name
        Name in the file.
    shape
        Elements per dimension in ggml's order: the first one is contiguous.
    type_name
        As ggml names it.
    read_rows
        ``read_rows(first, count)`` returns the stored bytes of some rows. Equal arguments give equal bytes.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    read_rows: Callable[[int, int], bytes]

    @property
    def n_rows(self) -> int:
        """Rows of all dimensions."""
        return math.prod(self.shape[1:])

    @property
    def row_bytes(self) -> int:
        """Size of a stored row."""
        _, block, n_bytes = _NUMBERS[self.type_name]
        return self.shape[0] // block * n_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What `write_gguf` did.

    Attributes
    ----------
    path
        The file.
    n_bytes
        Its size.
    n_bytes_resumed
        How much of it an earlier run had written.
    """

    path: Path
    n_bytes: int
    n_bytes_resumed: int


def pack_u32(value: int) -> bytes:
    """Return an unsigned integer as a metadata value."""
    return struct.pack("<II", _U32, value)


def pack_bool(value: bool) -> bytes:
    """Return a truth value as a metadata value."""
    return struct.pack("<IB", _BOOL, value)


def pack_text(value: str) -> bytes:
    """Return a string as a metadata value."""
    return struct.pack("<I", _STRING) + _text(value)


def write_gguf(
    path: Path,
    metadata: Sequence[MetaPair],
    tensors: Sequence[TensorPlan],
    *,
    source: str,
    overwrite: bool = False,
    resumable: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Write a file.

    Parameters
    ----------
    path
        File to write; its directory must exist.
    metadata, tensors
        Its content, in file order.
    source
        Identifies what the tensors are read from; a change of it makes a half-written file worthless.
    overwrite
        Whether a file of this name may be replaced.
    resumable
        Whether each piece is waited for until the disk has it, so that what was cut off can be resumed.
    progress
        Called with bytes done and bytes in all after each piece. An exception of its own ends the work, which can be
        resumed.

    Raises
    ------
    WriteError
        There is such a file, somebody else writes it, the disk is full, or the system refused something.
    """
    if path.exists() and not overwrite:
        raise WriteError(path=path, seen="there is such a file", advice="Give another name, or --force to replace it.")
    head = _head(metadata, tensors)
    plan = hashlib.sha256(head + source.encode()).hexdigest()
    n_bytes = len(head) + sum(_padded(tensor.n_rows * tensor.row_bytes) for tensor in tensors)
    part, journal = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")
    try:
        with _locked(part) as file:
            done = _resume_point(file, journal, plan)
            _require_space(part, n_bytes - file.seek(0, os.SEEK_END))
            file.truncate(done)
            file.seek(done)
            resumed = done
            for piece in _pieces(head, tensors, done):
                file.write(piece)
                done += len(piece)
                if resumable:
                    _sync(file)
                    _write_journal(journal, {"plan": plan, "n_bytes": done})
                if progress:
                    progress(done, n_bytes)
            part.replace(path)
            journal.unlink(missing_ok=True)
    except LuceboxError:  # of the source, say
        raise
    except OSError as error:
        raise WriteError(path=path, seen=error.strerror or str(error)) from error
    return Written(path=path, n_bytes=n_bytes, n_bytes_resumed=resumed)


def _pieces(head: bytes, tensors: Sequence[TensorPlan], done: int) -> Iterator[bytes]:
    """Yield the bytes of the file from `done` on, which is the end of a piece."""
    if done < len(head):
        yield head
    at = len(head)
    for tensor in tensors:
        per_piece = max(1, _PIECE_BYTES // tensor.row_bytes)
        for first in range(0, tensor.n_rows, per_piece):
            count = min(per_piece, tensor.n_rows - first)
            size = count * tensor.row_bytes
            is_last = first + count == tensor.n_rows
            padding = -tensor.n_rows * tensor.row_bytes % DEFAULT_ALIGNMENT if is_last else 0
            at += size + padding
            if at <= done:
                continue
            data = tensor.read_rows(first, count)
            if len(data) != size:
                msg = f"rows {first} to {first + count} of {tensor.name} came as {len(data)} bytes instead of {size}"
                raise AssertionError(msg)
            yield data + bytes(padding)


def _head(metadata: Sequence[MetaPair], tensors: Sequence[TensorPlan]) -> bytes:
    out = bytearray(b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata)))
    for pair in metadata:
        out += _text(pair.key) + pair.value
    offset = 0
    for tensor in tensors:
        number, *_ = _NUMBERS[tensor.type_name]
        n_dims = len(tensor.shape)
        out += _text(tensor.name) + struct.pack(f"<I{n_dims}QIQ", n_dims, *tensor.shape, number, offset)
        offset += _padded(tensor.n_rows * tensor.row_bytes)
    return bytes(out) + bytes(-len(out) % DEFAULT_ALIGNMENT)


def _padded(n_bytes: int) -> int:
    return n_bytes + -n_bytes % DEFAULT_ALIGNMENT


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


# ---- the half-written file -------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """Open the half-written file for one process only."""
    handle = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
    with os.fdopen(handle, "r+b", buffering=0) as file:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            advice = "Wait for it to end, or give another name."
            raise WriteError(path=part, seen="another process is writing it", advice=advice) from error
        yield file


def _resume_point(file: BinaryIO, journal: Path, plan: str) -> int:
    """Return how many bytes of an earlier run with the same plan can be kept."""
    try:
        noted: Any = json.loads(journal.read_text(encoding="utf-8"))
        done = noted["n_bytes"] if noted["plan"] == plan else 0
    except (OSError, ValueError, KeyError, TypeError):  # absent, or cut off: start over
        return 0
    size = file.seek(0, os.SEEK_END)
    return done if isinstance(done, int) and 0 <= done <= size else 0


def _write_journal(journal: Path, noted: dict[str, Any]) -> None:
    new = journal.with_name(f"{journal.name}.new")
    new.write_text(json.dumps(noted), encoding="utf-8")
    new.replace(journal)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _require_space(part: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if free < n_bytes:
        seen = f"{n_bytes / 2**20:,.0f} MiB are needed, {free / 2**20:,.0f} MiB are free"
        raise WriteError(path=part, seen=seen, advice="Free some space or write to another disk.")
