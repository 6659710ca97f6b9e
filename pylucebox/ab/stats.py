"""Statistics of paired comparisons. Pure: no clock, no I/O, and every random draw comes from a generator passed in.

A pair is one run of each of two arms, close in time. Its response is y = ln(speed of the arm / speed of the baseline).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "MAX_PAIRS",
    "Floats",
    "Interval",
    "bootstrap_medians",
    "hierarchical_means",
    "holm",
    "noise_floor",
    "percentile_interval",
    "running_median_range",
    "sign_flip_p",
    "smallest_p",
    "spread_limit",
    "t_interval",
    "t_quantile",
]

Floats = npt.NDArray[np.floating[Any]]

MAX_PAIRS = 40
"""Most pairs that `sign_flip_p` counts exactly: two lists of 2**20 sums."""

_DIRECT_PAIRS = 12  # up to here all sign vectors fit into one small matrix


@dataclass(frozen=True, slots=True)
class Interval:
    """Two ends on the scale of the values."""

    low: float
    high: float

    def inside(self, low: float, high: float) -> bool:
        """Tell whether all of it lies strictly between `low` and `high`."""
        return low < self.low and self.high < high

    def excludes(self, value: float) -> bool:
        """Tell whether `value` lies outside."""
        return value < self.low or self.high < value


@functools.cache
def _signs(n: int) -> Floats:
    """Return all sign vectors of length `n` as rows, shape (2**n, n)."""
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    return 2.0 * bits - 1.0


def _signed_sums(values: Floats) -> Floats:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def sign_flip_p(values: Sequence[float]) -> float:
    """Exact two-sided sign-flip test that the responses are symmetric around zero.

    Under the null hypothesis each response could as well have had the other sign. p is the share of all 2**n sign
    vectors whose sum is at least as far from zero as the one seen (R. A. Fisher's randomisation test for pairs). The
    sums are counted exactly, by meeting in the middle: sums of one half of the values against sorted sums of the other.

    Parameters
    ----------
    values
        1 to `MAX_PAIRS` finite responses.

    Returns
    -------
    float
        Between ``2 / 2**n`` and 1. All-zero responses give 1.

    Raises
    ------
    ValueError
        There are none, or too many.
    """
    y = np.asarray(values, dtype=float)
    if not 1 <= y.size <= MAX_PAIRS:
        raise ValueError(f"{y.size} pairs; 1 to {MAX_PAIRS} can be tested exactly")
    total = abs(float(y.sum()))
    target = total - 1e-12 * float(np.abs(y).sum())  # equal sums that rounding pulled apart still count
    if target <= 0.0:
        return 1.0
    if y.size <= _DIRECT_PAIRS:
        n_extreme = int(np.count_nonzero(np.abs(_signs(y.size) @ y) >= target))
    else:
        half = y.size // 2
        first, second = _signed_sums(y[:half]), np.sort(_signed_sums(y[half:]))
        above = second.size - np.searchsorted(second, target - first, side="left")
        below = np.searchsorted(second, -target - first, side="right")
        n_extreme = int(above.sum()) + int(below.sum())
    return n_extreme / 2.0**y.size


def smallest_p(n_pairs: int) -> float:
    """Return the smallest p that `n_pairs` pairs can give: all of one sign."""
    return 2.0 ** (1 - n_pairs)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for a family of tests (S. Holm, 1979); a claim at level a needs an adjusted p of at most a."""
    adjusted = [1.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def bootstrap_medians(values: Sequence[float], n_resamples: int, rng: np.random.Generator) -> Floats:
    """Return the sorted medians of `n_resamples` resamples of `values` with replacement."""
    y = np.asarray(values, dtype=float)
    return np.sort(np.median(y[rng.integers(0, y.size, (n_resamples, y.size))], axis=1))


def percentile_interval(ordered: Floats, confidence: float) -> Interval:
    """Return the central part of sorted resampled values that holds the share `confidence` of them."""
    tail = 100.0 * (1.0 - confidence) / 2.0
    low, high = np.percentile(ordered, [tail, 100.0 - tail])
    return Interval(float(low), float(high))


def hierarchical_means(groups: Sequence[Sequence[float]], n_resamples: int, rng: np.random.Generator) -> Floats:
    """Resample workloads and, within each, pairs.

    Parameters
    ----------
    groups
        Responses by workload, at least one each.

    Returns
    -------
    array of float
        Sorted means over the drawn workloads of the median of their drawn pairs, shape (n_resamples,).
    """
    sizes = np.asarray([len(group) for group in groups])
    padded = np.zeros((len(groups), int(sizes.max())))
    for row, group in zip(padded, groups, strict=True):
        row[: len(group)] = group
    total = np.zeros(n_resamples)
    for _ in groups:
        drawn = rng.integers(0, len(groups), n_resamples)
        for size in np.unique(sizes):  # medians of equal length are taken together
            where = np.flatnonzero(sizes[drawn] == size)
            pairs = rng.integers(0, size, (where.size, size))
            total[where] += np.median(padded[drawn[where][:, None], pairs], axis=1)
    return np.sort(total / len(groups))


def t_quantile(p: float, df: int) -> float:
    """Quantile of Student's t.

    Parameters
    ----------
    p
        0.5 to 0.9999.
    df
        Degrees of freedom, at least 1.

    Notes
    -----
    With t = sqrt(df) tan(u) the density becomes proportional to cos(u)**(df - 1) on (-pi/2, pi/2), which is smooth and
    bounded, so the trapezoidal rule on a fixed grid gives more than five digits.
    """
    u = np.linspace(0.0, math.pi / 2, 40_001)
    density = np.cos(u) ** (df - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    at = float(np.interp((p - 0.5) * 2.0 * area[-1], area, u))
    return math.sqrt(df) * math.tan(at)


_cached_t_quantile = functools.cache(t_quantile)


def t_interval(values: Sequence[float], confidence: float) -> Interval | None:
    """Return the t interval of the mean; None for fewer than two values."""
    y = np.asarray(values, dtype=float)
    if y.size < 2:
        return None
    half = _cached_t_quantile(0.5 + confidence / 2, y.size - 1) * float(y.std(ddof=1)) / math.sqrt(y.size)
    return Interval(float(y.mean()) - half, float(y.mean()) + half)


def noise_floor(same: Sequence[float], n_pairs: int, n_resamples: int, rng: np.random.Generator) -> float:
    """Size that the median of `n_pairs` pairs stays under in 95 % of cases although nothing differs.

    Parameters
    ----------
    same
        Responses of the baseline against itself. Which of two identical arms came first is arbitrary, so each counts
        with both signs.
    n_pairs
        Pairs of the comparison that the floor is for.

    Returns
    -------
    float
        On the scale of the responses.
    """
    y = np.abs(np.asarray(same, dtype=float))
    drawn = y[rng.integers(0, y.size, (n_resamples, n_pairs))] * rng.choice((-1.0, 1.0), (n_resamples, n_pairs))
    return float(np.percentile(np.abs(np.median(drawn, axis=1)), 95.0))


def running_median_range(log_speeds: Floats) -> Floats:
    """Return the range of the running median of three along the last axis; of the values with fewer than five.

    One outlier does not move a running median of three. A machine that has become slower does.
    """
    if log_speeds.shape[-1] >= 5:
        windows = np.lib.stride_tricks.sliding_window_view(log_speeds, 3, axis=-1)
        log_speeds = np.median(windows, axis=-1)
    spread: Floats = np.ptp(log_speeds, axis=-1)
    return spread


def spread_limit(same: Sequence[float], n_runs: int, n_resamples: int, rng: np.random.Generator) -> float:
    """95th percentile of `running_median_range` of `n_runs` runs of a steady machine.

    Parameters
    ----------
    same
        Differences of two runs close in time, between which nothing changed. A run scatters by sqrt(1/2) of them.
    n_runs
        Sentinel runs.
    """
    y = np.asarray(same, dtype=float) / math.sqrt(2.0)
    drawn = y[rng.integers(0, y.size, (n_resamples, n_runs))] * rng.choice((-1.0, 1.0), (n_resamples, n_runs))
    return float(np.percentile(running_median_range(drawn), 95.0))
