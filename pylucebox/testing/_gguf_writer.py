"""Write GGUF version 3 files with numpy alone.

Only what a model file needs: scalar and array metadata, and tensors whose bytes are ready. The layout is the
one the reader of ggml (``ggml/src/gguf.cpp``) accepts: magic, version, two counts, metadata, tensor table, then
the tensor data, each tensor padded to the alignment.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from pylucebox._errors import InvalidArgumentError
from pylucebox._gguf_parse import TENSOR_TYPES
from pylucebox.testing._output import new_file

MetaValue: TypeAlias = "bool | int | float | str | np.generic | npt.NDArray[np.generic] | Sequence[str]"
"""A metadata value. Plain ``int`` is stored as uint32 and plain ``float`` as float32; a numpy scalar or array
keeps its own type, which is how 64-bit or signed values are asked for. A sequence of ``str`` is a string array."""

QuantizeRows: TypeAlias = Callable[[str, "npt.NDArray[np.float32]"], bytes]
"""``quantize(type_name, rows) -> bytes``: float32 of shape (n_rows, n_per_row) to the blocks of a ggml type."""

_VERSION = 3
# The default of the format, in force when general.alignment is absent.
_ALIGNMENT_BYTES = 32

_STRING = 8
_ARRAY = 9
# numpy dtype -> value type (enum gguf_type in ggml/include/gguf.h)
_SCALAR_TYPES = {
    "uint8": 0,
    "int8": 1,
    "uint16": 2,
    "int16": 3,
    "uint32": 4,
    "int32": 5,
    "float32": 6,
    "bool": 7,
    "uint64": 10,
    "int64": 11,
    "float64": 12,
}


class _TensorType(NamedTuple):
    """Number of a ggml tensor type in a file, values per block, bytes per block."""

    number: int
    block: int
    block_bytes: int


_TENSOR_TYPES = {name: _TensorType(number, *block) for number, (name, *block) in TENSOR_TYPES.items()}

TYPE_NAMES = tuple(_TENSOR_TYPES)
"""Names of the tensor types, as ggml has them."""


@dataclass(frozen=True)
class Tensor:
    """A tensor ready to be written.

    Attributes
    ----------
    name
        Name in the file.
    shape
        Shape in numpy order, rows first; the file stores it reversed.
    type_name
        As ggml names it.
    data
        The stored bytes.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    data: bytes


def values_per_block(type_name: str) -> int:
    """Return how many values of a row share a block; rows are a whole number of blocks.

    Parameters
    ----------
    type_name
        As ggml names it, such as ``"q4_K"``.

    Raises
    ------
    InvalidArgumentError
        There is no such type.
    """
    kind = _TENSOR_TYPES.get(type_name)
    if kind is None:
        allowed = f"one of {', '.join(TYPE_NAMES)}"
        raise InvalidArgumentError(argument="type_name", value=type_name, allowed=allowed)
    return kind.block


def encode(values: npt.NDArray[np.float32], type_name: str, quantize: QuantizeRows | None = None) -> bytes:
    """Turn float32 values into the bytes of a ggml type.

    ``f32``, ``f16``, ``bf16`` and ``q8_0`` are done here; any other type goes through `quantize`.

    Parameters
    ----------
    values
        Any shape; the last axis is the row.
    type_name
        As ggml names it, such as ``"q4_K"``.
    quantize
        Quantiser for the other types; None takes that of the native library.

    Raises
    ------
    InvalidArgumentError
        The type is unknown, a row is no whole number of its blocks, or the quantiser returned too few or many bytes.
    """
    block = values_per_block(type_name)
    row = values.shape[-1]
    if row % block:
        allowed = f"rows of a multiple of {block} values, the block of {type_name}"
        raise InvalidArgumentError(argument="values", value=values.shape, allowed=allowed)
    rows = np.ascontiguousarray(values, dtype="<f4").reshape(-1, row)
    own = _ENCODERS.get(type_name)
    if own is not None:
        return own(rows)
    data = (quantize or _native_quantize)(type_name, rows)
    n_bytes = _n_bytes(rows.shape, type_name)
    if len(data) != n_bytes:
        allowed = f"a quantiser that returns {n_bytes} bytes for {rows.shape} {type_name}"
        raise InvalidArgumentError(argument="quantize", value=f"{len(data)} bytes", allowed=allowed)
    return data


