"""Parse the header of a GGUF file.

The format (version 2 and 3, little endian): magic ``GGUF``, u32 version, u64 tensor count, u64 key count, the key/value
pairs, one record per tensor, padding to ``general.alignment``, tensor data. A string is a u64 length and its bytes; an
array is a u32 element type, a u64 count and its elements.

A header comes from anywhere, so nothing in it is believed: each count and length is compared with the bytes that are
left in the file before anything is allocated or skipped, and the whole of a model, all its splits together, has a
budget. The file is read through a window instead of being mapped, because a mapped file that another program truncates
kills the process.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple, NoReturn

from pylucebox._errors import ModelFormatError

__all__ = ["ArraySpan", "Budget", "Header", "TensorInfo", "Value", "ValueSpan", "parse_header"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MAX_NAME_BYTES = 63  # ggml keeps tensor names in 64 bytes, NUL included

MAX_HELD_ITEMS = 4_096  # longer arrays of numbers, and all arrays of strings, are left in the file

_WINDOW_BYTES = 1 << 20
_INT64_MAX = (1 << 63) - 1

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_STRING, _ARRAY, _BOOL = 8, 9, 7
# Value type -> layout. The types are numbered in this order; 8 and 9 have no fixed size.
_SCALARS: dict[int, struct.Struct] = {
    kind: struct.Struct(f"<{letter}") for kind, letter in enumerate("BbHhIifB--Qqd") if letter != "-"
}

# ggml type -> (name, elements per block, bytes per block), as in ggml of b11434. Type numbers that ggml has retired are
# absent on purpose: such a file cannot be loaded.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 36),
    10: ("q2_K", 256, 84),
    11: ("q3_K", 256, 110),
    12: ("q4_K", 256, 144),
    13: ("q5_K", 256, 176),
    14: ("q6_K", 256, 210),
    15: ("q8_K", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
    42: ("q2_0", 64, 18),
}


@dataclass(frozen=True, slots=True)
class ArraySpan:
    """An array that was left in the file.

    Attributes
    ----------
    element_type
        GGUF value type of the elements.
    length
        Number of elements.
    offset, n_bytes
        Where the elements lie in the file, in bytes.
    """

    element_type: int
    length: int
    offset: int
    n_bytes: int


Scalar = int | float | bool | str
Value = Scalar | tuple[int, ...] | tuple[float, ...] | tuple[bool, ...] | ArraySpan


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor record.

    Attributes
    ----------
    name
        For example ``blk.0.attn_q.weight``.
    shape
        Elements per dimension in ggml's order: the first one is contiguous.
    type_name
        As ggml names it, for example ``q8_0``.
    offset
        Start of the data, in bytes from the start of the data section.
    n_bytes
        Size of the data.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    n_bytes: int

    @property
    def n_elements(self) -> int:
        """Number of elements; 1 for a tensor without dimensions."""
        total = 1
        for size in self.shape:
            total *= size
        return total


class ValueSpan(NamedTuple):
    """Where a metadata value lies in the file, its type in front included, in bytes."""

    offset: int
    n_bytes: int


class Header(NamedTuple):
    """What `parse_header` found; the mappings cannot be changed.

    `data_offset` is the start of the data section in bytes.
    """

    version: int
    metadata: Mapping[str, Value]
    value_spans: Mapping[str, ValueSpan]
    tensors: Mapping[str, TensorInfo]
    data_offset: int


@dataclass(slots=True)
class Budget:
    """What may still be read of a model; its files draw on one budget.

    A real model has some 60 keys, 1300 tensors and two string arrays of 250 000 entries and 3 MB each. The defaults
    leave room, and keep a file that was made to be slow from holding the caller up or filling the memory.

    Attributes
    ----------
    keys, tensors
        Entries of the two tables.
    strings
        Entries of string arrays, which are walked over one by one.
    held_bytes
        Text and numbers that are kept in memory.
    array_bytes
        Arrays that are left in the file. llama.cpp reads them all.
    """

    keys: int = 65_536
    tensors: int = 262_144
    strings: int = 1 << 22
    held_bytes: int = 64 << 20
    array_bytes: int = 1 << 30


_MOST = Budget()
_BUDGET_WORDS = {
    "keys": "metadata keys",
    "tensors": "tensors",
    "strings": "strings in arrays",
    "held_bytes": "bytes of text and numbers",
    "array_bytes": "bytes of arrays",
}
assert set(_BUDGET_WORDS) == {field.name for field in fields(Budget)}


class _Cursor:
    """A forward reader that checks every step against the file's size."""

    def __init__(self, file: BinaryIO, size: int, path: Path, budget: Budget) -> None:
        self.size = size
        self.path = path
        self._file = file
        self._window = b""
        self._base = 0  # file offset of the window
        self._at = 0  # position in the window
        self._budget = budget

    def fail(self, seen: str, advice: str | None = None) -> NoReturn:
        raise ModelFormatError(f"cannot read {str(self.path)!r} as GGUF", path=self.path, seen=seen, advice=advice)

    def tell(self) -> int:
        return self._base + self._at

    def left(self) -> int:
        return self.size - self.tell()

    def spend(self, kind: str, amount: int, what: str) -> None:
        """Take from the budget, before anything is allocated or walked over."""
        left = getattr(self._budget, kind) - amount
        if left < 0:
            most = getattr(_MOST, kind)
            self.fail(f"{what} asks for {amount} {_BUDGET_WORDS[kind]}; this build reads {most} of a model")
        setattr(self._budget, kind, left)

    def require(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.left():
            self.fail(
                f"{what} at byte {self.tell()} needs {n_bytes} bytes, {self.left()} are left in the file",
                "The file is damaged or the download is incomplete: get it again.",
            )

    def take(self, n_bytes: int, what: str) -> bytes:
        self.require(n_bytes, what)
        if self._at + n_bytes > len(self._window):
            self._load(n_bytes, what)
        start = self._at
        self._at += n_bytes
        return self._window[start : self._at]

    def skip(self, n_bytes: int, what: str) -> None:
        self.require(n_bytes, what)
        self._at += n_bytes
        if self._at > len(self._window):
            self._base, self._at, self._window = self.tell(), 0, b""

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack(self.take(8, what))[0])

    def text(self, what: str) -> bytes:
        n_bytes = self.u64(what)
        self.require(n_bytes, what)
        self.spend("held_bytes", n_bytes, what)
        return self.take(n_bytes, what)

    def skip_strings(self, count: int, what: str) -> None:
        """Walk over strings. This is the hot loop: a tokenizer has half a million of them."""
        unpack, n_left = _U64.unpack_from, count
        while n_left:
            if self._at + 8 > len(self._window):
                self.require(8, what)
                self._load(8, what)
            window, at, last = self._window, self._at, len(self._window) - 8
            while n_left and at <= last:
                at += 8 + unpack(window, at)[0]
                n_left -= 1
            if at > len(window):  # the string ends beyond the window, perhaps beyond the file
                step = at - self._at
                self.skip(step, what)
            else:
                self._at = at

    def _load(self, n_bytes: int, what: str) -> None:
        self._base, self._at = self.tell(), 0
        self._file.seek(self._base)
        self._window = self._file.read(min(max(n_bytes, _WINDOW_BYTES), self.left()))
        if len(self._window) < n_bytes:
            self.fail(f"the file became shorter while {what} was read", "Wait until the download is complete.")


