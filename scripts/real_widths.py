"""A random model with the widths of Qwen3.8-Flash-Next, for scripts that measure.

2560 in 4 streams, 248,320 tokens, 10 of the experts a token, few blocks and the MTP block. It is made by repeating the
weights of a narrower one, which costs the same to read and to multiply, and little memory to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pylucebox._gguf import GgufModel, TensorInfo, read_model
from pylucebox._gguf_write import MetaPair, TensorPlan, write_gguf
from pylucebox.testing import REAL_WIDTHS, write_tiny_model
from pylucebox.testing._metadata import make_metadata
from pylucebox.testing._vocab import byte_vocabulary

__all__ = ["N_VOCAB", "write_model"]

N_VOCAB = 248_320

# What is written first, and then repeated: experts, and tokens.
N_EXPERT_WRITTEN, VOCAB_WRITTEN = 16, 4096


def write_model(path: Path, *, weight_type: str, n_expert: int, n_layer: int = REAL_WIDTHS.n_layer) -> Path:
    """Write the model, piece by piece, in place of a file that is there.

    Parameters
    ----------
    path
        The file.
    weight_type
        ggml type of the matrices.
    n_expert
        Experts of a block, 10 or more.
    n_layer
        Blocks of the trunk, a multiple of four.
    """
    spec = replace(REAL_WIDTHS, kind="random", weight_type=weight_type, n_expert=n_expert, n_layer=n_layer)
    metadata = make_metadata(spec, byte_vocabulary(N_VOCAB), has_trunk=True, has_draft_block=True)
    narrow = replace(spec, n_expert=N_EXPERT_WRITTEN, vocab_multiple=VOCAB_WRITTEN)
    source = read_model(write_tiny_model(path.with_suffix(".part.gguf"), narrow, extra_metadata=metadata).model)
    pairs = [MetaPair(key, source.head.read_bytes(*span)) for key, span in source.head.value_spans.items()]
    plans = [repeated(source, tensor, n_expert) for tensor in source.tensors.values()]
    write_gguf(path, pairs, plans, source="", overwrite=True)
    source.path.unlink()
    return path


def repeated(source: GgufModel, tensor: TensorInfo, n_expert: int) -> TensorPlan:
    """Return a tensor with the rows or the experts of the narrower model over and over."""
    shape = list(tensor.shape)
    if tensor.name in ("token_embd.weight", "output.weight"):
        shape[1] = N_VOCAB
    elif "_exps." in tensor.name:
        shape[2] = n_expert
    elif "ffn_gate_inp." in tensor.name:
        rows = np.random.default_rng(0).standard_normal((n_expert, shape[0]), np.float32) / shape[0] ** 0.5
        shape[1] = n_expert
        return plan(tensor, shape, rows.tobytes)  # a token picks its experts among all of them
    return plan(tensor, shape, lambda: source.read_tensor(tensor.name))


def plan(tensor: TensorInfo, shape: Sequence[int], read: Callable[[], bytes]) -> TensorPlan:
    """Return what to write: the rows that `read` gives, from the beginning again where there are too few."""
    held: list[bytes] = []

    def read_rows(first: int, count: int) -> bytes:
        data = held[0] if held else read()
        held[:] = [data]
        n = len(data) // made.row_bytes
        begin, end = first % n, first % n + count
        found = (data * -(-end // n))[begin * made.row_bytes : end * made.row_bytes]
        if first + count == made.n_rows:
            held.clear()
        return found

    made = TensorPlan(name=tensor.name, shape=tuple(shape), type_name=tensor.type_name, read_rows=read_rows)
    return made
