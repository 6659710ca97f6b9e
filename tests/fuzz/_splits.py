"""Cut a model file into splits as llama.cpp's tool does: the first has the metadata, each some of the tensors."""

from __future__ import annotations

import struct
from pathlib import Path

from _layout import layout_of

from pylucebox._gguf import read_file

_ALIGNMENT_BYTES = 32
_U16, _I32 = 2, 5


def split_model(model: Path, folder: Path, n_splits: int) -> list[Path]:
    """Write a model anew as `n_splits` files.

    Parameters
    ----------
    model
        A single file with the usual alignment.
    folder
        Where to write.
    n_splits
        How many, 2 or more.
    """
    content = model.read_bytes()
    layout = layout_of(content)
    tensors = list(read_file(model).tensors.values())
    data_at = -(-layout.end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    kinds = {
        field.owner: content[field.start : field.start + 4]
        for field in layout.fields
        if field.what == "kind" and field.start >= layout.tensors_at
    }
    n_keys = struct.unpack_from("<Q", content, 16)[0]
    paths = []
    for number in range(n_splits):
        own = tensors[number * len(tensors) // n_splits : (number + 1) * len(tensors) // n_splits]
        keys = content[layout.keys_at : layout.tensors_at] if number == 0 else b""
        keys += _key("split.no", _U16, struct.pack("<H", number))
        keys += _key("split.count", _U16, struct.pack("<H", n_splits))
        keys += _key("split.tensors.count", _I32, struct.pack("<i", len(tensors)))
        records, data = [], bytearray()
        for tensor in own:
            shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
            records.append(_text(tensor.name) + shape + kinds[tensor.name] + struct.pack("<Q", len(data)))
            data += content[data_at + tensor.offset :][: tensor.n_bytes]
            data += bytes(-len(data) % _ALIGNMENT_BYTES)
        head = b"GGUF" + struct.pack("<IQQ", 3, len(own), 3 + (n_keys if number == 0 else 0)) + keys + b"".join(records)
        path = folder / f"{model.stem}-{number + 1:05}-of-{n_splits:05}.gguf"
        path.write_bytes(head + bytes(-len(head) % _ALIGNMENT_BYTES) + data)
        paths.append(path)
    return paths


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value
