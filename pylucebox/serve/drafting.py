"""What a server drafts with: the tokens that can be drafted, and where the rows for them lie in the files. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pylucebox._drafting import decide_draft_vocab
from pylucebox._errors import StrPath
from pylucebox._gguf import GgufModel, read_model
from pylucebox._gguf_parse import TENSOR_TYPES
from pylucebox._sidecar import SidecarVerdict

__all__ = ["DrafterPlan", "TablePlace", "ids_of", "plan_drafter"]

# Names of tables, as native/model.cpp has them; those of the MTP block first.
_EMBEDDINGS: Final = ("nextn.embed_tokens.weight", "token_embd.weight")
_GGML_TYPES: Final = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}
_HEADS: Final = ("nextn.shared_head_head.weight", "output.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """Where a table lies.

    Attributes
    ----------
    path
        File; empty: nowhere.
    offset, n_bytes
        Of its data, in bytes.
    ggml_type
        Number of its ggml type.
    """

    path: str = ""
    offset: int = 0
    n_bytes: int = 0
    ggml_type: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterPlan:
    """What a server drafts with; it goes to the worker as JSON.

    Attributes
    ----------
    draft_ids
        Tokens that can be drafted as runs ``(first, end)``; empty: all that the block's LM head has.
    reason
        Why these, in a sentence.
    covers_part
        Whether that head has rows for some tokens only.
    head, embedding
        The tables that the block drafts with.
    """

    draft_ids: tuple[tuple[int, int], ...] = ()
    reason: str
    covers_part: bool = False
    head: TablePlace
    embedding: TablePlace


def plan_drafter(request: int | StrPath, verdict: SidecarVerdict) -> DrafterPlan:
    """Decide what is drafted from.

    Parameters
    ----------
    request
        As `Engine` takes ``draft_vocab``.
    verdict
        The MTP block, which was accepted.

    Raises
    ------
    InvalidArgumentError
        There are as many special tokens as asked for or more, or the file holds something else than ids.
    LoadError
        A file cannot be read.
    """
    vocab = decide_draft_vocab(request, verdict)
    model = read_model(verdict.model_path)
    files = [model]
    if verdict.kind == "sidecar" and verdict.path is not None:
        files.insert(0, read_model(verdict.path))
    own = files[:-1]  # in a model with a trunk the names of the block's own tables are not looked at
    return DrafterPlan(
        draft_ids=_runs(vocab.ids),
        reason=vocab.reason,
        covers_part=verdict.n_draft_vocab is not None,
        head=_first(own, _HEADS) or _first([model], (_HEADS[1], _EMBEDDINGS[1])) or TablePlace(),
        embedding=_first(own, _EMBEDDINGS) or _first([model], _EMBEDDINGS[1:]) or TablePlace(),
    )


def ids_of(runs: Sequence[Sequence[int]]) -> list[int]:
    """Return the ids of runs."""
    return [token for first, end in runs for token in range(first, end)]


def _runs(ids: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending ids as runs: tens of thousands of them are a few runs."""
    starts = [i for i, token in enumerate(ids) if i == 0 or token != ids[i - 1] + 1]
    ends = [*starts[1:], len(ids)] if starts else []
    return tuple((ids[start], ids[end - 1] + 1) for start, end in zip(starts, ends, strict=True))


def _first(files: Sequence[GgufModel], names: Sequence[str]) -> TablePlace | None:
    for model in files:
        for name in names:
            for file in model.files:
                for full, tensor in file.tensors.items():
                    if full == name or (name.startswith("nextn.") and full.endswith(f".{name}")):
                        return TablePlace(
                            path=str(file.path),
                            offset=file.data_offset + tensor.offset,
                            n_bytes=tensor.n_bytes,
                            ggml_type=_GGML_TYPES[tensor.type_name],
                        )
    return None
