"""Descriptive figures: speeds of one arm, acceptance by depth, and where within a run an arm gains or loses."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from pylucebox.ab.records import RunRecord
from pylucebox.ab.results import ArmFigures

__all__ = ["block_ratios", "figures_of", "median_ratio"]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def figures_of(arm: str, workload: str, runs: Sequence[RunRecord]) -> ArmFigures:
    """Sum up the runs of one arm on one workload.

    Parameters
    ----------
    arm, workload
        Names.
    runs
        Last attempts of the session, in the order of the plan.
    """
    mine = [run for run in runs if run.phase == "main" and run.arm == arm and run.workload == workload]
    valid = [run for run in mine if run.valid]
    speeds = [speed for run in valid if (speed := run.decode_tok_s or run.client_tok_s) is not None]
    specs = [run.spec for run in valid if run.spec is not None]
    drafted = [sum(column) for column in zip(*(spec["num_draft_tokens_per_pos"] for spec in specs), strict=True)]
    accepted = [sum(column) for column in zip(*(spec["num_accepted_tokens_per_pos"] for spec in specs), strict=True)]
    n_cycles = sum(spec["cycles"] for spec in specs)
    n_tokens = sum(sequence.n_tokens - 1 for run in valid if run.spec is not None for sequence in run.sequences)
    widths: Counter[str] = Counter()
    for run in valid:
        widths.update(run.widths)
    return ArmFigures(
        arm=arm,
        n_valid=len(valid),
        n_invalid=len(mine) - len(valid),
        median_tok_s=_median(speeds),
        min_tok_s=min(speeds, default=None),
        max_tok_s=max(speeds, default=None),
        median3_tok_s=statistics.median(speeds[:3]) if len(speeds) >= 3 else None,
        prefill_tok_s=_median(run.prefill_tok_s for run in valid),
        ttft_ms=_median(run.ttft_ms for run in valid),
        tokens_per_cycle=n_tokens / n_cycles if n_cycles else None,
        drafted=sum(spec["num_draft_tokens"] for spec in specs),
        accepted=sum(spec["num_accepted_tokens"] for spec in specs),
        conditional=_conditional(drafted, accepted),
        survival=tuple(a / d if d else None for a, d in zip(accepted, drafted, strict=True)),
        width_histogram=dict(sorted(widths.items(), key=lambda item: int(item[0]))),
        peak_rss_bytes=max((run.peak_rss_bytes for run in valid if run.peak_rss_bytes), default=None),
    )


def _conditional(drafted: Sequence[int], accepted: Sequence[int]) -> tuple[float | None, ...]:
    """Return how often a draft held when those before it did.

    Cycles of different widths are mixed. Of the cycles that drafted to a depth, those in which all drafts before it
    held are not counted; their number is estimated by the accepted ones one depth above, scaled to the cycles that
    went deeper.
    """
    out: list[float | None] = []
    for depth, (n_drafted, n_accepted) in enumerate(zip(drafted, accepted, strict=True)):
        reached = float(n_drafted)
        if depth and drafted[depth - 1]:
            reached *= accepted[depth - 1] / drafted[depth - 1]
        out.append(min(1.0, n_accepted / reached) if reached > 0 else None)
    return tuple(out)


def median_ratio(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Return the median of first over second; None when no pair has both."""
    logs = [math.log(first / second) for first, second in pairs if first and second]
    return math.exp(statistics.median(logs)) if logs else None


def block_ratios(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> tuple[float | None, ...]:
    """Compare the times of equal tokens: per 64 tokens the median over the pairs of baseline time over arm time.

    Parameters
    ----------
    pairs
        Baseline and arm of each pair. Only the first request of each run is looked at.

    Returns
    -------
    tuple
        One entry per block that any pair has; above 1 the arm is faster there.
    """
    blocks = [
        (_differences(base.sequences[0].block_ms), _differences(test.sequences[0].block_ms))
        for base, test in pairs
        if base.sequences and test.sequences
    ]
    depth = max((min(len(base), len(test)) for base, test in blocks), default=0)
    return tuple(
        median_ratio((base[at], test[at]) for base, test in blocks if at < min(len(base), len(test)))
        for at in range(depth)
    )


def _differences(ends: Sequence[float]) -> list[float]:
    return [end - start for start, end in zip([0.0, *ends], ends, strict=False)]
