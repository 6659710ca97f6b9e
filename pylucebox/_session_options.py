"""How a session is opened, and what it is made of: the fields of the native structs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT_KEPT_GRAPHS", "SessionInfo", "SessionOptions", "even_drafts_wanted"]

DEFAULT_KEPT_GRAPHS: Final = 16
"""Twice the widths of a verify step, or of a first draft: sequences that run together make more kinds of steps."""

_EVEN_DRAFTS: Final = "STRIX_SPEC_EVEN_DRAFTS"  # people who come from that fork have it set


def even_drafts_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether the environment leaves it at even drafts."""
    return environment.get(_EVEN_DRAFTS) != "0"

@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How to open a session; fields and defaults are those of ``lucebox_session_params``.

    Attributes
    ----------
    n_ctx
        Tokens per sequence.
    n_seq
        Sequences that may decode together.
    n_ubatch
        Prompt tokens computed at once, 32 to 8192.
    n_threads, n_threads_batch
        Threads of a decode step and of prefill.
    max_width
        Widest verify step, 1 to 8; 1 leaves MTP out.
    flash_attn
        None lets the library decide.
    cache_type_k, cache_type_v
        ggml types of the attention caches.
    mtp_kv_in_trunk
        The trunk's graph writes K and V of the MTP block too, where it can; otherwise the block reads prompts and
        accepted tokens in passes of its own. Drafts are the same.
    n_kept_graphs
        Graphs of steps with few rows to keep, for the trunk and for the MTP block, 0 to 64. A step whose graph is kept
        builds none; 0 keeps only the last.
    draft_chain
        Make all drafts of a cycle in one launch, where that can be had; otherwise each has its own.
    attend_selected
        Attention of few rows reads the cells that they selected without building a mask, where it can. Results are the
        same bit for bit.
    even_drafts
        Sequences that share a cycle verify the same number of drafts, so that the model runs once for all.
    coupled_drafts
        Drafts of a request that samples with ``"gumbel"`` share the noise of its sampler, so that more of them hold.
    """

    n_ctx: int
    n_seq: int = 1
    n_ubatch: int = 512
    n_threads: int = 1
    n_threads_batch: int = 1
    max_width: int = 1
    flash_attn: bool | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    mtp_kv_in_trunk: bool = True
    n_kept_graphs: int = DEFAULT_KEPT_GRAPHS
    draft_chain: bool = True
    attend_selected: bool = True
    even_drafts: bool = True
    coupled_drafts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """What a session is made of; the fields are those of ``lucebox_session_info``.

    Attributes
    ----------
    n_ctx, n_seq, n_ubatch, max_width
        In force.
    n_rs_seq
        Recurrent-state snapshots per sequence.
    context_bytes, compute_bytes
        Caches, snapshots included, and scratch memory of the trunk.
    mtp_context_bytes, mtp_compute_bytes
        The same of the MTP block.
    mtp_kv_in_trunk
        In force; `NativeSession.own_pass_reason` says why not.
    kept_graphs_bytes
        Host memory of the most graphs that may be kept; each takes its part when it is first used.
    draft_chain
        Whether all drafts of a cycle are made in one launch; if not, `NativeSession.why_stepwise` says why.
    attend_selected
        In force; False also where a back end or the types of the caches have no kernel for it.
    """

    n_ctx: int
    n_seq: int
    n_ubatch: int
    max_width: int
    n_rs_seq: int
    context_bytes: int
    compute_bytes: int
    mtp_context_bytes: int
    mtp_compute_bytes: int
    mtp_kv_in_trunk: bool
    kept_graphs_bytes: int
    draft_chain: bool
    attend_selected: bool
