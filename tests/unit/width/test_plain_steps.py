"""When a plain step tells what decoding without MTP takes."""

from __future__ import annotations

import pytest

from pylucebox.width.costs import CostModel
from pylucebox.width.plain_steps import PlainSteps
from pylucebox.width.policy import WidthCosts

from ._drive import costs

SLOW_US, FAST_US = 20_000.0, 500.0


@pytest.mark.parametrize(("plain_us", "first"), [(SLOW_US, 1), (FAST_US, 8)])
def test_the_first_of_a_row_tell_nothing(plain_us: float, first: int) -> None:
    steps = PlainSteps()
    assert [steps.plain(plain_us) for _ in range(first + 2)] == [False] * first + [True, True]
    steps.drafted(None)
    assert not steps.plain(plain_us)


@pytest.mark.parametrize(("plain_us", "n"), [(SLOW_US, 4), (FAST_US, 11)])
def test_after_a_sweep_as_many_are_run_as_it_takes_to_see_three(plain_us: float, n: int) -> None:
    steps = PlainSteps()
    assert not steps.asked(plain_us)
    steps.ask_for_first(plain_us)
    counted = 0
    for _ in range(n):
        assert steps.asked(plain_us)
        counted += steps.plain(plain_us)
    assert not steps.asked(plain_us)
    assert counted == 3


@pytest.mark.parametrize(("plain_us", "passes", "n"), [(SLOW_US, 400, 3), (FAST_US, 150, 10)])
def test_where_all_is_drafted_some_are_run_now_and_then(plain_us: float, passes: int, n: int) -> None:
    steps = PlainSteps()
    for _ in range(passes):
        assert not steps.asked(plain_us)
        steps.drafted(None)
    for _ in range(n):
        assert steps.asked(plain_us)
        steps.plain(plain_us)
    assert not steps.asked(plain_us)


def test_a_draft_behind_many_is_known_to_cost_more() -> None:
    steps = PlainSteps()
    for _ in range(6):
        for _ in range(100):
            steps.plain(FAST_US)
        steps.drafted(6000.0)
        assert steps.catch_up_us == 0.0
    for _ in range(51):
        steps.plain(FAST_US)
    assert steps.catch_up_us == pytest.approx(50 * 60, rel=0.02)
    steps.begin_request()
    assert steps.catch_up_us == 0.0


def test_a_single_plain_step_leaves_nothing_to_catch_up_with() -> None:
    steps = PlainSteps()
    for _ in range(20):
        steps.plain(FAST_US)
    steps.drafted(1000.0)
    steps.plain(FAST_US)
    assert steps.catch_up_us == 0.0


def test_a_plain_step_much_faster_than_known_is_believed_at_once_and_a_slower_one_is_not() -> None:
    costs = WidthCosts(
        verify_us=tuple(900.0 + 200 * n for n in range(8)),
        draft_us=tuple(100.0 * (n + 1) for n in range(7)),
        reject_us=0.0,
        mtp_prefill_us_per_token=0.0,
        n_past=128,
        source="sweep",
    )
    model = CostModel(costs)
    model.learn_verify(1, 450.0, built=False)
    model.learn_verify(1, 460.0, built=False)
    assert model.relative().prices.verify[0] == pytest.approx(450.0, abs=10)
    model.learn_verify(1, 2000.0, built=False)
    assert model.relative().prices.verify[0] == pytest.approx(460.0, abs=10)


def test_plain_step_of_several_sequences_is_treated_like_that_of_one() -> None:
    model = CostModel(costs(24_000, 3_500, 1_600)).relative(4)
    plain_us = model.prices.verify[3]
    for _ in range(24):
        model.learn_verify(4, 0.5 * plain_us, built=False)
    assert model.prices.verify[3] == pytest.approx(0.5 * plain_us)  # no guess from other rows
    for _ in range(12):
        model.learn_verify(4, 5 * plain_us, built=False)
        for _ in range(4):
            model.learn_verify(4, 0.51 * plain_us, built=False)
    assert model.prices.verify[3] < 0.52 * plain_us  # hiccups are none of it
