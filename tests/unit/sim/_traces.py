"""Traces made from match lengths, and cost curves with round numbers."""

from __future__ import annotations

from collections.abc import Sequence

from pylucebox.sim.trace import DEPTH, Trace
from pylucebox.width import WidthCosts

COSTS = WidthCosts(
    verify_us=(100.0, 110.0, 120.0, 130.0, 140.0, 150.0, 160.0, 170.0),
    draft_us=(10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0),
    reject_us=5.0,
    mtp_prefill_us_per_token=2.0,
    n_past=1000,
    source="round numbers",
)


def trace_of(
    lengths: Sequence[int], *, probs: Sequence[Sequence[float]] | None = None, name: str = "made", limit: int = 0
) -> Trace:
    """Return a trace with these match lengths; one that reaches beyond the text's end is cut there."""
    n_tokens = len(lengths) + 1
    tokens = tuple(range(0, 2 * n_tokens, 2))
    drafts = tuple(
        tuple(2 * (at + 1 + depth) + (depth >= length) for depth in range(DEPTH)) for at, length in enumerate(lengths)
    )
    return Trace(
        name=name,
        kind="made",
        tokens=tokens,
        drafts=drafts,
        probs=tuple(map(tuple, probs)) if probs is not None else ((0.5,) * DEPTH,) * len(lengths),
        n_prompt=3,
        max_tokens=limit or n_tokens,
        facts={"source": "test"},
    )