def write_gguf(path: Path, metadata: Mapping[str, MetaValue], tensors: Sequence[Tensor]) -> None:
    """Write a file, in place of one that is there.

    Parameters
    ----------
    path
        File to write; its directory must exist.
    metadata
        Keys and values in file order.
    tensors
        Tensors in file order.

    Raises
    ------
    InvalidArgumentError
        GGUF cannot hold a value, the bytes of a tensor do not fit its shape and type, or two tensors share a name.
    OSError
        The file cannot be written; there is none then.
    """
    head = b"".join(_pack_string(key) + _pack_value(key, value) for key, value in metadata.items())
    table = bytearray()
    offset = 0
    names: set[str] = set()
    for tensor in tensors:
        n_bytes = _n_bytes(tensor.shape, tensor.type_name)
        if len(tensor.data) != n_bytes or tensor.name in names:
            allowed = f"{n_bytes} bytes for {tensor.shape} {tensor.type_name}, under a name used once"
            seen = f"{tensor.name}, {len(tensor.data)} bytes"
            raise InvalidArgumentError(argument="tensors", value=seen, allowed=allowed)
        names.add(tensor.name)
        n_dims = len(tensor.shape)
        table += _pack_string(tensor.name)
        table += struct.pack(f"<I{n_dims}Q", n_dims, *reversed(tensor.shape))
        table += struct.pack("<IQ", _TENSOR_TYPES[tensor.type_name].number, offset)
        offset += n_bytes + _padding(n_bytes)
    with new_file(path) as file:
        file.write(b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata)) + head + table)
        file.write(bytes(_padding(file.tell())))
        for tensor in tensors:
            file.write(tensor.data)
            file.write(bytes(_padding(len(tensor.data))))


def _n_bytes(shape: tuple[int, ...], type_name: str) -> int:
    block = values_per_block(type_name)
    return math.prod(shape) // block * _TENSOR_TYPES[type_name].block_bytes


def _padding(n_bytes: int) -> int:
    return -n_bytes % _ALIGNMENT_BYTES


def _pack_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _pack_value(key: str, value: MetaValue) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _pack_string(value)
    if isinstance(value, (list, tuple)):
        head = struct.pack("<IIQ", _ARRAY, _STRING, len(value))
        return head + b"".join(_pack_string(item) for item in value)
    if isinstance(value, int) and not 0 <= value < 1 << 32:
        allowed = "0 to 2**32 - 1; a numpy scalar for other integers"
        raise InvalidArgumentError(argument=f"metadata[{key!r}]", value=value, allowed=allowed)
    array = _typed(value)
    type_id = _SCALAR_TYPES.get(array.dtype.name)
    if type_id is None or array.ndim > 1:
        allowed = f"text, texts, or numbers of {', '.join(_SCALAR_TYPES)} in at most one dimension"
        raise InvalidArgumentError(argument=f"metadata[{key!r}]", value=value, allowed=allowed)
    raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
    if array.ndim == 0:
        return struct.pack("<I", type_id) + raw
    return struct.pack("<IIQ", _ARRAY, type_id, array.size) + raw


def _typed(value: MetaValue) -> npt.NDArray[np.generic]:
    # bool first: it is an int to Python
    if isinstance(value, bool):
        return np.asarray(value, np.bool_)
    if isinstance(value, int):
        return np.asarray(value, np.uint32)
    if isinstance(value, float):
        return np.asarray(value, np.float32)
    return np.asarray(cast("np.generic | npt.NDArray[np.generic]", value))


def _encode_bf16(rows: npt.NDArray[np.float32]) -> bytes:
    # keep the upper half, rounded to nearest even; weights are finite, so no NaN needs care
    bits = rows.view("<u4")
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    data: bytes = (rounded >> np.uint32(16)).astype("<u2").tobytes()
    return data


def _encode_q8_0(rows: npt.NDArray[np.float32]) -> bytes:
    # block: scale = max|x| / 127 as f16, then 32 signed bytes x / scale with halves rounded away from zero
    blocks = rows.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = blocks * inverse
    levels = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled).astype(np.int8)
    packed = np.concatenate([scale.astype("<f2").view(np.int8), levels], axis=1)
    return packed.tobytes()


_ENCODERS: dict[str, Callable[[npt.NDArray[np.float32]], bytes]] = {
    "f32": lambda rows: rows.tobytes(),
    "f16": lambda rows: rows.astype("<f2").tobytes(),
    "bf16": _encode_bf16,
    "q8_0": _encode_q8_0,
}


def _native_quantize(type_name: str, rows: npt.NDArray[np.float32]) -> bytes:
    from pylucebox._quantize import quantize_rows  # noqa: PLC0415 - the rest works without the native library

    return quantize_rows(type_name, rows)
