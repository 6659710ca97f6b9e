"""The plan and the statistics of `lucebox demo`."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from pylucebox.cli import _measure


def test_every_round_visits_every_prompt_once_before_the_next_begins() -> None:
    plan = list(_measure.plan_pairs(3, 4))
    assert [(pair.round_index, pair.prompt_index) for pair in plan] == list(itertools.product(range(4), range(3)))


def test_order_within_pairs_is_abba_then_baab() -> None:
    orders = [pair.second_first for pair in _measure.plan_pairs(1, 8)]
    assert orders == [False, True, True, False, True, False, False, True]


def test_neighbouring_prompts_start_with_opposite_orders() -> None:
    by_round = [[pair.second_first for pair in _measure.plan_pairs(4, 2) if pair.round_index == r] for r in (0, 1)]
    assert by_round[0] == [False, True, False, True]
    assert by_round[1] == [True, False, True, False]


@pytest.mark.parametrize("degree", [1, 2])
def test_drift_of_the_machine_leaves_the_ratio_of_equal_arms_at_one(degree: int) -> None:
    """Each run slows the machine a little more; the arms are equal, so the mean log ratio must stay 0."""
    responses = []
    clock = itertools.count()
    for pair in _measure.plan_pairs(1, 8):
        first, second = (-1e-4 * next(clock) ** degree for _ in range(2))
        arm0, arm1 = (second, first) if pair.second_first else (first, second)
        responses.append(arm1 - arm0)
    assert sum(responses) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("n", "index", "coverage"),
    [(1, 0, 0.0), (3, 0, 0.75), (5, 0, 0.9375), (6, 0, 0.96875), (9, 1, 1 - 20 / 512), (10, 1, 1 - 22 / 1024)],
)
def test_interval_takes_the_order_statistics_that_keep_the_coverage(n: int, index: int, coverage: float) -> None:
    values = [float(i) for i in range(n)]
    low, high, attained = _measure.median_interval(values[::-1])
    assert (low, high) == (values[index], values[n - 1 - index])
    assert attained == pytest.approx(coverage)


def test_interval_covers_the_median_of_a_skewed_distribution_as_often_as_it_says() -> None:
    rng = random.Random(5)
    true_median = math.log(2.0)
    n_trials = 4000
    hits = 0
    for _ in range(n_trials):
        low, high, coverage = _measure.median_interval([rng.expovariate(1.0) for _ in range(10)])
        hits += low <= true_median <= high
    assert hits / n_trials == pytest.approx(coverage, abs=0.01)


def test_from_the_stated_number_of_pairs_on_an_interval_reaches_the_stated_coverage() -> None:
    coverages = {n: _measure.median_interval([0.0] * n)[2] for n in range(1, 30)}
    assert [n for n, coverage in coverages.items() if coverage >= _measure.CONFIDENCE] == list(
        range(_measure.MIN_PAIRS, 30)
    )


def test_one_wild_pair_does_not_move_the_ratio() -> None:
    steady = [math.log(1.2)] * 9
    assert _measure.estimate([*steady, math.log(50.0)]).ratio == pytest.approx(1.2)


def test_estimate_is_the_median_as_a_ratio() -> None:
    result = _measure.estimate([math.log(value) for value in (0.5, 0.8, 2.0)])
    assert result.ratio == pytest.approx(0.8)
    assert (result.low, result.high) == pytest.approx((0.5, 2.0))
    assert result.n_pairs == 3


def test_noise_floor_grows_with_the_scatter_and_shrinks_with_the_pairs() -> None:
    rng = random.Random(3)
    calm = [rng.gauss(0.0, 0.01) for _ in range(40)]
    wild = [10 * value for value in calm]
    assert _measure.noise_of(wild, 10).floor > 5 * _measure.noise_of(calm, 10).floor
    assert _measure.noise_of(wild, 40).floor < _measure.noise_of(wild, 4).floor


def test_noise_floor_of_runs_without_scatter_is_zero() -> None:
    assert _measure.noise_of([0.0] * 6, 3).floor == 0.0


def test_noise_floor_is_the_same_for_the_same_measurements() -> None:
    values = [0.01, -0.02, 0.005, 0.03]
    assert _measure.noise_of(values, 5) == _measure.noise_of(values, 5)


@pytest.mark.parametrize(
    ("log_ratios", "floor", "expected"),
    [
        ([0.09, 0.1, 0.11, 0.1, 0.09, 0.1], 0.02, "faster"),
        ([-0.09, -0.1, -0.11, -0.1, -0.09, -0.1], 0.02, "slower"),
        ([0.09, 0.1, 0.11, 0.1, 0.09, 0.1], 0.2, "unresolved"),
        ([-0.2, 0.3, 0.3, 0.3, 0.3, 0.3], 0.01, "unresolved"),
        ([0.3, 0.3, 0.3, 0.3, 0.3], 0.01, "unresolved"),
    ],
)
def test_verdict_needs_enough_pairs_an_interval_off_one_and_an_effect_above_the_noise(
    log_ratios: list[float], floor: float, expected: str
) -> None:
    assert _measure.verdict(_measure.estimate(log_ratios), floor) == expected


def test_pooled_ratio_weighs_all_prompts_alike() -> None:
    doubled, halved = [math.log(2.0)] * 6, [math.log(0.5)] * 6
    assert _measure.pooled([doubled, halved]).ratio == pytest.approx(1.0)


def test_pooling_refuses_prompts_with_different_numbers_of_rounds() -> None:
    with pytest.raises(ValueError, match="zip"):
        _measure.pooled([[0.0, 0.0], [0.0]])


def test_cycle_cost_adds_up_to_the_measured_time() -> None:
    cost = _measure.cycle_cost(
        step_us=1000.0, decode_us=9000.0, draft_us=3000.0, verify_us=5000.0, n_cycles=2, n_rows=8, n_tokens=6
    )
    assert cost.cycle_steps == pytest.approx(4.5)
    assert (cost.draft_steps, cost.verify_steps, cost.other_steps) == pytest.approx((1.5, 2.5, 0.5))
    assert cost.verify_row_steps == pytest.approx(0.625)
    assert cost.tokens_per_cycle == pytest.approx(3.0)
