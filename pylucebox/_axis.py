"""A logarithmic axis for speed ratios: half as fast and twice as fast lie equally far from 1. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["LogAxis"]

_TICKS: Final = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0, 1.01, 1.02, 1.05, 1.1, 1.2,
    1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0, 50.0, 100.0,
)  # fmt: skip


@dataclass(frozen=True)
class LogAxis:
    """An axis from `low` to `high`, both above 0."""

    low: float
    high: float

    def share(self, ratio: float) -> float:
        """Return where a ratio lies: 0 at the low end, 1 at the high one."""
        return (math.log(ratio) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))

    def ticks(self, min_gap: float) -> list[float]:
        """Return round values on the axis, those near 1 first served, none closer than `min_gap` of its length."""
        shown: list[float] = []
        for tick in sorted(_TICKS, key=lambda value: abs(math.log(value))):
            inside = self.low <= tick <= self.high
            if inside and all(abs(self.share(tick) - self.share(other)) >= min_gap for other in shown):
                shown.append(tick)
        return sorted(shown)
