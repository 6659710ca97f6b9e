"""Write an MTP file again in each of the layouts in circulation, from one in the standard layout.

Tensors are copied byte by byte, so a block drafts the same in every layout that holds the same values. The letters are
those of the project's list of layouts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pylucebox._gguf import GgufModel, read_model
from pylucebox._gguf_write import MetaPair, TensorPlan, write_gguf


@dataclass(frozen=True)
class Stored:
    """A tensor: shape in ggml's order, type and bytes."""

    shape: tuple[int, ...]
    type_name: str
    data: bytes

    def rows(self) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        """Return the bytes, one row for each row of the tensor."""
        return np.frombuffer(self.data, np.uint8).reshape(-1, len(self.data) * self.shape[0] // self.n_values())

    def n_values(self) -> int:
        """Return the number of elements."""
        return int(np.prod(self.shape))


Tensors = dict[str, Stored]
Layout = Callable[[Tensors, int, Tensors], Tensors]
"""``layout(tensors of the MTP file, number of its block, tensors of the model)``."""


def load(path: Path) -> tuple[GgufModel, Tensors]:
    """Read a file whole."""
    model = read_model(path)
    stored = {t.name: Stored(t.shape, t.type_name, model.read_tensor(t.name)) for t in model.tensors.values()}
    return model, stored


def metadata_of(*files: GgufModel) -> list[MetaPair]:
    """Return the metadata of files, later ones counting where they differ."""
    merged = {key: file.head.read_bytes(*span) for file in files for key, span in file.head.value_spans.items()}
    return [MetaPair(key, value) for key, value in merged.items()]


def with_ratios(metadata: list[MetaPair], ratios: Sequence[int]) -> list[MetaPair]:
    """Return metadata with these tokens per pooled key, one number a block; 0 is a block with dense attention."""
    key = "qwen4exp.attention.compress_ratios"
    packed = struct.pack(f"<IIQ{len(ratios)}i", 9, 5, len(ratios), *ratios)
    return [*(pair for pair in metadata if pair.key != key), MetaPair(key, packed)]


def save(path: Path, metadata: list[MetaPair], tensors: Tensors) -> Path:
    """Write a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(path, metadata, [_plan(name, tensor) for name, tensor in tensors.items()], source="", overwrite=True)
    return path


def _plan(name: str, tensor: Stored) -> TensorPlan:
    row_bytes = len(tensor.data) * tensor.shape[0] // tensor.n_values()
    return TensorPlan(
        name=name,
        shape=tensor.shape,
        type_name=tensor.type_name,
        read_rows=lambda first, count: tensor.data[first * row_bytes : (first + count) * row_bytes],
    )


# ---- changes ---------------------------------------------------------------------------------------------


def renamed(tensors: Tensors, names: dict[str, str]) -> Tensors:
    """Rename tensors; each must be there."""
    assert tensors.keys() >= names.keys()
    return {names.get(name, name): tensor for name, tensor in tensors.items()}


def without(tensors: Tensors, names: Iterable[str]) -> Tensors:
    """Leave tensors out; each must be there."""
    left_out = set(names)
    assert tensors.keys() >= left_out
    return {name: tensor for name, tensor in tensors.items() if name not in left_out}


def split_rows(tensor: Stored) -> tuple[Stored, Stored]:
    """Cut each row in two halves of equal length."""
    rows = tensor.rows()
    middle = rows.shape[1] // 2
    shape = (tensor.shape[0] // 2, *tensor.shape[1:])
    halves = rows[:, :middle], rows[:, middle:]
    left, right = (replace(tensor, shape=shape, data=half.tobytes()) for half in halves)
    return left, right


def draft_ids(ids: Iterable[int]) -> Stored:
    """Return a list of draft ids."""
    values = np.asarray(list(ids), "<i8")
    return Stored((len(values),), "i64", values.tobytes())


def picked(tensor: Stored, ids: Iterable[int]) -> Stored:
    """Return the rows of a head that belong to some ids."""
    rows = tensor.rows()[list(ids)]
    return replace(tensor, shape=(tensor.shape[0], len(rows)), data=rows.tobytes())


def mixer(block: int, name: str = "nextn.hc_head") -> list[str]:
    """Return the names of the block's mixer: norm, down, up."""
    return [f"blk.{block}.{name}_{kind}.weight" for kind in ("norm", "down", "up")]


TRUNK_MIXER = [f"output_hc_{kind}.weight" for kind in ("norm", "down", "up")]
TABLES = ["token_embd.weight", "output.weight"]


# ---- layouts -----------------------------------------------------------------------------------------------


def layout_b(tensors: Tensors, block: int, model: Tensors) -> Tensors:  # noqa: ARG001
    """Borrow embedding and head."""
    return without(tensors, TABLES)


def layout_c(tensors: Tensors, block: int, model: Tensors) -> Tensors:  # noqa: ARG001
    """Give the mixer the name of the trunk's."""
    return renamed(tensors, dict(zip(mixer(block), TRUNK_MIXER, strict=True)))


def layout_d(tensors: Tensors, block: int, model: Tensors) -> Tensors:  # noqa: ARG001
    """Bring the trunk's mixer along."""
    return tensors | {name: model[name] for name in TRUNK_MIXER}


def layout_e(tensors: Tensors, block: int, model: Tensors, ids: Iterable[int] | None = None) -> Tensors:  # noqa: ARG001
    """Split the projection, shorten the mixer's names, and list the head's tokens, here all in reverse order."""
    changed = renamed(tensors, dict(zip(mixer(block), mixer(block, "nextn.hc"), strict=True)))
    left, right = split_rows(changed.pop(f"blk.{block}.nextn.eh_proj.weight"))
    changed |= {f"blk.{block}.nextn.fc_embd.weight": left, f"blk.{block}.nextn.fc_hidden.weight": right}
    head = changed["output.weight"]
    ids = list(range(head.shape[1]))[::-1] if ids is None else list(ids)
    return changed | {"output.weight": picked(head, ids), "d2t": draft_ids(ids)}


def layout_f(tensors: Tensors, block: int, model: Tensors) -> Tensors:
    """Store the mixer's norm twice, as the shared head's and under the name of the trunk's."""
    changed = layout_c(tensors, block, model)
    return changed | {f"blk.{block}.nextn.shared_head_norm.weight": changed["output_hc_norm.weight"]}


def layout_f_once(tensors: Tensors, block: int, model: Tensors) -> Tensors:
    """Store the mixer's norm as the shared head's only."""
    return without(layout_f(tensors, block, model), ["output_hc_norm.weight"])


def layout_i(tensors: Tensors, block: int, model: Tensors) -> Tensors:  # noqa: ARG001
    """Give the block tables of its own, beside others that are of no use."""
    own = {f"blk.{block}.nextn.embed_tokens.weight": tensors["token_embd.weight"]}
    own[f"blk.{block}.nextn.shared_head_head.weight"] = tensors["output.weight"]
    head = tensors["output.weight"]
    useless = replace(head, data=head.rows()[::-1].tobytes())
    return tensors | own | {"output.weight": useless}


def layout_j(tensors: Tensors, block: int, model: Tensors) -> Tensors:  # noqa: ARG001
    """Number the block from 0."""
    return {name.replace(f"blk.{block}.", "blk.0."): tensor for name, tensor in tensors.items()}


LAYOUTS: dict[str, Layout] = {
    "A": lambda tensors, _block, _model: tensors,
    "B": layout_b,
    "C": layout_c,
    "D": layout_d,
    "E": layout_e,
    "F": layout_f,
    "F, norm once": layout_f_once,
    "I": layout_i,
    "J": layout_j,
}
