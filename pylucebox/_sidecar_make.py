"""Make an MTP file from a Hugging Face checkpoint, for a model that is there as GGUF.

Only the checkpoint's MTP tensors are read, and its embedding and LM head if they are wanted, a few megabytes at a time.
Metadata and tokenizer are those of the model, so the file fits it. What happens to the tensors is what llama.cpp's
converter does: one is added to the weights of the norms, which the checkpoint stores less one; the two halves of the
projection come side by side; what the checkpoint keeps in one tensor, such as queries and keys of the indexer or gate
and up projections of the experts, is taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from pylucebox._errors import InvalidArgumentError, ModelFormatError, StrPath
from pylucebox._gguf import GgufModel, read_model
from pylucebox._gguf_parse import TENSOR_TYPES
from pylucebox._gguf_write import TensorPlan, Written, write_gguf
from pylucebox._mtp_checks import ARCH, Misfit, dims, expected_shapes, fits, n_trunk_layers, needed_int
from pylucebox._quantize import quantize_rows
from pylucebox._safetensors import Checkpoint, StoredTensor
from pylucebox._sidecar_metadata import sidecar_metadata

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Rows = npt.NDArray[np.float32]

__all__ = ["make_sidecar"]

_BLOCKS: Final = {name: block for name, block, _ in TENSOR_TYPES.values()}

# Small tensors on which much depends stay f32, those that llama.cpp's converter leaves so.
_KEPT_F32: Final = (
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "indexer.q_proj.weight",
    "indexer.k_proj.weight",
)


def make_sidecar(
    checkpoint: StrPath,
    model: StrPath,
    target: StrPath,
    *,
    type_name: str = "q8_0",
    own_tables: bool = True,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Make an MTP file.

    Parameters
    ----------
    checkpoint
        Folder with the checkpoint's safetensors files; those without MTP tensors may be missing.
    model
        The GGUF model to draft for, made from the same checkpoint.
    target
        File to write; its directory must exist.
    type_name
        ggml type of the matrices. A matrix whose rows are no whole number of its blocks becomes f16.
    own_tables
        Whether embedding and LM head are written, too; without them the file is for loaders that take them from the
        model, as this one does.
    overwrite
        Whether `target` may be replaced.
    progress
        Called with bytes done and bytes in all.

    Raises
    ------
    InvalidArgumentError
        There is no such type.
    ModelFormatError
        The checkpoint has no MTP block or one in a form that is not known, it does not fit the model, or a file is
        damaged.
    ModelNotFoundError, LoadError
        A file is not there or cannot be read.
    WriteError
        The target cannot be written.
    """
    _check_type(type_name)
    for_model = read_model(model)
    metadata = sidecar_metadata(for_model, type_name=type_name, borrows_tables=not own_tables)
    source = _Source(Checkpoint(checkpoint), for_model)
    tensors = list(source.tensors(own_tables=own_tables))
    _check(for_model, source.checkpoint.folder, tensors)
    number = n_trunk_layers(for_model)
    plans = [_plan(tensor, number, type_name) for tensor in tensors]
    identity = source.checkpoint.identity([part for tensor in tensors for part in tensor.rows.parts()])
    return write_gguf(Path(target), metadata, plans, source=identity, overwrite=overwrite, progress=progress)


# ---- rows of a tensor, wherever they come from -----------------------------------------------------------


class _Rows(Protocol):
    """Rows of float32 values that are read when asked for."""

    @property
    def n_rows(self) -> int: ...

    @property
    def row(self) -> int: ...

    def read(self, first: int, count: int) -> Rows: ...

    def parts(self) -> list[StoredTensor]: ...


@dataclass(frozen=True)
class _Stored:
    """A tensor of the checkpoint, with `plus` added to its values."""

    checkpoint: Checkpoint
    tensor: StoredTensor
    plus: float = 0.0

    @property
    def n_rows(self) -> int:
        return self.tensor.n_rows

    @property
    def row(self) -> int:
        return self.tensor.row

    def read(self, first: int, count: int) -> Rows:
        values = self.checkpoint.read_rows(self.tensor, first, count)
        return values + values.dtype.type(self.plus) if self.plus else values

    def parts(self) -> list[StoredTensor]:
        return [self.tensor]


@dataclass(frozen=True)
class _Part:
    """Rows `start` to `stop` of each group of `group` rows."""

    whole: _Rows
    group: int
    start: int
    stop: int

    @property
    def n_rows(self) -> int:
        return self.whole.n_rows // self.group * (self.stop - self.start)

    @property
    def row(self) -> int:
        return self.whole.row

    def read(self, first: int, count: int) -> Rows:
        import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

        size, pieces = self.stop - self.start, []
        while count:
            number, at = divmod(first, size)
            n = min(count, size - at)
            pieces.append(self.whole.read(number * self.group + self.start + at, n))
            first, count = first + n, count - n
        return np.concatenate(pieces)

    def parts(self) -> list[StoredTensor]:
        return self.whole.parts()


