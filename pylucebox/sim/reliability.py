"""How much the MTP block's probabilities are worth: what it predicts against what holds, depth by depth.

A draft at some depth has a label only where all drafts before it held: behind a rejected one the text is another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pylucebox.sim.trace import DEPTH, Trace

__all__ = ["Bin", "Reliability", "reliability"]

N_BINS: Final = 10
_Z: Final = 1.96  # standard deviations of a 95 % interval


@dataclass(frozen=True, slots=True)
class Bin:
    """Drafts whose probabilities lie in one tenth of the scale.

    Attributes
    ----------
    low, high
        Ends of the tenth.
    n
        Drafts.
    predicted
        Mean of their probabilities.
    observed
        Share of them that held.
    """

    low: float
    high: float
    n: int
    predicted: float
    observed: float

    def interval(self) -> tuple[float, float]:
        """Return a 95 % interval of the share that holds (Wilson's)."""
        scale = 1.0 + _Z * _Z / self.n
        middle = (self.observed + _Z * _Z / (2 * self.n)) / scale
        half = _Z / scale * math.sqrt(self.observed * (1 - self.observed) / self.n + (_Z / (2 * self.n)) ** 2)
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """What the probabilities of one depth are worth.

    Attributes
    ----------
    depth
        1 to 7, or None for all together.
    n
        Labels.
    held
        Share of the drafts that held.
    brier
        Mean squared distance of probability and outcome.
    brier_mean
        The same when every draft is given the share that held. What lies below it is information.
    ece
        Expected calibration error: mean distance of predicted and observed over the bins, weighted by drafts.
    bins
        Those that hold any draft.
    """

    depth: int | None
    n: int
    held: float
    brier: float
    brier_mean: float
    ece: float
    bins: tuple[Bin, ...]

    @property
    def skill(self) -> float:
        """Share of the uncertainty that the probabilities take away; 0 for none, 1 for all."""
        return 1.0 - self.brier / self.brier_mean if self.brier_mean else 0.0


def reliability(traces: Iterable[Trace]) -> list[Reliability]:
    """Return what the probabilities are worth at each depth that has labels, then at all together.

    Parameters
    ----------
    traces
        Recorded ones; what they say is pooled.
    """
    labels: list[list[tuple[float, bool]]] = [[] for _ in range(DEPTH)]
    for trace in traces:
        last = len(trace.tokens) - 1
        for at, (length, probs) in enumerate(zip(trace.match, trace.probs, strict=True)):
            for depth in range(min(length + 1, DEPTH, last - at)):
                labels[depth].append((probs[depth], length > depth))
    found = [_reliability(depth, pairs) for depth, pairs in enumerate(labels, 1) if pairs]
    everything = [pair for pairs in labels for pair in pairs]
    return [*found, _reliability(None, everything)] if everything else []


def _reliability(depth: int | None, pairs: Sequence[tuple[float, bool]]) -> Reliability:
    n = len(pairs)
    held = sum(y for _, y in pairs) / n
    groups: list[list[tuple[float, bool]]] = [[] for _ in range(N_BINS)]
    for p, y in pairs:
        groups[min(N_BINS - 1, int(p * N_BINS))].append((p, y))
    bins = tuple(
        Bin(
            low=number / N_BINS,
            high=(number + 1) / N_BINS,
            n=len(group),
            predicted=sum(p for p, _ in group) / len(group),
            observed=sum(y for _, y in group) / len(group),
        )
        for number, group in enumerate(groups)
        if group
    )
    return Reliability(
        depth=depth,
        n=n,
        held=held,
        brier=sum((p - y) ** 2 for p, y in pairs) / n,
        brier_mean=held * (1.0 - held),
        ece=sum(each.n * abs(each.predicted - each.observed) for each in bins) / n,
        bins=bins,
    )
