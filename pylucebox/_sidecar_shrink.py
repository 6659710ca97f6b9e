"""Write an MTP file again: in the standard layout, without tables that the model can lend, or with a smaller head."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pylucebox._draft_vocab import check_draft_ids, choose_draft_ids, read_draft_ids
from pylucebox._errors import InvalidArgumentError, ModelFormatError, SidecarMismatchError, StrPath
from pylucebox._gguf import GgufModel, read_model
from pylucebox._gguf_write import TensorPlan, Written, write_gguf
from pylucebox._mtp_checks import n_trunk_layers, n_vocab
from pylucebox._mtp_layout import ARCH, DRAFT_IDS, MtpBlock, find_block
from pylucebox._sidecar_metadata import sidecar_metadata

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ids = npt.NDArray[np.int64]

__all__ = ["shrink_sidecar"]

_EMBEDDING: Final = "token_embd.weight"
_HEAD: Final = "output.weight"
_SCALES: Final = (".scale", ".input_scale")


def shrink_sidecar(
    source: StrPath,
    target: StrPath,
    *,
    draft_vocab: int | StrPath | Sequence[int] | None = None,
    drop_embedding: bool = False,
    drop_head: bool = False,
    model: StrPath | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Write a smaller MTP file.

    The tensors are copied as they are stored. Names become the standard ones, whatever the layout of the source.

    Parameters
    ----------
    source
        An MTP file, or a model with an MTP block inside.
    target
        File to write; its directory must exist.
    draft_vocab
        Tokens that the head covers: how many, their ids, or a text file of ids. None keeps them.
    drop_embedding, drop_head
        Leave the token embedding, or the LM head, to the model.
    model
        The model to take head rows from where `source` has no head of its own.
    overwrite
        Whether `target` may be replaced.
    progress
        Called with bytes done and bytes in all.

    Raises
    ------
    InvalidArgumentError
        The wishes contradict each other or the source, or ids are not those of the vocabulary.
    ModelFormatError
        The source has no MTP block that this build could load.
    SidecarMismatchError
        `model` is another model.
    ModelNotFoundError, LoadError
        A file is not there or cannot be read.
    WriteError
        The target cannot be written.
    """
    if draft_vocab is not None and drop_head:
        allowed = "None with drop_head: without a head there is nothing to make smaller"
        raise InvalidArgumentError(argument="draft_vocab", value=draft_vocab, allowed=allowed)
    head, for_model = read_model(source), None if model is None else read_model(model)
    block = _loadable_block(head)
    tensors = [plan for plan in _plans(head, block) if not (drop_embedding and plan.name == _EMBEDDING)]
    tables = [plan for plan in tensors if plan.name in (_HEAD, DRAFT_IDS)]
    rest = [plan for plan in tensors if plan.name not in (_HEAD, DRAFT_IDS)]
    if draft_vocab is not None:
        tables = _smaller_head(head, block, draft_vocab, for_model)
    tensors = rest if drop_head else [*tables, *rest]
    written = {plan.name for plan in tensors}
    borrows = not written & {_EMBEDDING, _HEAD}
    metadata = sidecar_metadata(head, type_name=None, borrows_tables=borrows)
    identity = _identity([head, *([for_model] if for_model else [])], tensors)
    return write_gguf(Path(target), metadata, tensors, source=identity, overwrite=overwrite, progress=progress)


def _identity(sources: Sequence[GgufModel], tensors: Sequence[TensorPlan]) -> str:
    """Return a text that changes with the files and with the choice of draft ids, which the header does not show."""
    stats = [(str(file.path), file.path.stat().st_mtime_ns) for source in sources for file in source.files]
    ids = [hashlib.sha256(plan.read_rows(0, 1)).hexdigest() for plan in tensors if plan.name == DRAFT_IDS]
    return f"{stats} {ids}"


def _loadable_block(head: GgufModel) -> MtpBlock:
    arch = head.head.get_str("general.architecture")
    block = find_block(head) if arch == ARCH else None
    seen = f"its architecture is {arch}" if arch != ARCH else "it holds no MTP block"
    if block is not None:
        seen = block.problem
        scaled = next((name for name in head.tensors if name.endswith(_SCALES)), None)
        if scaled and not seen:
            seen = f"it is quantised with scales of their own ({scaled}), which are not copied"
    if block is None or seen:
        raise ModelFormatError(f"cannot use {str(head.path)!r} as an MTP file", path=head.path, seen=seen, advice="")
    return block