@dataclass(frozen=True)
class _Stack:
    """Tensors of equal shape one below the other."""

    items: Sequence[_Rows]

    @property
    def n_rows(self) -> int:
        return len(self.items) * self.items[0].n_rows

    @property
    def row(self) -> int:
        return self.items[0].row

    def read(self, first: int, count: int) -> Rows:
        import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

        size, pieces = self.items[0].n_rows, []
        while count:
            number, at = divmod(first, size)
            n = min(count, size - at)
            pieces.append(self.items[number].read(at, n))
            first, count = first + n, count - n
        return np.concatenate(pieces)

    def parts(self) -> list[StoredTensor]:
        return [part for item in self.items for part in item.parts()]


@dataclass(frozen=True)
class _Beside:
    """Tensors of equally many rows, side by side."""

    items: Sequence[_Rows]

    @property
    def n_rows(self) -> int:
        return self.items[0].n_rows

    @property
    def row(self) -> int:
        return sum(item.row for item in self.items)

    def read(self, first: int, count: int) -> Rows:
        import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

        return np.concatenate([item.read(first, count) for item in self.items], axis=1)

    def parts(self) -> list[StoredTensor]:
        return [part for item in self.items for part in item.parts()]


# ---- names of the checkpoint -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensor:
    """A tensor of the file to be: standard name, shape in ggml's order, rows."""

    name: str
    shape: tuple[int, ...]
    rows: _Rows


_PREFIXES: Final = ("mtp.", "model.mtp.")
_NORMS: Final = {
    "nextn.enorm": "pre_fc_norm_embedding",
    "nextn.hnorm": "pre_fc_norm_hidden",
    "nextn.hc_head_norm": "hyper_connection_mixer.hc_norm",
    "hc_attn_norm": "layers.0.attn_hyper_connection.hc_norm",
    "hc_ffn_norm": "layers.0.mlp_hyper_connection.hc_norm",
    "attn_q_norm": "layers.0.self_attn.q_norm",
    "attn_k_norm": "layers.0.self_attn.k_norm",
    "indexer.q_norm": "layers.0.self_attn.indexer.q_layernorm",
    "indexer.k_norm": "layers.0.self_attn.indexer.k_layernorm",
}
_MATRICES: Final = {
    "nextn.hc_head_down": "hyper_connection_mixer.input_mix_weight_down",
    "nextn.hc_head_up": "hyper_connection_mixer.input_mix_weight_up",
    **{
        f"hc_{ours}_{part}": f"layers.0.{theirs}_hyper_connection.{name}"
        for ours, theirs in (("attn", "attn"), ("ffn", "mlp"))
        for part, name in (
            ("down", "input_mix_weight_down"),
            ("up", "input_mix_weight_up"),
            ("inject", "block_inject_weight"),
        )
    },
    "attn_q": "layers.0.self_attn.q_proj",
    "attn_k": "layers.0.self_attn.k_proj",
    "attn_v": "layers.0.self_attn.v_proj",
    "attn_output": "layers.0.self_attn.o_proj",
    "ffn_gate_inp": "layers.0.mlp.gate",
    "ffn_gate_shexp": "layers.0.mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "layers.0.mlp.shared_expert.up_proj",
    "ffn_down_shexp": "layers.0.mlp.shared_expert.down_proj",
}
_TABLES: Final = {
    "token_embd": ("model.language_model.embed_tokens", "model.embed_tokens", "language_model.model.embed_tokens"),
    "output": ("lm_head", "model.lm_head", "language_model.lm_head"),
}