def parse_header(file: BinaryIO, size: int, path: Path, budget: Budget | None = None) -> Header:
    """Parse a header.

    Parameters
    ----------
    file
        Open for reading bytes.
    size
        Its size in bytes.
    path
        Named in messages.
    budget
        What may be read, which is taken from it; None takes a new one.

    Raises
    ------
    ModelFormatError
        It is no GGUF file, its header is damaged or beyond the budget, or tensor data is missing at its end.
    """
    cursor = _Cursor(file, size, path, Budget() if budget is None else budget)
    magic = cursor.take(4, "the magic number")
    if magic != MAGIC:
        cursor.fail(f"it starts with {magic!r}, not with {MAGIC!r}", "Give the path of a GGUF file.")
    version = cursor.u32("the version")
    if version and version & 0xFFFF == 0:  # a small number with its bytes reversed
        cursor.fail("it is written in big-endian byte order", "Convert the model again for a little-endian machine.")
    if version not in VERSIONS:
        cursor.fail(f"its GGUF version is {version}, this build reads 2 and 3", "Convert the model again.")

    n_tensors = cursor.u64("the tensor count")
    n_keys = cursor.u64("the key count")
    # The smallest key is a length, one character, a type and a byte; the smallest tensor record a length, one
    # character, the number of dimensions, a type and an offset.
    for kind, count, smallest in (("keys", n_keys, 8 + 1 + 4 + 1), ("tensors", n_tensors, 8 + 1 + 4 + 4 + 8)):
        if count * smallest > cursor.left():
            cursor.fail(f"it claims to have {count} {_BUDGET_WORDS[kind]}, which its size does not allow")
        cursor.spend(kind, count, "its header")

    metadata, value_spans = _read_metadata(cursor, n_keys)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment!r}, not a power of two")

    tensors, data_offset = _read_tensors(cursor, n_tensors, alignment)
    read_only = MappingProxyType(metadata), MappingProxyType(value_spans), MappingProxyType(tensors)
    return Header(version, *read_only, data_offset)