def _plans(head: GgufModel, block: MtpBlock) -> Iterator[TensorPlan]:
    """Copy the block's tensors under their standard names."""
    number = n_trunk_layers(head)
    for standard, stored in block.tensors.items():
        name = standard if standard in (_EMBEDDING, _HEAD, DRAFT_IDS) else f"blk.{number}.{standard}"
        parts = [_copy(head, part, name) for part in stored]
        yield parts[0] if len(parts) == 1 else _join(parts)


def _copy(file: GgufModel, stored: str, name: str) -> TensorPlan:
    tensor = file.tensors[stored]
    row_bytes = tensor.n_bytes // max(1, tensor.n_elements // tensor.shape[0])

    def read_rows(first: int, count: int) -> bytes:
        return file.read_tensor(stored, first * row_bytes, count * row_bytes)

    return TensorPlan(name=name, shape=tensor.shape, type_name=tensor.type_name, read_rows=read_rows)


def _join(parts: list[TensorPlan]) -> TensorPlan:
    """Put rows side by side."""

    def read_rows(first: int, count: int) -> bytes:
        import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

        rows = [np.frombuffer(part.read_rows(first, count), np.uint8).reshape(count, -1) for part in parts]
        return np.concatenate(rows, axis=1).tobytes()

    width = sum(part.shape[0] for part in parts)
    first = parts[0]
    return TensorPlan(name=first.name, shape=(width, *first.shape[1:]), type_name=first.type_name, read_rows=read_rows)


# ---- the smaller head --------------------------------------------------------------------------------------


class _Head(NamedTuple):
    """A head and the id of each of its rows."""

    plan: TensorPlan
    ids: Ids


def _smaller_head(
    head: GgufModel, block: MtpBlock, wish: int | StrPath | Sequence[int], model: GgufModel | None
) -> list[TensorPlan]:
    import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

    full = _full_head(head, block, model)
    size = n_vocab(head) or 0
    if isinstance(wish, int):
        ids = choose_draft_ids(head, wish)
    elif isinstance(wish, Sequence) and not isinstance(wish, str):
        ids = check_draft_ids(wish, size)
    else:
        ids = read_draft_ids(wish, size)
    rows = np.searchsorted(full.ids, ids)
    absent = (rows >= len(full.ids)) | (full.ids[np.minimum(rows, len(full.ids) - 1)] != ids)
    if absent.any():
        allowed = f"ids among the {len(full.ids)} that the head of the source covers"
        raise InvalidArgumentError(argument="draft_vocab", value=int(ids[absent][0]), allowed=allowed)
    listed = ids.astype("<i8").tobytes()
    return [
        _pick_rows(full.plan, rows),
        TensorPlan(name=DRAFT_IDS, shape=(len(ids),), type_name="i64", read_rows=lambda _first, _count: listed),
    ]


def _full_head(head: GgufModel, block: MtpBlock, model: GgufModel | None) -> _Head:
    import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

    stored = block.tensors.get(_HEAD)
    if stored:
        plan = _copy(head, stored[0], _HEAD)
        if block.n_draft_vocab is None:
            return _Head(plan, np.arange(plan.n_rows))
        ids = np.frombuffer(head.read_tensor(DRAFT_IDS), "<i8")
        order = np.argsort(ids)
        return _Head(_pick_rows(plan, order), ids[order])
    if model is None:
        allowed = "with the argument model: the source leaves its head to the model"
        raise InvalidArgumentError(argument="draft_vocab", value=None, allowed=allowed)
    for field, read in (("vocabulary size", n_vocab), ("tokens", _token_digest), ("width", _width)):
        of_model, of_head = read(model), read(head)
        if of_model != of_head:
            raise SidecarMismatchError(field=field, model_value=of_model, sidecar_value=of_head, path=head.path)
    name = _HEAD if _HEAD in model.tensors else _EMBEDDING  # tied
    if name not in model.tensors:
        raise ModelFormatError(f"cannot read {str(model.path)!r}", path=model.path, seen="it has no LM head")
    plan = _copy(model, name, _HEAD)
    return _Head(plan, np.arange(plan.n_rows))


def _token_digest(file: GgufModel) -> str | None:
    return file.head.array_digest("tokenizer.ggml.tokens")


def _width(file: GgufModel) -> int | None:
    return file.head.get_int(f"{ARCH}.embedding_length")


def _pick_rows(plan: TensorPlan, rows: npt.NDArray[Any]) -> TensorPlan:
    """Take rows in the given order; neighbours are read together."""

    def read_rows(first: int, count: int) -> bytes:
        import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

        wanted = rows[first : first + count]
        runs = np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1)
        return b"".join(plan.read_rows(int(run[0]), len(run)) for run in runs)

    shape = (plan.shape[0], len(rows))
    return TensorPlan(name=plan.name, shape=shape, type_name=plan.type_name, read_rows=read_rows)
