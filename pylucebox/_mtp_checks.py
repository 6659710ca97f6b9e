"""Compare the tensors of an MTP block with what the metadata of its file makes them be.

What does not fit would stop the loader with less to go by, end the process, or draft in vain: norms that lack the one
which converters add draft without an error and never get a token right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pylucebox._errors import ModelFormatError
from pylucebox._gguf import ArraySpan, GgufModel

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "ARCH",
    "PER_LAYER_KEYS",
    "Misfit",
    "dims",
    "expected_shapes",
    "find_misfit",
    "fits",
    "n_nextn",
    "n_trunk_layers",
    "n_vocab",
    "needed_int",
    "of_block",
]

ARCH: Final = "qwen4exp"
"""The architecture this build drafts for."""

# Keys that llama.cpp b11434 reads as one value or one per layer (load_arch_hparams of qwen4exp, load_hparams).
PER_LAYER_KEYS: Final = tuple(
    f"{ARCH}.{key}"
    for key in (
        "attention.head_count",
        "attention.head_count_kv",
        "attention.recurrent_layers",
        "attention.compress_ratios",
        "feed_forward_length",
        "expert_feed_forward_length",
        "expert_used_count",
    )
)

_MAX_NEGATIVE: Final = 1 / 8
"""Largest share of a norm's weights that may be negative.