class _Source:
    """Finds the tensors of the MTP block in a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, model: GgufModel) -> None:
        self.checkpoint = checkpoint
        self._model = model
        found = [prefix for prefix in _PREFIXES if any(name.startswith(prefix) for name in checkpoint.names)]
        if not found:
            self._refuse("it has no tensors of an MTP block (mtp.*)")
        self._prefix = found[0]

    def tensors(self, *, own_tables: bool) -> Iterator[_Tensor]:
        if own_tables:
            for name, places in _TABLES.items():
                yield self._flat(name, self._table(name, places))
        halves = [self._get("fc_embedding.weight"), self._get("fc_hidden.weight")]
        if halves[0].tensor.shape != halves[1].tensor.shape:
            self._refuse(f"its fc_embedding is {halves[0].tensor.shape}, its fc_hidden {halves[1].tensor.shape}")
        yield self._flat("nextn.eh_proj", _Beside(halves))
        for name, place in _NORMS.items():
            rows = self._get(f"{place}.weight", plus=1.0)
            yield _Tensor(f"{name}.weight", (rows.row,), rows)
        for name, place in _MATRICES.items():
            yield self._flat(name, self._get(f"{place}.weight"))
        gate = self._get("layers.0.mlp.shared_expert_gate.weight")
        yield _Tensor("ffn_gate_inp_shexp.weight", (gate.row,), gate)
        yield from self._indexer()
        yield from self._experts()

    def _indexer(self) -> Iterator[_Tensor]:
        joined = self._get("layers.0.self_attn.indexer.index_qk_proj.weight")
        n_query = needed_int(self._model, f"{ARCH}.attention.indexer.head_count") * needed_int(
            self._model, f"{ARCH}.attention.indexer.key_length"
        )
        total = joined.n_rows
        yield self._flat("indexer.q_proj", _Part(joined, total, 0, min(n_query, total)))
        yield self._flat("indexer.k_proj", _Part(joined, total, min(n_query, total), total))

    def _experts(self) -> Iterator[_Tensor]:
        place = "layers.0.mlp.experts"
        if f"{self._prefix}{place}.gate_up_proj" in self.checkpoint:
            both, down = self._get(f"{place}.gate_up_proj"), self._get(f"{place}.down_proj")
            n_expert, rows = both.tensor.shape[0], both.n_rows // max(1, both.tensor.shape[0])
            gate: _Rows = _Part(both, rows, 0, rows // 2)
            up: _Rows = _Part(both, rows, rows // 2, rows)
            yield self._experts_of("ffn_gate_exps", gate, n_expert)
            yield self._experts_of("ffn_up_exps", up, n_expert)
            yield self._experts_of("ffn_down_exps", down, n_expert)
            return
        n_expert = needed_int(self._model, f"{ARCH}.expert_count")
        for name in ("gate", "up", "down"):
            each = [self._get(f"{place}.{number}.{name}_proj.weight") for number in range(n_expert)]
            if len({item.tensor.shape for item in each}) > 1:
                self._refuse(f"its experts' {name}_proj tensors differ in shape")
            yield self._experts_of(f"ffn_{name}_exps", _Stack(each), n_expert)

    def _table(self, name: str, places: Sequence[str]) -> _Stored:
        own = {"token_embd": "embed_tokens.weight", "output": "shared_head.head.weight"}[name]
        tried = (f"{self._prefix}{own}", *(f"{place}.weight" for place in places))
        found = next((place for place in tried if place in self.checkpoint), None)
        if found is None:
            self._refuse(f"it has no {places[0]}.weight")
        return _Stored(self.checkpoint, self.checkpoint.find(found))

    def _get(self, name: str, plus: float = 0.0) -> _Stored:
        full = f"{self._prefix}{name}"
        if full not in self.checkpoint:
            self._refuse(f"it has no {full}")
        return _Stored(self.checkpoint, self.checkpoint.find(full), plus)

    @staticmethod
    def _flat(name: str, rows: _Rows) -> _Tensor:
        return _Tensor(f"{name}.weight", (rows.row, rows.n_rows), rows)

    @staticmethod
    def _experts_of(name: str, rows: _Rows, n_expert: int) -> _Tensor:
        return _Tensor(f"{name}.weight", (rows.row, rows.n_rows // max(1, n_expert), n_expert), rows)

    def _refuse(self, seen: str) -> NoReturn:
        folder = self.checkpoint.folder
        advice = "Give the folder of the checkpoint as it was published, not of a quantised one."
        raise ModelFormatError(f"cannot make an MTP file from {str(folder)!r}", path=folder, seen=seen, advice=advice)


# ---- the file to be --------------------------------------------------------------------------------------


def _check_type(type_name: str) -> None:
    """Refuse a type that floats cannot be stored as, before anything is written."""
    import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

    if type_name not in _BLOCKS:
        allowed = "a ggml type of weights, such as q8_0, q4_K, bf16 or f32"
        raise InvalidArgumentError(argument="type_name", value=type_name, allowed=allowed)
    if type_name != "f32":
        quantize_rows(type_name, np.zeros((1, _BLOCKS[type_name]), np.float32))


def _check(model: GgufModel, folder: Path, tensors: Sequence[_Tensor]) -> None:
    """Refuse what does not fit the model before anything is written."""
    expected = expected_shapes(model)
    for tensor in tensors:
        shape = expected[tensor.name]
        if not fits(tensor.shape, shape):
            stored = tensor.rows.parts()[0].name
            misfit = Misfit(stored, f"shape {dims(tensor.shape)} as {tensor.name}", f"{dims(shape)} by the model")
            advice = f"Give the model that was made from this checkpoint; {str(model.path)!r} was not."
            failed = f"cannot make an MTP file from {str(folder)!r}"
            raise ModelFormatError(failed, path=folder, seen=str(misfit), advice=advice)


def _plan(tensor: _Tensor, number: int | None, type_name: str) -> TensorPlan:
    stored_as = _stored_type(tensor, type_name)
    name = tensor.name if tensor.name.removesuffix(".weight") in _TABLES else f"blk.{number}.{tensor.name}"

    def read_rows(first: int, count: int) -> bytes:
        values = tensor.rows.read(first, count)
        return values.astype("<f4").tobytes() if stored_as == "f32" else quantize_rows(stored_as, values)

    return TensorPlan(name=name, shape=tensor.shape, type_name=stored_as, read_rows=read_rows)


def _stored_type(tensor: _Tensor, type_name: str) -> str:
    if len(tensor.shape) == 1 or tensor.name in _KEPT_F32:
        return "f32"
    return "f16" if tensor.shape[0] % _BLOCKS[type_name] else type_name
