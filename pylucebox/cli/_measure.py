"""Plan and statistics of a paired speed comparison. Pure: no clock, no engine, no I/O.

Two arms are compared in *pairs*: both arms run the same prompt one right after the other, and the pair's
response is the logarithm of their speed ratio. Slow drift of the machine (clocks, temperature, other load) then
touches both arms of a pair alike, and the order inside the pairs is balanced so that what drift remains cancels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
"""Least coverage aimed at by the intervals of this module."""

MIN_PAIRS = 6
"""Fewest pairs whose interval reaches `CONFIDENCE`: with 5 even the whole range covers only 1 - 2 / 2**5 = 94 %."""

N_RESAMPLES = 4000
"""Resamples behind the noise floor; its own scatter is then well under a tenth of its value."""

RESAMPLE_SEED = 1
"""Seed of the resampling, fixed so that the same measurements always give the same report."""


@dataclass(frozen=True)
class PlannedPair:
    """One pair of the plan.

    Attributes
    ----------
    round_index
        Round the pair belongs to; every round visits every prompt once.
    prompt_index
        Prompt both arms run.
    second_first
        Whether arm 1 runs before arm 0.
    """

    round_index: int
    prompt_index: int
    second_first: bool


def plan_pairs(n_prompts: int, n_rounds: int) -> Iterator[PlannedPair]:
    """Lay out the pairs of a comparison of two arms.

    The rounds go over all prompts before the next round starts, so a disturbance hits one pair of several prompts
    and not all pairs of one. The order inside the pairs follows the Thue-Morse sequence, which begins with
    AB BA BA AB and, over 2**k rounds, balances drift of polynomial degree below k. Neighbouring prompts start with
    opposite orders.

    Parameters
    ----------
    n_prompts, n_rounds
        Both at least 1.

    Yields
    ------
    PlannedPair
        ``n_prompts * n_rounds`` pairs in running order.
    """
    for round_index in range(n_rounds):
        for prompt_index in range(n_prompts):
            ones = round_index.bit_count() + prompt_index
            yield PlannedPair(round_index, prompt_index, second_first=ones % 2 == 1)


@dataclass(frozen=True)
class Estimate:
    """Median of paired speed ratios with an interval.

    Attributes
    ----------
    ratio
        Median ratio, arm 1 over arm 0; above 1 means that arm 1 is faster.
    low, high
        Ends of the interval, on the same scale.
    coverage
        Probability with which such an interval contains the true median. It is at least `CONFIDENCE` from
        `MIN_PAIRS` on; with fewer pairs the interval spans all of them and covers less.
    n_pairs
        Pairs used.
    """

    ratio: float
    low: float
    high: float
    coverage: float
    n_pairs: int


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Distribution-free interval for a median, between two order statistics.

    The number of samples below the true median is binomial with p = 1/2 whatever the distribution, so the
    interval from the j-th smallest to the j-th largest of n values misses it with probability
    ``2 * sum(C(n, i) for i < j) / 2**n`` (W. R. Thompson, 1936). The widest j that still keeps `confidence` is
    used. No resampling, hence no seed, and no claim of more precision than few pairs hold.

    Parameters
    ----------
    values
        At least one value.
    confidence
        Wanted coverage, between 0 and 1.

    Returns
    -------
    tuple of float
        Low end, high end and the coverage attained.
    """
    ordered = sorted(values)
    n = len(ordered)
    j = 1
    tail = 1.0
    while 2 * (j + 1) <= n:
        wider_tail = tail + math.comb(n, j)
        if 1.0 - 2.0 * wider_tail / 2.0**n < confidence:
            break
        tail = wider_tail
        j += 1
    coverage = max(0.0, 1.0 - 2.0 * tail / 2.0**n)
    return ordered[j - 1], ordered[n - j], coverage


def estimate(log_ratios: Sequence[float]) -> Estimate:
    """Summarise the pairs of one comparison.

    Parameters
    ----------
    log_ratios
        ``ln(speed of arm 1 / speed of arm 0)`` of each pair, at least one.

    Returns
    -------
    Estimate
        Median and interval as ratios.
    """
    low, high, coverage = median_interval(log_ratios)
    return Estimate(
        ratio=math.exp(statistics.median(log_ratios)),
        low=math.exp(low),
        high=math.exp(high),
        coverage=coverage,
        n_pairs=len(log_ratios),
    )


