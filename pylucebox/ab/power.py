"""How many pairs an effect needs, and which effect a number of pairs can find.

The test is the exact sign-flip test with normal noise. Up to 11 pairs its power is simulated with the test itself,
because so few pairs allow few p-values; beyond, the t test has the same power and is cheaper.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from pylucebox.ab.stats import MAX_PAIRS, Floats, smallest_p, t_quantile

__all__ = ["ALPHA", "POWER", "detectable", "pairs_for", "pairs_that_can_claim", "power"]

ALPHA = 0.05
"""Level of all claims of a session together."""

POWER = 0.80
"""Share of sessions in which an effect of the planned size is to be found."""

_N_SIMULATED = 3000
_EXACT_PAIRS = 11


@functools.cache
def _statistics(n_pairs: int, n_simulated: int) -> tuple[Floats, Floats]:
    """Return standard normal responses, shape (simulated, pairs), and the half of all sign vectors that begins +."""
    responses = np.random.default_rng(0).standard_normal((n_simulated, n_pairs))
    bits = (np.arange(2 ** (n_pairs - 1))[:, None] >> np.arange(n_pairs)) & 1
    return responses, 1.0 - 2.0 * bits


@functools.cache
def power(n_pairs: int, alpha: float, effect: float) -> float:
    """Probability that `n_pairs` pairs give p <= `alpha`.

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
    if n_pairs > _EXACT_PAIRS:
        drawn = np.random.default_rng(0).standard_normal((_N_SIMULATED, n_pairs)) + effect
        t = drawn.mean(axis=1) / drawn.std(axis=1, ddof=1) * math.sqrt(n_pairs)
        return float(np.mean(np.abs(t) >= t_quantile(1 - alpha / 2, n_pairs - 1)))
    responses, signs = _statistics(n_pairs, _N_SIMULATED)
    y = responses + effect
    flipped = np.abs(y @ signs.T)
    p = np.mean(flipped >= np.abs(y.sum(axis=1))[:, None] - 1e-12, axis=1)
    return float(np.mean(p <= alpha))


def detectable(n_pairs: int, alpha: float, sigma_run: float) -> float | None:
    """Smallest effect that is found with probability `POWER`.

    Parameters
    ----------
    n_pairs, alpha
        As in `power`.
    sigma_run
        Standard deviation of the logarithm of one run's speed.

    Returns
    -------
    float or None
        As a fraction; None when no effect can be found.
    """
    if n_pairs < 2 or smallest_p(n_pairs) > alpha:
        return None
    return math.expm1(_effect(n_pairs, alpha) * sigma_run * math.sqrt(2.0))


@functools.cache
def _effect(n_pairs: int, alpha: float) -> float:
    low, high = 0.0, 8.0
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (low, middle) if power(n_pairs, alpha, middle) >= POWER else (middle, high)
    return high


def pairs_that_can_claim(n_rows: int) -> int:
    """Fewest pairs with which a table of `n_rows` rows can make a claim at all.

    Holm's correction multiplies the smallest p by the number of rows, and n pairs give no p below 2 / 2**n.
    """
    return 1 + math.ceil(math.log2(max(1, n_rows) / ALPHA))


def pairs_for(effect: float, n_rows: int, sigma_run: float) -> int | None:
    """Fewest pairs that find an effect with probability `POWER` in a table of `n_rows` rows.

    Parameters
    ----------
    effect
        As a fraction, above 0.
    n_rows
        Rows of the table.
    sigma_run
        As in `detectable`.

    Returns
    -------
    int or None
        None when `MAX_PAIRS` pairs are not enough.
    """
    alpha = ALPHA / max(1, n_rows)
    size = math.log1p(effect) / (max(sigma_run, 1e-9) * math.sqrt(2.0))
    for n_pairs in range(pairs_that_can_claim(n_rows), MAX_PAIRS + 1):
        if power(n_pairs, alpha, size) >= POWER:
            return n_pairs
    return None