def _read_metadata(cursor: _Cursor, n_keys: int) -> tuple[dict[str, Value], dict[str, ValueSpan]]:
    metadata: dict[str, Value] = {}
    spans: dict[str, ValueSpan] = {}
    for number in range(n_keys):
        what = f"key {number + 1} of {n_keys}"
        key = _decode(cursor, cursor.text(what), what)
        if not key or key in metadata:
            cursor.fail(f"{what} is empty" if not key else f"key {key!r} appears twice")
        start = cursor.tell()
        metadata[key] = _read_value(cursor, key)
        spans[key] = ValueSpan(start, cursor.tell() - start)
    return metadata, spans


def _read_value(cursor: _Cursor, key: str) -> Value:
    what = f"the value of {key!r}"
    kind = cursor.u32(what)
    if kind == _STRING:
        # Broken UTF-8 in a description is no reason to refuse a model.
        return cursor.text(what).decode("utf-8", "replace")
    if kind == _ARRAY:
        return _read_array(cursor, what)
    layout = _SCALARS.get(kind)
    if layout is None:
        cursor.fail(f"{what} has the unknown type {kind}")
    value: int | float = layout.unpack(cursor.take(layout.size, what))[0]
    return bool(value) if kind == _BOOL else value


def _read_array(cursor: _Cursor, what: str) -> Value:
    kind = cursor.u32(what)
    length = cursor.u64(what)
    if kind == _STRING:
        cursor.require(8 * length, what)
        cursor.spend("strings", length, what)
        offset = cursor.tell()
        cursor.skip_strings(length, what)
        cursor.spend("array_bytes", cursor.tell() - offset, what)
        return ArraySpan(kind, length, offset, cursor.tell() - offset)

    layout = _SCALARS.get(kind)
    if layout is None:
        cursor.fail(f"{what} is an array of arrays" if kind == _ARRAY else f"{what} has the unknown type {kind}")
    n_bytes = layout.size * length
    if length > MAX_HELD_ITEMS:
        offset = cursor.tell()
        cursor.require(n_bytes, what)
        cursor.spend("array_bytes", n_bytes, what)
        cursor.skip(n_bytes, what)
        return ArraySpan(kind, length, offset, n_bytes)
    cursor.require(n_bytes, what)
    cursor.spend("held_bytes", 8 * length, what)
    items = struct.unpack(f"<{length}{layout.format[1:]}", cursor.take(n_bytes, what))
    return tuple(bool(item) for item in items) if kind == _BOOL else items


def _read_tensors(cursor: _Cursor, n_tensors: int, alignment: int) -> tuple[dict[str, TensorInfo], int]:
    tensors: dict[str, TensorInfo] = {}
    for number in range(n_tensors):
        tensor = _read_tensor(cursor, f"tensor {number + 1} of {n_tensors}")
        if tensor.name in tensors:
            cursor.fail(f"tensor {tensor.name!r} appears twice")
        if tensor.offset % alignment:
            cursor.fail(f"tensor {tensor.name!r} is not aligned to {alignment} bytes")
        tensors[tensor.name] = tensor
    return tensors, _check_data(cursor, tensors, alignment)


def _read_tensor(cursor: _Cursor, what: str) -> TensorInfo:
    raw = cursor.text(what)
    if not 0 < len(raw) <= MAX_NAME_BYTES:
        cursor.fail(f"the name of {what} has {len(raw)} bytes, 1 to {MAX_NAME_BYTES} are allowed")
    name = _decode(cursor, raw, what)
    n_dims = cursor.u32(what)
    if n_dims > MAX_DIMS:
        cursor.fail(f"tensor {name!r} has {n_dims} dimensions, {MAX_DIMS} are allowed")
    shape: tuple[int, ...] = struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims, what))
    kind = cursor.u32(what)
    offset = cursor.u64(what)
    if kind not in TENSOR_TYPES:
        cursor.fail(f"tensor {name!r} has the unknown type {kind}", "Get a quantisation that this build knows.")
    type_name, block, block_bytes = TENSOR_TYPES[kind]
    n_elements = 1
    for size in shape:
        n_elements *= size
    if n_elements > _INT64_MAX:
        cursor.fail(f"tensor {name!r} has the impossible shape {shape}")
    row = shape[0] if shape else 1
    if row % block:
        cursor.fail(f"tensor {name!r} has rows of {row} elements, {type_name} needs a multiple of {block}")
    return TensorInfo(name, shape, type_name, offset, n_elements // block * block_bytes)


def _check_data(cursor: _Cursor, tensors: Mapping[str, TensorInfo], alignment: int) -> int:
    """Return where the data begins; refuse a file that ends before its tensors do, as a cut-off download does."""
    start = -(-cursor.tell() // alignment) * alignment
    end = max((start + tensor.offset + tensor.n_bytes for tensor in tensors.values()), default=0)
    if end > cursor.size:
        cursor.fail(
            f"its tensors end at byte {end}, the file at byte {cursor.size}",
            "The download is incomplete: get the file again.",
        )
    return start


def _decode(cursor: _Cursor, raw: bytes, what: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        cursor.fail(f"the name of {what} is not UTF-8")