@dataclass(frozen=True)
class Noise:
    """What the comparison reports when both arms are the same engine.

    Attributes
    ----------
    estimate
        Median ratio of all A/A pairs with its interval; 1 lies inside unless the order or the drift matters.
    floor
        Size a median of `n_pairs` pairs stays under in 95 % of cases although nothing differs, as a fraction
        (0.01 is one per cent). A smaller effect is not told from noise.
    n_pairs
        Pairs of one prompt that `floor` holds for.
    """

    estimate: Estimate
    floor: float
    n_pairs: int


def noise_of(log_ratios: Sequence[float], n_pairs: int) -> Noise:
    """Noise floor from pairs of two identical arms.

    Parameters
    ----------
    log_ratios
        Log ratios of all A/A pairs of all prompts, at least one.
    n_pairs
        Pairs per prompt of the comparison the floor is for.

    Returns
    -------
    Noise
        The floor is that of `lucebox ab`, see `pylucebox.ab.stats.noise_floor`.
    """
    import numpy as np  # noqa: PLC0415 - slower to import than most commands are to run

    from pylucebox.ab.stats import noise_floor  # noqa: PLC0415

    floor = noise_floor(log_ratios, n_pairs, N_RESAMPLES, np.random.default_rng(RESAMPLE_SEED))
    return Noise(estimate=estimate(log_ratios), floor=math.expm1(floor), n_pairs=n_pairs)


def verdict(result: Estimate, floor: float) -> str:
    """Name what an estimate shows.

    Parameters
    ----------
    result
        Estimate of arm 1 against arm 0.
    floor
        Noise floor as a fraction, see `Noise`.

    Returns
    -------
    str
        ``"faster"`` or ``"slower"`` when the interval covers `CONFIDENCE`, leaves out 1, and the effect is larger than
        the floor; else ``"unresolved"``.
    """
    if result.coverage < CONFIDENCE or abs(math.log(result.ratio)) <= math.log1p(floor):
        return "unresolved"
    if result.low > 1.0:
        return "faster"
    if result.high < 1.0:
        return "slower"
    return "unresolved"


def pooled(log_ratios_by_prompt: Sequence[Sequence[float]]) -> Estimate:
    """Estimate over all prompts, each weighing the same.

    Parameters
    ----------
    log_ratios_by_prompt
        Per prompt the log ratios of its rounds, in round order and all of one length.

    Returns
    -------
    Estimate
        Median over the rounds of the geometric mean over the prompts.
    """
    return estimate([statistics.fmean(row) for row in zip(*log_ratios_by_prompt, strict=True)])


@dataclass(frozen=True)
class CycleCost:
    """Where the time of a cycle goes, in plain decode steps.

    Attributes
    ----------
    step_us
        One decode step with MTP off, microseconds.
    draft_steps, verify_steps, other_steps
        Drafting, verifying, and everything else of one cycle (sampling, rollback, bookkeeping), each divided by
        `step_us`.
    rows_per_cycle, tokens_per_cycle
        Rows verified and new tokens of one cycle.
    """

    step_us: float
    draft_steps: float
    verify_steps: float
    other_steps: float
    rows_per_cycle: float
    tokens_per_cycle: float

    @property
    def cycle_steps(self) -> float:
        """Whole cycle in plain steps; drafting pays when `tokens_per_cycle` is larger."""
        return self.draft_steps + self.verify_steps + self.other_steps

    @property
    def verify_row_steps(self) -> float:
        """Verify time of one row in plain steps."""
        return self.verify_steps / self.rows_per_cycle


def cycle_cost(
    *,
    step_us: float,
    decode_us: float,
    draft_us: float,
    verify_us: float,
    n_cycles: int,
    n_rows: int,
    n_tokens: int,
) -> CycleCost:
    """Express measured times in plain decode steps.

    Parameters
    ----------
    step_us
        One decode step with MTP off, microseconds; above 0.
    decode_us, draft_us, verify_us
        Sums over the cycles, microseconds.
    n_cycles, n_rows, n_tokens
        Cycles, rows of their verify batches and new tokens; at least 1 each.

    Returns
    -------
    CycleCost
        The same per cycle.
    """
    unit_us = step_us * n_cycles
    return CycleCost(
        step_us=step_us,
        draft_steps=draft_us / unit_us,
        verify_steps=verify_us / unit_us,
        other_steps=max(0.0, decode_us - draft_us - verify_us) / unit_us,
        rows_per_cycle=n_rows / n_cycles,
        tokens_per_cycle=n_tokens / n_cycles,
    )
