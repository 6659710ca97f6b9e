"""Read the tensors of a GGUF file as float32, and write the file again with float32 tensors.

A float32 copy has exactly the weights of its source, so an engine that runs it can be compared with another
implementation to the last digits, without the rounding of activations that quantised kernels add.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pylucebox._dequantize import DECODERS
from pylucebox._errors import InvalidArgumentError
from pylucebox._gguf import GgufFile, read_file
from pylucebox._gguf_parse import DEFAULT_ALIGNMENT, TENSOR_TYPES
from pylucebox.testing._output import new_file

Array: TypeAlias = "npt.NDArray[np.float32]"

_TYPE_NUMBERS = {name: number for number, (name, *_) in TENSOR_TYPES.items()}
_FILE_TYPE = b"general.file_type"
_U32 = 4  # enum gguf_type in ggml/include/gguf.h
_ALL_F32 = 0  # enum llama_ftype in include/llama.h
_VERSION = 3


def read_f32(path: Path) -> dict[str, Array]:
    """Read all tensors of a file.

    Parameters
    ----------
    path
        A GGUF file with tensors of type f32, f16, bf16 and q8_0.

    Returns
    -------
    dict
        Arrays by name, in file order; shapes are in numpy order, rows first.

    Raises
    ------
    InvalidArgumentError
        A tensor is of another type.
    LoadError
        The file cannot be read or is no GGUF file.
    """
    return _decode(read_file(path), path.read_bytes())


def write_f32_copy(source: Path, target: Path) -> None:
    """Write a file again with the same values as f32.

    The metadata is copied byte by byte, except that ``general.file_type`` becomes 0, "all F32".

    Parameters
    ----------
    source
        A GGUF file with tensors of type f32, f16, bf16 and q8_0.
    target
        File to write, in place of one that is there; its directory must exist.

    Raises
    ------
    InvalidArgumentError
        A tensor is of another type.
    LoadError
        `source` cannot be read or is no GGUF file.
    OSError
        `target` cannot be written.
    """
    file, data = read_file(source), source.read_bytes()
    arrays = _decode(file, data)
    metadata = data[_HEAD.size : _table_start(file, data)]
    file_type = struct.pack("<Q", len(_FILE_TYPE)) + _FILE_TYPE + struct.pack("<I", _U32)
    at = metadata.find(file_type) + len(file_type)
    if at >= len(file_type):
        metadata = metadata[:at] + struct.pack("<I", _ALL_F32) + metadata[at + 4 :]

    alignment = _alignment(file)
    table, offset = b"", 0
    for name, array in arrays.items():
        table += _record(name, array.shape[::-1], "f32", offset)
        offset += array.nbytes + -array.nbytes % alignment
    with new_file(target) as out:
        out.write(_HEAD.pack(b"GGUF", _VERSION, len(arrays), len(file.metadata)) + metadata + table)
        out.write(bytes(-out.tell() % alignment))
        for array in arrays.values():
            out.write(array.astype("<f4", copy=False).tobytes())
            out.write(bytes(-array.nbytes % alignment))


_HEAD = struct.Struct("<4sIQQ")


def _record(name: str, shape: tuple[int, ...], type_name: str, offset: int) -> bytes:
    raw, n_dims = name.encode(), len(shape)
    layout = f"<Q{len(raw)}sI{n_dims}QIQ"
    return struct.pack(layout, len(raw), raw, n_dims, *shape, _TYPE_NUMBERS[type_name], offset)


def _table(file: GgufFile) -> bytes:
    return b"".join(_record(t.name, t.shape, t.type_name, t.offset) for t in file.tensors.values())


def _table_start(file: GgufFile, data: bytes) -> int:
    """Find where the metadata ends; the reader does not say, but the tensor table is unmistakable."""
    return data.index(_table(file), _HEAD.size)


def _alignment(file: GgufFile) -> int:
    return file.get_int("general.alignment") or DEFAULT_ALIGNMENT


def _decode(file: GgufFile, data: bytes) -> dict[str, Array]:
    end = _table_start(file, data) + len(_table(file))
    start = end + -end % _alignment(file)
    arrays = {}
    for tensor in file.tensors.values():
        decoder = DECODERS.get(tensor.type_name)
        if decoder is None:
            allowed = f"a file of {', '.join(DECODERS)} tensors"
            raise InvalidArgumentError(argument=tensor.name, value=tensor.type_name, allowed=allowed)
        at = start + tensor.offset
        arrays[tensor.name] = decoder(data[at : at + tensor.n_bytes]).reshape(tensor.shape[::-1])
    return arrays
