"""What probabilities are worth, against figures computed by hand."""

from __future__ import annotations

import pytest
from _traces import trace_of

from pylucebox.sim.library import recorded
from pylucebox.sim.reliability import Bin, reliability
from pylucebox.sim.trace import DEPTH


def test_only_drafts_whose_forerunners_held_are_counted() -> None:
    # From the first place two drafts hold and the third does not, from the second none holds. Behind the third place
    # there are two tokens, which both hold, and behind the fourth one, which does not.
    trace = trace_of((2, 0, 2, 0))
    found = reliability([trace])
    assert [(each.depth, each.n) for each in found] == [(1, 4), (2, 2), (3, 1), (None, 7)]
    assert [each.held for each in found] == [0.5, 1.0, 0.0, 4 / 7]


def test_scores_by_hand() -> None:
    trace = trace_of((1, 0, 0, 1), probs=[[0.9] * DEPTH, [0.2] * DEPTH, [0.2] * DEPTH, [0.7] * DEPTH])
    first = reliability([trace])[0]
    # Labels at depth 1: 0.9 held, 0.2 did not, 0.2 did not, 0.7 held.
    assert (first.n, first.held) == (4, 0.5)
    assert first.brier == pytest.approx((0.01 + 0.04 + 0.04 + 0.09) / 4)
    assert first.brier_mean == 0.25
    assert first.skill == pytest.approx(1 - 0.045 / 0.25)
    assert first.ece == pytest.approx((2 * 0.2 + 0.3 + 0.1) / 4)
    assert [(each.low, each.n, each.observed) for each in first.bins] == [(0.2, 2, 0.0), (0.7, 1, 1.0), (0.9, 1, 1.0)]


def test_certain_drafts_fall_into_the_last_bin() -> None:
    (first, *_) = reliability([trace_of((1,), probs=[[1.0] * DEPTH])])
    assert first.bins == (Bin(0.9, 1.0, 1, 1.0, 1.0),)
    assert first.skill == 0.0  # there was nothing uncertain to take away


def test_the_interval_holds_the_share_and_shrinks_with_drafts() -> None:
    few, many = Bin(0.5, 0.6, 10, 0.55, 0.6), Bin(0.5, 0.6, 1000, 0.55, 0.6)
    assert few.interval()[0] < many.interval()[0] < 0.6 < many.interval()[1] < few.interval()[1]
    assert Bin(0.0, 0.1, 3, 0.05, 0.0).interval()[0] == 0.0
    # Wilson's interval for 6 of 10, as textbooks have it.
    assert few.interval() == pytest.approx((0.3127, 0.8318), abs=1e-4)


def test_nothing_gives_nothing() -> None:
    assert reliability([]) == []
    assert reliability([trace_of(())]) == []


def test_the_built_in_head_is_informative_and_calibrated() -> None:
    found = reliability(recorded())
    assert [each.depth for each in found] == [*range(1, DEPTH + 1), None]
    for each in found:
        assert each.skill > 0.25  # far more than the mean alone tells
        assert each.ece < 0.03
