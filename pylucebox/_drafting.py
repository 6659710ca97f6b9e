"""What drafts are picked from, and what making them costs in memory: decided and said in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pylucebox._draft_vocab import choose_draft_ids, read_draft_ids
from pylucebox._errors import ModelFormatError, StrPath
from pylucebox._gguf import GgufModel, read_model
from pylucebox._mtp_checks import n_vocab
from pylucebox._sidecar import SidecarVerdict

if TYPE_CHECKING:
    from pylucebox._model import ModelInfo
    from pylucebox._session_options import SessionInfo

__all__ = ["DEFAULT_DRAFT_VOCAB", "DraftVocab", "decide_draft_vocab", "memory_note", "path_note"]

DEFAULT_DRAFT_VOCAB: Final = 64_000
"""Tokens that can be drafted unless said otherwise. Of the 248,320 tokens of Qwen3.8-Flash-Next these make the LM head,
most of what a draft reads, 3.9 times smaller; published heads have 65,536 and 40,525."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVocab:
    """The tokens that can be drafted.

    Attributes
    ----------
    ids
        Their ids, ascending; empty: those that the MTP block's LM head has, as it is.
    reason
        Why these, in a sentence.
    """

    ids: tuple[int, ...] = ()
    reason: str


def decide_draft_vocab(request: int | StrPath | Literal["off"], verdict: SidecarVerdict) -> DraftVocab:
    """Choose the tokens that can be drafted.

    Parameters
    ----------
    request
        Number of tokens: special ones first, then the lowest ids; the path of a file of ids; or ``"off"`` for all.
    verdict
        The MTP block in use.

    Raises
    ------
    InvalidArgumentError
        There are as many special tokens as asked for or more, or the file holds something else than ids.
    LoadError
        The file of ids or the model cannot be read.
    """
    if verdict.n_draft_vocab is not None:
        return DraftVocab(reason=f"drafts are picked from the {verdict.n_draft_vocab} tokens of the MTP file's head")
    if request == "off":
        return DraftVocab(reason="drafts are picked from all tokens, as draft_vocab=off asks")
    model = read_model(verdict.model_path)
    n_tokens = n_vocab(model)
    if n_tokens is None:
        return DraftVocab(reason="drafts are picked from all tokens: the model does not list them")
    if not isinstance(request, int):
        ids = tuple(read_draft_ids(request, n_tokens).tolist())
        return DraftVocab(ids=ids, reason=f"drafts are picked from {len(ids)} of {n_tokens} tokens, those in {request}")
    return _special_and_lowest(model, request, n_tokens)


def _special_and_lowest(model: GgufModel, n_wanted: int, n_tokens: int) -> DraftVocab:
    if n_tokens <= n_wanted:
        why = f"the vocabulary has no more than the {n_wanted} of draft_vocab"
        return DraftVocab(reason=f"drafts are picked from all {n_tokens} tokens: {why}")
    try:
        ids = tuple(choose_draft_ids(model, n_wanted).tolist())
    except ModelFormatError as error:
        return DraftVocab(reason=f"drafts are picked from all {n_tokens} tokens: {error}")
    return DraftVocab(
        ids=ids,
        reason=f"drafts are picked from {len(ids)} of {n_tokens} tokens: the special ones and the lowest ids",
    )


def path_note(why_stepwise: str) -> str:
    """Say how the drafts of a cycle are launched; `why_stepwise` is as `NativeSession.why_stepwise` has it."""
    if why_stepwise:
        return f"each draft has a launch of its own, and the host waits for it: {why_stepwise}"
    return "all drafts of a cycle are made in one launch, and the host waits once"


def memory_note(model: ModelInfo, session: SessionInfo) -> str:
    """Say what the MTP block adds to the memory of the model."""
    parts = {
        "block": model.mtp_block_bytes,
        "its K/V": session.mtp_context_bytes,
        "rows to draft from": model.draft_rows_bytes,
        "scratch": session.mtp_compute_bytes,
    }
    tables = model.mtp_size_bytes - model.mtp_block_bytes if model.mtp_source == "sidecar" else 0
    if tables > 0:
        parts["tables of its file"] = tables
    words = ", ".join(f"{name} {n_bytes / 2**20:.1f}" for name, n_bytes in parts.items() if n_bytes)
    return f"MTP adds {sum(parts.values()) / 2**20:.1f} MiB of memory: {words}"
