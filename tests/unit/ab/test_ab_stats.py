"""The statistics against brute force, published values and known cases."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from pylucebox.ab import power, stats


def brute_force_p(values: list[float]) -> float:
    seen = abs(sum(values))
    signs = list(itertools.product((-1.0, 1.0), repeat=len(values)))
    extreme = [sum(s * v for s, v in zip(row, values, strict=True)) for row in signs]
    return sum(abs(total) >= seen - 1e-12 for total in extreme) / len(signs)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
def test_sign_flip_counts_all_sign_vectors(n: int) -> None:
    rng = random.Random(n)
    values = [rng.gauss(0.3, 1.0) for _ in range(n)]
    assert stats.sign_flip_p(values) == pytest.approx(brute_force_p(values), abs=0)


def test_meeting_in_the_middle_counts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    for n in (2, 3, 9, 10):
        values = [rng.gauss(0.3, 1.0) for _ in range(n)]
        direct = stats.sign_flip_p(values)
        with monkeypatch.context() as patch:
            patch.setattr(stats, "_DIRECT_PAIRS", 0)
            assert stats.sign_flip_p(values) == direct


def test_ties_count_as_extreme() -> None:
    # 0.1 + 0.2 - 0.3 is not zero in binary; the four sums of equal size must still be counted together.
    assert stats.sign_flip_p([0.1, 0.2, 0.3, 0.3]) == brute_force_p([0.1, 0.2, 0.3, 0.3])
    assert stats.sign_flip_p([0.0, 0.0, 0.0]) == 1.0


def test_one_sign_gives_the_smallest_p_even_for_the_most_pairs() -> None:
    assert stats.sign_flip_p([1.0] * 8) == stats.smallest_p(8) == 2 / 2**8
    values = [1.0 + 0.01 * n for n in range(stats.MAX_PAIRS)]
    assert stats.sign_flip_p(values) == stats.smallest_p(stats.MAX_PAIRS)


@pytest.mark.parametrize("n", [0, stats.MAX_PAIRS + 1])
def test_numbers_of_pairs_that_cannot_be_counted_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match="pairs"):
        stats.sign_flip_p([1.0] * n)


def test_holm_is_monotone_and_keeps_the_order_of_the_rows() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.5, 0.9]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("p", "df", "published"), [(0.975, 1, 12.706), (0.975, 7, 2.365), (0.95, 4, 2.132), (0.995, 30, 2.750)]
)
def test_t_quantiles_are_those_of_the_tables(p: float, df: int, published: float) -> None:
    assert stats.t_quantile(p, df) == pytest.approx(published, abs=0.0006)


def test_t_interval_of_known_values() -> None:
    interval = stats.t_interval([1.0, 2.0, 3.0, 4.0], 0.95)
    assert interval is not None
    half = 3.1824 * math.sqrt(5 / 3) / 2
    assert (interval.low, interval.high) == pytest.approx((2.5 - half, 2.5 + half), abs=1e-3)
    assert stats.t_interval([1.0], 0.95) is None


def test_bootstrap_repeats_with_its_seed_and_covers_the_median() -> None:
    values = [0.01, 0.02, 0.03, 0.02, 0.025]
    first = stats.bootstrap_medians(values, 500, np.random.default_rng(1))
    second = stats.bootstrap_medians(values, 500, np.random.default_rng(1))
    assert np.array_equal(first, second)
    interval = stats.percentile_interval(first, 0.95)
    assert interval.low <= 0.02 <= interval.high
    assert min(values) <= interval.low
    assert interval.high <= max(values)


def test_hierarchical_bootstrap_is_wider_when_workloads_disagree() -> None:
    rng = np.random.default_rng(1)
    alike = stats.hierarchical_means([[0.1, 0.1, 0.1], [0.1, 0.1]], 400, rng)
    apart = stats.hierarchical_means([[0.0, 0.0, 0.0], [0.2, 0.2]], 400, rng)
    assert np.ptp(alike) == 0.0
    assert set(np.round(apart, 9)) == {0.0, 0.1, 0.2}


def test_noise_floor_shrinks_with_pairs_and_ignores_which_side_was_first() -> None:
    same = [0.01, -0.02, 0.005, 0.015, -0.01]
    few = stats.noise_floor(same, 3, 4000, np.random.default_rng(1))
    many = stats.noise_floor(same, 12, 4000, np.random.default_rng(1))
    mirrored = stats.noise_floor([-value for value in same], 12, 4000, np.random.default_rng(1))
    assert 0 < many < few <= 0.02
    assert mirrored == many


def test_running_median_ignores_one_outlier_but_not_a_step() -> None:
    steady = np.zeros(9)
    outlier, step = steady.copy(), steady.copy()
    outlier[4] = 1.0
    step[5:] = 1.0
    assert stats.running_median_range(outlier) == 0.0
    assert stats.running_median_range(step) == 1.0
    assert stats.running_median_range(np.array([0.0, 0.5])) == 0.5
    assert stats.running_median_range(np.array([0.0, 0.0, 0.5])) == 0.5


def test_power_of_few_pairs_is_that_of_all_having_one_sign() -> None:
    # With 6 pairs only p = 2/64 is below 0.05, so the test finds an effect exactly when all pairs agree. The noise
    # floor and the interval take away a little more.
    effect = 1.5
    all_positive = (0.5 * math.erfc(-effect / math.sqrt(2.0))) ** 6
    assert all_positive - 0.08 < power.power(6, 0.05, effect) < all_positive + 0.02
    assert power.power(5, 0.05, 10.0) == 0.0


def test_power_grows_with_pairs_across_the_change_of_method() -> None:
    powers = [power.power(n_pairs, 0.05 / 6, 1.2) for n_pairs in (8, 10, 12, 14, 20)]
    assert powers == sorted(powers)
    assert max(after - before for before, after in itertools.pairwise(powers)) < 0.3


def test_planner_and_detectable_effect_agree() -> None:
    n_pairs = power.pairs_for(0.02, 6, 0.005)
    assert n_pairs is not None
    found = power.detectable(n_pairs, power.ALPHA / 6, 0.005)
    assert found is not None
    assert found <= 0.0202
    assert power.pairs_for(0.0001, 6, 0.02) is None


@pytest.mark.parametrize("n_rows", [1, 2, 6, 7, 12, 13, 100])
def test_fewest_pairs_of_a_claim(n_rows: int) -> None:
    n_pairs = power.pairs_that_can_claim(n_rows)
    assert n_rows * stats.smallest_p(n_pairs) <= power.ALPHA
    assert n_rows * stats.smallest_p(n_pairs - 1) > power.ALPHA
    assert power.detectable(n_pairs - 1, power.ALPHA / n_rows, 0.005) is None
