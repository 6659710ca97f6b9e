"""Metadata of an MTP file, made from that of the model it belongs to or of another MTP file.

Both describe the same architecture and carry the same tokenizer, and an MTP file fits a model exactly if they agree.
Values are copied as stored.
"""

from __future__ import annotations

import struct
from typing import Final

from pylucebox._errors import ModelFormatError
from pylucebox._gguf import GgufModel
from pylucebox._gguf_write import MetaPair, pack_bool, pack_text, pack_u32
from pylucebox._mtp_checks import ARCH, PER_LAYER_KEYS, n_nextn, n_trunk_layers

__all__ = ["sidecar_metadata"]

_BLOCK_COUNT: Final = f"{ARCH}.block_count"
_NEXTN: Final = f"{ARCH}.nextn_predict_layers"
_SHARED: Final = f"{ARCH}.nextn_shared_target_tensors"

# Of one file only, or of the trunk only.
_LEFT_OUT: Final = ("split.", "quantize.", "general.file_type", "general.size_label", f"{ARCH}.ple.", _SHARED)
_LEFT_OUT_KEYS: Final = (f"{ARCH}.embedding_length_per_layer_input", "general.name")

_ARRAY_HEAD: Final = struct.Struct("<IIQ")  # type number of an array, of its elements, count

# enum llama_ftype in include/llama.h, for the types that name one
_FILE_TYPES: Final = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}


def sidecar_metadata(model: GgufModel, *, type_name: str | None, borrows_tables: bool) -> list[MetaPair]:
    """Return the metadata of an MTP file.

    Parameters
    ----------
    model
        A model, with or without an MTP block of its own, or an MTP file.
    type_name
        Type of most tensors, for ``general.file_type``; None copies the key.
    borrows_tables
        Whether the file has neither embedding nor LM head.

    Raises
    ------
    ModelFormatError
        The file is of another architecture, or its layers cannot be counted.
    LoadError
        The file cannot be read any more.
    """
    arch, n_trunk = model.head.get_str("general.architecture"), n_trunk_layers(model)
    if arch != ARCH or n_trunk is None or n_trunk < 1:
        seen = f"its architecture is {arch}" if arch != ARCH else f"{_BLOCK_COUNT} leaves {n_trunk} layers for a trunk"
        raise ModelFormatError(f"cannot make an MTP file for {str(model.path)!r}", path=model.path, seen=seen)

    pairs = []
    for key, span in model.head.value_spans.items():
        if key == "general.file_type" and type_name is None:
            pairs.append(MetaPair(key, model.head.read_bytes(*span)))
        if key.startswith(_LEFT_OUT) or key in (*_LEFT_OUT_KEYS, _BLOCK_COUNT, _NEXTN):
            continue
        value = model.head.read_bytes(*span)
        if key in PER_LAYER_KEYS and not n_nextn(model):
            value = _with_block(model, key, value, n_trunk)
        pairs.append(MetaPair(key, value))
    name = (model.head.get_str("general.name") or model.path.stem).removesuffix(" MTP")
    pairs += [
        MetaPair("general.name", pack_text(f"{name} MTP")),
        MetaPair(_BLOCK_COUNT, pack_u32(n_trunk + 1)),
        MetaPair(_NEXTN, pack_u32(1)),
    ]
    if type_name in _FILE_TYPES:
        pairs.append(MetaPair("general.file_type", pack_u32(_FILE_TYPES[type_name])))
    if borrows_tables:
        pairs.append(MetaPair(_SHARED, pack_bool(True)))  # by which other loaders know such files
    return pairs


def _with_block(model: GgufModel, key: str, value: bytes, n_trunk: int) -> bytes:
    """Give a list with one entry per layer one more for the MTP block, that of the last layer with full attention."""
    held = model.head.metadata[key]
    if not isinstance(held, tuple) or len(held) != n_trunk:
        return value
    array, element, count = _ARRAY_HEAD.unpack_from(value)
    items = value[_ARRAY_HEAD.size :]
    size = len(items) // count
    like = _last_full_attention(model, n_trunk)
    return _ARRAY_HEAD.pack(array, element, count + 1) + items + items[like * size : (like + 1) * size]


def _last_full_attention(model: GgufModel, n_trunk: int) -> int:
    recurrent = model.head.metadata.get(f"{ARCH}.attention.recurrent_layers")
    if isinstance(recurrent, tuple) and len(recurrent) == n_trunk:
        full = [layer for layer, flag in enumerate(recurrent) if not flag]
    else:
        interval = model.head.get_int(f"{ARCH}.full_attention_interval", 4) or 4
        full = [layer for layer in range(n_trunk) if (layer + 1) % interval == 0]
    if not full:
        seen = "none of its layers has full attention"
        raise ModelFormatError(f"cannot make an MTP file for {str(model.path)!r}", path=model.path, seen=seen)
    return full[-1]
