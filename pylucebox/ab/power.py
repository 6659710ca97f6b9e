"""How many pairs an effect needs, and which effect a number of pairs can find.

Found means what it means in a session: p of the exact sign-flip test at the level of the row, a median above a noise
floor that is itself estimated, and a bootstrap interval that leaves out no difference. All are simulated with normal
noise. From 12 pairs on the sign-flip test has enough p-values to be as good as the t test, which then takes its place,
because it is cheaper.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from pylucebox.ab.stats import MAX_PAIRS, Floats, smallest_p, t_quantile

Bools = npt.NDArray[np.bool_]

__all__ = ["ALPHA", "MIN_SAME_PAIRS", "POWER", "detectable", "pairs_for", "pairs_that_can_claim", "power"]

ALPHA = 0.05
"""Level of all claims of a session together."""

POWER = 0.80
"""Share of sessions in which an effect of the planned size is to be found."""

_RESERVE = 0.04
"""What plans aim at beyond `POWER`, since an effect as large as the margin is called EQUIVALENT in up to 5 % of
sessions."""

MIN_SAME_PAIRS = 12
"""Fewest pairs of the baseline with itself, over all workloads, that a noise floor is taken from."""

_N_SIMULATED = 2000
_N_RESAMPLES = 200
_EXACT_PAIRS = 11
_SMALLEST_SIGMA = 1e-5  # no clock is better, and none at all would divide by zero


@functools.cache
def _normal(n_pairs: int) -> Floats:
    """Return standard normal responses, shape (simulated, pairs)."""
    return np.random.default_rng(0).standard_normal((_N_SIMULATED, n_pairs))


@functools.cache
def _hurdles(n_pairs: int) -> Floats:
    """Return what the median must exceed beside the test, in standard deviations of a response.

    For each simulated row the larger of the noise floor and of the reach of the interval below the median, which does
    not depend on the effect.
    """
    rng = np.random.default_rng(1)
    responses = _normal(n_pairs)
    medians = np.median(responses, axis=1)
    floor = np.percentile(np.abs(medians), 95.0)
    estimated = floor * np.sqrt(np.mean(rng.standard_normal((_N_SIMULATED, MIN_SAME_PAIRS)) ** 2, axis=1))
    lows = [
        np.percentile(np.median(row[rng.integers(0, n_pairs, (_N_RESAMPLES, n_pairs))], axis=1), 2.5)
        for row in responses
    ]
    return np.asarray(np.maximum(estimated, medians - np.asarray(lows)))


def _significant(responses: Floats, alpha: float) -> Bools:
    n_pairs = responses.shape[1]
    sums = np.abs(responses.sum(axis=1))
    if n_pairs > _EXACT_PAIRS:
        t = sums / responses.std(axis=1, ddof=1) / math.sqrt(n_pairs)
        return np.asarray(t >= t_quantile(1 - alpha / 2, n_pairs - 1))
    bits = (np.arange(2 ** (n_pairs - 1))[:, None] >> np.arange(n_pairs)) & 1
    flipped = np.abs(responses @ (1.0 - 2.0 * bits).T)  # the other half of the sign vectors mirrors these
    return np.asarray(np.mean(flipped >= sums[:, None] - 1e-12, axis=1) <= alpha)


@functools.cache
def power(n_pairs: int, alpha: float, effect: float) -> float:
    """Probability that `n_pairs` pairs find an effect.

    Parameters
    ----------
    n_pairs
        At least 2.
    alpha
        Level of the one test, so the level of the table divided by its rows when Holm's correction is at its hardest.
    effect
        True mean of a response in units of its standard deviation; above 0.

    Returns
    -------
    float
        0 when not even pairs of one sign reach `alpha`.
    """
    if smallest_p(n_pairs) > alpha:
        return 0.0
    responses = _normal(n_pairs) + effect
    above = np.median(responses, axis=1) > _hurdles(n_pairs)
    return float(np.mean(_significant(responses, alpha) & above))


@functools.cache
def _units(n_pairs: int, alpha: float) -> float:
    """Return the effect that a plan may promise to find, in standard deviations of a response."""
    low, high = 0.0, 8.0  # so large an effect is found by any number of pairs that can claim
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (low, middle) if power(n_pairs, alpha, middle) >= POWER + _RESERVE else (middle, high)
    return high


def detectable(n_pairs: int, alpha: float, sigma_run: float, margin: float = 0.0) -> float | None:
    """Smallest effect that is found with probability `POWER`.

    Parameters
    ----------
    n_pairs, alpha
        As in `power`.
    sigma_run
        Standard deviation of the logarithm of one run's speed.
    margin
        Equivalence margin as a fraction. However well smaller effects are known, they are called EQUIVALENT.

    Returns
    -------
    float or None
        As a fraction; None when no effect can be found.
    """
    if n_pairs < 2 or smallest_p(n_pairs) > alpha:
        return None
    effect = math.expm1(_units(n_pairs, alpha) * sigma_run * math.sqrt(2.0))
    return max(effect, margin)


def pairs_that_can_claim(n_rows: int) -> int:
    """Fewest pairs with which a table of `n_rows` rows can make a claim at all.

    Holm's correction multiplies the smallest p by the number of rows, and n pairs give no p below 2 / 2**n.
    """
    return 1 + math.ceil(math.log2(max(1, n_rows) / ALPHA))


def pairs_for(effect: float, n_rows: int, sigma_run: float, margin: float = 0.0) -> int | None:
    """Fewest pairs that find an effect with probability `POWER` in a table of `n_rows` rows.

    Parameters
    ----------
    effect
        As a fraction, above 0.
    n_rows
        Rows of the table.
    sigma_run, margin
        As in `detectable`.

    Returns
    -------
    int or None
        None when `MAX_PAIRS` pairs are not enough, or the effect is within the margin.
    """
    if effect < margin:
        return None
    alpha = ALPHA / max(1, n_rows)
    size = math.log1p(effect) / (max(sigma_run, _SMALLEST_SIGMA) * math.sqrt(2.0))
    for n_pairs in range(pairs_that_can_claim(n_rows), MAX_PAIRS + 1):
        if power(n_pairs, alpha, size) >= POWER + _RESERVE:
            return n_pairs
    return None
