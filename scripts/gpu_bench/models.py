"""Models with the widths of Qwen3.8-Flash-Next, few layers and random weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_bench.random_blocks import random_rows
from pylucebox._gguf import read_model
from pylucebox._gguf_write import MetaPair, TensorPlan
from pylucebox._gguf_write import write_gguf as write_planned
from pylucebox.testing import REAL_WIDTHS, TinySpec
from pylucebox.testing._gguf_writer import Tensor, write_gguf
from pylucebox.testing._metadata import make_metadata
from pylucebox.testing._tiny import stored_type
from pylucebox.testing._vocab import byte_vocabulary
from pylucebox.testing._weights import WeightMaker

__all__ = ["model_spec", "write_model"]

HEAD_TYPE = "q6_K"
PERIOD = 4
"""Layers after which their kinds repeat; what only one layer has is in one of the first four."""
LAYER = re.compile(r"^blk\.\d+\.")
N_LARGE = 1 << 18
"""Values from which on a tensor is random blocks and not made value by value."""

EMBEDDING_DEVIATION, HEAD_DEVIATION = 1.0, 0.05

Array = npt.NDArray[np.float32]


def model_spec(weight_type: str, *, n_layer: int, n_expert: int, n_vocab: int, n_ctx: int, real: bool) -> TinySpec:
    """Return what to write; without `real` the widths are small, for a trial on a CPU."""
    small = TinySpec(n_embd=256, hc_low_rank=256, n_head=4, ssm_dt_rank=8, n_ff_exp=256, n_ff_shexp=256)
    return replace(
        REAL_WIDTHS if real else small,
        kind="random",
        weight_type=weight_type,
        n_layer=n_layer,
        n_expert=n_expert,
        vocab_multiple=n_vocab,
        n_ctx_train=n_ctx,
    )


class _Shapes(WeightMaker):
    """Makes small tensors as they are, and of large ones only the shape."""

    def _normal(self, name: str, shape: tuple[int, ...], deviation: float, mean: float = 0.0) -> Array:
        if math.prod(shape) < N_LARGE:
            return super()._normal(name, shape, deviation, mean)
        return np.ones(shape, np.float32)


def write_model(path: Path, spec: TinySpec) -> Path:
    """Write a model with its MTP block inside, unless it is there, and return the path."""
    if path.is_file():
        return path
    metadata = make_metadata(spec, byte_vocabulary(spec.vocab_multiple), has_trunk=True, has_draft_block=True)
    head = path.with_suffix(".head")
    write_gguf(head, metadata, [Tensor("none", (1,), "f32", bytes(4))])
    source = read_model(head)
    pairs = [MetaPair(key, source.head.read_bytes(*span)) for key, span in source.head.value_spans.items()]
    write_planned(path, pairs, list(_plans(spec)), source="", overwrite=True, resumable=False)
    head.unlink()
    return path


def _plans(spec: TinySpec) -> Iterator[TensorPlan]:
    # one expert, few tokens and few layers are made; the rest has the shape of theirs
    n_made = min(spec.n_layer, 2 * PERIOD)
    narrow = replace(spec, n_expert=1, n_expert_used=1, vocab_multiple=512, n_layer=n_made)
    maker = _Shapes(narrow, byte_vocabulary(narrow.vocab_multiple))
    made = maker.trunk()
    for name, values in made.items():
        yield _plan(name, values, spec)
    for layer in range(n_made, spec.n_layer):
        like, block = f"blk.{PERIOD + layer % PERIOD}.", f"blk.{layer}."
        for name, values in made.items():
            if name.startswith(like):
                yield _plan(block + name.removeprefix(like), values, spec)
    for name, values in maker.draft_block().items():
        yield _plan(name.replace(f"blk.{n_made}.", f"blk.{spec.n_layer}."), values, spec)


def _plan(name: str, values: Array, spec: TinySpec) -> TensorPlan:
    shape = values.shape
    if name in ("token_embd.weight", "output.weight"):
        shape = (spec.vocab_multiple, shape[1])
    elif "_exps." in name:
        shape = (spec.n_expert, *shape[1:])
    elif "ffn_gate_inp." in name:
        shape = (spec.n_expert, shape[1])
        values = np.random.default_rng(0).standard_normal(shape, np.float32) * np.float32(2 / shape[1] ** 0.5)
    type_name = stored_type(name, shape, HEAD_TYPE if name == "output.weight" else spec.weight_type)
    if type_name == "f32":
        data = np.ascontiguousarray(values, "<f4").tobytes()
        read: Any = lambda first, count: data[first * 4 * shape[-1] : (first + count) * 4 * shape[-1]]  # noqa: E731
    else:
        deviation = {"token_embd.weight": EMBEDDING_DEVIATION, "output.weight": HEAD_DEVIATION}.get(
            name, shape[-1] ** -0.5
        )
        read = random_rows(LAYER.sub("", name), type_name, shape[-1], deviation)
    return TensorPlan(name=name, shape=tuple(reversed(shape)), type_name=type_name, read_rows=read)