Checkpoints store the weights of qwen4exp's norms less one, and converters add the one. Weights start at one and hardly
ever cross zero: of the built-in model's norms none has more than 0.03 negative weights; less one, the norms that take
embedding and hidden state into the block have 1.0 and 0.56, that of its attention 0.21. Where all of a norm's weights
are above two (the mixer's there) a one that is missing cannot be seen; it costs drafts, never text."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """A tensor, or a list in the metadata, that does not fit.

    Attributes
    ----------
    tensor
        Its name in the file; of a metadata key where that is at fault.
    seen, expected
        What it is and what it should be, in words.
    """

    tensor: str
    seen: str
    expected: str

    def __str__(self) -> str:
        """Say it in a sentence."""
        return f"{self.tensor} has {self.seen}, {self.expected} is expected"


def n_nextn(model: GgufModel) -> int:
    """Return how many MTP blocks a file says it has."""
    return model.head.get_int(f"{ARCH}.nextn_predict_layers", 0) or 0


def n_trunk_layers(model: GgufModel) -> int | None:
    """Return the number of layers without MTP blocks; None when the file does not say how many layers it has."""
    n_layer = model.head.get_int(f"{ARCH}.block_count")
    return None if n_layer is None else n_layer - n_nextn(model)


def n_vocab(model: GgufModel) -> int | None:
    """Return the size of the vocabulary; None when the file does not tell."""
    tokens = model.head.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, ArraySpan):
        return tokens.length
    return model.head.get_int(f"{ARCH}.vocab_size")


def needed_int(model: GgufModel, key: str) -> int:
    """Return an integer of the metadata.

    Raises
    ------
    ModelFormatError
        It is absent or of another type.
    """
    value = model.head.get_int(key)
    if value is None:
        raise ModelFormatError(f"cannot read {str(model.path)!r}", path=model.path, seen=f"it has no {key}")
    return value


def find_misfit(model: GgufModel, tensors: Mapping[str, tuple[str, ...]]) -> Misfit | None:
    """Look for the first tensor that does not fit.

    Parameters
    ----------
    model
        Headers of the file.
    tensors
        Names in the file by standard name, as in `MtpBlock.tensors`.

    Raises
    ------
    ModelFormatError
        Metadata that is needed is missing or of the wrong type.
    LoadError
        The file cannot be read any more.
    """
    n_layer = needed_int(model, f"{ARCH}.block_count")
    for key in PER_LAYER_KEYS:
        value = model.head.metadata.get(key)
        if isinstance(value, tuple) and len(value) != n_layer:
            return Misfit(key, f"{len(value)} entries", f"one for each of {n_layer} layers")
    expected = expected_shapes(model)
    for standard, stored in tensors.items():
        misfit = _shape_misfit(model, standard, stored, expected)
        if misfit:
            return misfit
    return _draft_ids_misfit(model, tensors) or _norm_misfit(model, tensors)


# ---- shapes ----------------------------------------------------------------------------------------------

Dim = int | None  # None: the metadata does not tell


def expected_shapes(model: GgufModel) -> dict[str, tuple[Dim, ...]]:
    """Return the shapes in ggml's order by standard name; gammas of several streams flat."""
    n_embd = needed_int(model, f"{ARCH}.embedding_length")
    n_streams = needed_int(model, f"{ARCH}.hyper_connection.count")
    low_rank = needed_int(model, f"{ARCH}.hyper_connection.low_rank")
    wide = n_embd * n_streams
    shapes: dict[str, tuple[Dim, ...]] = {"nextn.eh_proj": (2 * n_embd, n_embd)}
    shapes |= {"nextn.enorm": (n_embd,), "nextn.hnorm": (wide,)}
    for mixer in ("nextn.hc_head", "hc_attn", "hc_ffn"):
        shapes |= {f"{mixer}_norm": (wide,), f"{mixer}_down": (wide, low_rank), f"{mixer}_up": (low_rank, wide)}
        shapes[f"{mixer}_inject"] = (wide, n_streams)
    shapes |= _attention_shapes(model, n_embd) | _expert_shapes(model, n_embd)
    shapes |= {"token_embd": (n_embd, n_vocab(model)), "output": (n_embd, n_vocab(model))}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _attention_shapes(model: GgufModel, n_embd: int) -> dict[str, tuple[Dim, ...]]:
    n_head, n_kv = of_block(model, "attention.head_count"), of_block(model, "attention.head_count_kv")
    key_width, value_width = (of_block(model, f"attention.{name}_length") for name in ("key", "value"))
    n_index = of_block(model, "attention.indexer.head_count")
    index_width = of_block(model, "attention.indexer.key_length")
    query, key, value = _times(2, n_head, key_width), _times(n_kv, key_width), _times(n_kv, value_width)
    return {
        "attn_q": (n_embd, query),  # queries and their gates
        "attn_k": (n_embd, key),
        "attn_v": (n_embd, value),
        "attn_output": (_times(n_head, key_width), n_embd),
        "attn_q_norm": (key_width,),
        "attn_k_norm": (key_width,),
        "indexer.q_proj": (n_embd, _times(n_index, index_width)),
        "indexer.k_proj": (n_embd, index_width),
        "indexer.q_norm": (index_width,),
        "indexer.k_norm": (index_width,),
    }


def _expert_shapes(model: GgufModel, n_embd: int) -> dict[str, tuple[Dim, ...]]:
    n_expert, n_ff = of_block(model, "expert_count"), of_block(model, "expert_feed_forward_length")
    n_shared = of_block(model, "expert_shared_feed_forward_length")
    return {
        "ffn_gate_inp": (n_embd, n_expert),
        "ffn_gate_exps": (n_embd, n_ff, n_expert),
        "ffn_up_exps": (n_embd, n_ff, n_expert),
        "ffn_gate_up_exps": (n_embd, _times(2, n_ff), n_expert),
        "ffn_down_exps": (n_ff, n_embd, n_expert),
        "ffn_gate_inp_shexp": (n_embd,),
        "ffn_gate_shexp": (n_embd, n_shared),
        "ffn_up_shexp": (n_embd, n_shared),
        "ffn_down_shexp": (n_shared, n_embd),
    }


def of_block(model: GgufModel, key: str) -> Dim:
    """Return the MTP block's value of a key that may be given for each layer; None when it is absent."""
    value = model.head.metadata.get(f"{ARCH}.{key}")
    if isinstance(value, tuple):
        block = needed_int(model, f"{ARCH}.block_count") - 1
        # too short a list makes it 0, which no tensor is
        item = value[block] if len(value) > block else 0
        return item if isinstance(item, int) else None
    return model.head.get_int(f"{ARCH}.{key}")


def _times(*factors: Dim) -> Dim:
    return None if None in factors else math.prod(factor for factor in factors if factor is not None)


def _shape_misfit(
    model: GgufModel, standard: str, stored: tuple[str, ...], expected: Mapping[str, tuple[Dim, ...]]
) -> Misfit | None:
    shape = expected.get(standard)
    if shape is None:
        return None
    if standard == "output.weight" and "d2t" in model.tensors:
        shape = (shape[0], model.tensors["d2t"].n_elements)
    if len(stored) > 1:  # halves of rows
        shape = (None if shape[0] is None else shape[0] // len(stored), *shape[1:])
    for name in stored:
        seen = model.tensors[name].shape
        if not fits(seen, shape):
            return Misfit(name, f"shape {dims(seen)}", f"shape {dims(shape)}")
    types = {model.tensors[name].type_name for name in stored}
    if len(types) > 1:
        return Misfit(stored[1], f"type {model.tensors[stored[1]].type_name}", f"that of {stored[0]}")
    return None


def fits(seen: tuple[int, ...], expected: tuple[Dim, ...]) -> bool:
    """Tell whether a shape is the expected one; gammas may be stored per stream, and rows end in dimensions of 1."""
    if len(expected) == 1 and len(seen) == 2 and expected[0] == seen[0] * seen[1]:
        return True
    trimmed = list(seen)
    while len(trimmed) > len(expected) and trimmed[-1] == 1:
        trimmed.pop()
    return len(trimmed) == len(expected) and all(b is None or a == b for a, b in zip(trimmed, expected, strict=True))


def dims(shape: tuple[Dim, ...]) -> str:
    """Write a shape."""
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"


# ---- contents --------------------------------------------------------------------------------------------


def _draft_ids_misfit(model: GgufModel, tensors: Mapping[str, tuple[str, ...]]) -> Misfit | None:
    import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

    tensor, size = model.tensors.get("d2t"), n_vocab(model)
    if "d2t" not in tensors or tensor is None or size is None:
        return None
    if "output.weight" not in tensors:
        return Misfit("d2t", "no LM head beside it", "a head with one row for each id")
    if tensor.type_name != "i64" or len(tensor.shape) != 1 or not 0 < tensor.n_elements <= size:
        seen = f"{tensor.type_name} values in shape {dims(tensor.shape)}"
        return Misfit(tensor.name, seen, f"a list of 1 to {size} i64 values")
    ids = np.frombuffer(model.read_tensor(tensor.name), "<i8")
    if ids.min() < 0 or ids.max() >= size or len(np.unique(ids)) < len(ids):
        seen = f"ids from {ids.min()} to {ids.max()}, {len(np.unique(ids))} different ones of {len(ids)}"
        return Misfit(tensor.name, seen, f"different ids from 0 to {size - 1}")
    return None


def _norm_misfit(model: GgufModel, tensors: Mapping[str, tuple[str, ...]]) -> Misfit | None:
    import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

    for standard, stored in tensors.items():
        if not standard.endswith("norm.weight"):
            continue
        values = _floats(model, stored[0])
        if values is None:
            return Misfit(stored[0], f"type {model.tensors[stored[0]].type_name}", "f32, f16 or bf16")
        share = float(np.mean(~(values >= 0)))  # nan is as bad
        if share > _MAX_NEGATIVE:
            with np.errstate(all="ignore"):  # the values of a damaged file may be anything
                mean = values.mean(dtype=np.float64)
            seen = f"{share:.0%} negative weights (mean {mean:.2f})"
            return Misfit(stored[0], seen, "the one that checkpoints leave out, added to each,")
    return None


def _floats(model: GgufModel, name: str) -> npt.NDArray[np.float32] | None:
    import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

    data, type_name = model.read_tensor(name), model.tensors[name].type_name
    if type_name == "bf16":  # the upper half of a float32
        values: npt.NDArray[np.float32] = (np.frombuffer(data, "<u2").astype("<u4") << np.uint32(16)).view("<f4")
        return values
    if type_name not in ("f32", "f16"):
        return None
    return np.frombuffer(data, "<f4" if type_name == "f32" else "<f2").astype(np.float32)
