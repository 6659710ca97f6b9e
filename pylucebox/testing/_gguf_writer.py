"""Write GGUF version 3 files with numpy alone.

Only what a model file needs: scalar and array metadata, and tensors whose bytes are ready. The layout is the
one the reader of ggml (``ggml/src/gguf.cpp``) accepts: magic, version, two counts, metadata, tensor table, then
the tensor data, each tensor padded to the alignment.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

import numpy as np
import numpy.typing as npt

MetaValue: TypeAlias = "bool | int | float | str | np.generic | npt.NDArray[np.generic] | Sequence[str]"
"""A metadata value. Plain ``int`` is stored as uint32 and plain ``float`` as float32; a numpy scalar or array
keeps its own type, which is how 64-bit or signed values are asked for. A sequence of ``str`` is a string array."""

QuantizeRows: TypeAlias = Callable[[str, "npt.NDArray[np.float32]"], bytes]
"""``quantize(type_name, rows) -> bytes``: rows of float32 to the blocks of a ggml type."""

GGUF_VERSION = 3
ALIGNMENT_BYTES = 32
"""Default alignment of GGUF, in force when ``general.alignment`` is absent."""

_STRING = 8
_ARRAY = 9
_SCALAR_IDS: dict[str, int] = {
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
"""numpy dtype name to value type of GGUF (``enum gguf_type`` in ``ggml/include/gguf.h``)."""


@dataclass(frozen=True)
class TensorType:
    """How one ggml tensor type is stored.

    Attributes
    ----------
    name
        Name that ggml gives the type, such as ``"q4_K"``.
    type_id
        Number of the type in a file (``enum ggml_type`` in ``ggml/include/ggml.h``).
    block
        Values per block; the rows of a tensor are a whole number of blocks.
    block_bytes
        Bytes per block.
    """

    name: str
    type_id: int
    block: int
    block_bytes: int


TENSOR_TYPES: dict[str, TensorType] = {
    name: TensorType(name, type_id, block, block_bytes)
    for name, type_id, block, block_bytes in (
        ("f32", 0, 1, 4),
        ("f16", 1, 1, 2),
        ("q4_0", 2, 32, 18),
        ("q4_1", 3, 32, 20),
        ("q5_0", 6, 32, 22),
        ("q5_1", 7, 32, 24),
        ("q8_0", 8, 32, 34),
        ("q2_K", 10, 256, 84),
        ("q3_K", 11, 256, 110),
        ("q4_K", 12, 256, 144),
        ("q5_K", 13, 256, 176),
        ("q6_K", 14, 256, 210),
        ("iq2_xxs", 16, 256, 66),
        ("iq2_xs", 17, 256, 74),
        ("iq3_xxs", 18, 256, 98),
        ("iq1_s", 19, 256, 50),
        ("iq4_nl", 20, 32, 18),
        ("iq3_s", 21, 256, 110),
        ("iq2_s", 22, 256, 82),
        ("iq4_xs", 23, 256, 136),
        ("iq1_m", 29, 256, 56),
        ("bf16", 30, 1, 2),
        ("tq1_0", 34, 256, 54),
        ("tq2_0", 35, 256, 66),
        ("mxfp4", 39, 32, 17),
        ("nvfp4", 40, 64, 36),
    )
}
"""Weight types by the name ggml gives them. Block shapes: ``ggml/src/ggml-common.h`` of upstream b11434."""


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
        Key of `TENSOR_TYPES`.
    data
        The stored bytes.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    data: bytes


def encode(
    values: npt.NDArray[np.float32], type_name: str, quantize: QuantizeRows | None = None
) -> bytes:
    """Turn float32 values into the bytes of a ggml type.

    ``f32``, ``f16``, ``bf16`` and ``q8_0`` are done here; any other type goes through `quantize`.

    Parameters
    ----------
    values
        Any shape; the last axis is the row and must be a whole number of blocks.
    type_name
        Key of `TENSOR_TYPES`.
    quantize
        Quantiser for the other types. By default the native library's.

    Raises
    ------
    ValueError
        If the type is unknown, the row is not a whole number of blocks, or the quantiser returns the wrong size.
    """
    kind = TENSOR_TYPES.get(type_name)
    if kind is None:
        msg = f"unknown tensor type {type_name!r}; choose one of {', '.join(TENSOR_TYPES)}"
        raise ValueError(msg)
    row = values.shape[-1]
    if row % kind.block:
        msg = f"{type_name} packs {kind.block} values per block, which does not divide a row of {row}; widen the row"
        raise ValueError(msg)
    rows = np.ascontiguousarray(values, dtype="<f4").reshape(-1, row)
    own = _ENCODERS.get(type_name)
    if own is not None:
        return own(rows)
    data = (quantize or _native_quantize)(type_name, rows)
    expected_bytes = rows.size // kind.block * kind.block_bytes
    if len(data) != expected_bytes:
        msg = f"quantising {rows.shape} to {type_name} gave {len(data)} bytes where {expected_bytes} were expected"
        raise ValueError(msg)
    return data


def write_gguf(path: Path, metadata: Mapping[str, MetaValue], tensors: Sequence[Tensor]) -> None:
    """Write a GGUF file, replacing `path` if it exists.

    Parameters
    ----------
    path
        File to write; its directory must exist.
    metadata
        Keys in file order. ``general.architecture`` is up to the caller.
    tensors
        Tensors in file order.

    Raises
    ------
    ValueError
        If a metadata value has no GGUF type, a tensor's byte count does not fit its shape and type, or two
        tensors share a name.
    """
    if len({tensor.name for tensor in tensors}) != len(tensors):
        msg = f"two tensors of {path.name} share a name"
        raise ValueError(msg)
    body = b"".join(_pack_string(key) + _pack_value(key, value) for key, value in metadata.items())
    table = bytearray()
    offset = 0
    for tensor in tensors:
        kind = TENSOR_TYPES[tensor.type_name]
        n_bytes = int(np.prod(tensor.shape, dtype=np.int64)) // kind.block * kind.block_bytes
        if len(tensor.data) != n_bytes:
            msg = f"tensor {tensor.name} holds {len(tensor.data)} bytes where {tensor.shape} {kind.name} has {n_bytes}"
            raise ValueError(msg)
        table += _pack_string(tensor.name) + struct.pack("<I", len(tensor.shape))
        table += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        table += struct.pack("<IQ", kind.type_id, offset)
        offset += _padded(n_bytes)
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", GGUF_VERSION, len(tensors), len(metadata)) + body + table)
        _pad(file)
        for tensor in tensors:
            file.write(tensor.data)
            _pad(file)


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _pad(file: BinaryIO) -> None:
    position = file.tell()
    file.write(bytes(_padded(position) - position))


def _pack_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _pack_value(key: str, value: MetaValue) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _pack_string(value)
    if isinstance(value, (list, tuple)):
        head = struct.pack("<IIQ", _ARRAY, _STRING, len(value))
        return head + b"".join(_pack_string(item) for item in value)
    array = _typed(value)
    type_id = _SCALAR_IDS.get(array.dtype.name)
    if type_id is None or array.ndim > 1:
        msg = f"metadata {key!r} is a {array.ndim}-dimensional {array.dtype}, which GGUF cannot hold"
        raise ValueError(msg)
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
    return (rounded >> np.uint32(16)).astype("<u2").tobytes()


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
    # imported only here: the writer and its unit tests work without the native library
    from pylucebox._quantize import quantize_rows  # noqa: PLC0415

    return quantize_rows(type_name, rows)
