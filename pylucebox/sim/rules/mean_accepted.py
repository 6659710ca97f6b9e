"""As many drafts as lately held: met in forks of llama.cpp ("EMA") and as the first feedback rule of Lucebox (#667).

Written from descriptions. The mean number of drafts that held decides how many come next. A cycle whose drafts all held
says only that there might have been more, so it adds one; any other moves the mean by a quarter. Costs play no part.
"""

from __future__ import annotations

from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width import CycleContext, CycleObservation

__all__ = ["MeanAccepted"]

_START: Final = 2.0
_WEIGHT: Final = 0.25


class MeanAccepted:
    """The rounded mean of accepted drafts, at least one."""

    def __init__(self) -> None:
        self._means: dict[int, float] = {}

    def begin(self, n_seq: int, max_width: int) -> None:  # noqa: ARG002 - the same for all
        """Forget everything."""
        self._means = {}

    def choose(self, seq: int, context: CycleContext) -> int:
        """Return the width for the rounded mean."""
        drafts = max(1, min(MAX_DRAFT, round(self._means.get(seq, _START))))
        return min(drafts + 1, context.max_width)

    def observe(self, seq: int, observation: CycleObservation) -> None:
        """Move the mean."""
        mean, held = self._means.get(seq, _START), observation.n_accepted
        if 0 < observation.n_verified == held:
            mean = min(float(MAX_DRAFT), mean + 1.0)
        elif observation.n_verified:
            mean += _WEIGHT * (held - mean)
        self._means[seq] = mean
