"""Whether one more draft is worth its time."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pylucebox.width import WidthCosts
from pylucebox.width.calibration import log_odds
from pylucebox.width.costs import CostModel
from pylucebox.width.lookahead import Lookahead, mood_of

from ._drive import CLIFF, DEAR, FLAT, STEEP


def mood(chance: float) -> int:
    """Return the mood in which a draft of this chance is expected."""
    return mood_of(log_odds(chance))


def looked(machine: WidthCosts, chance: float, price: float, *, spread: float = 0.05) -> Lookahead:
    """A look-ahead on a machine where drafts have lately had about this chance; price in plain steps' tokens."""
    rng, lookahead = random.Random(0), Lookahead()
    for _ in range(200):
        lookahead.learn([min(0.999, max(0.0, rng.gauss(chance, spread))) for _ in range(7)], [mood(chance)] * 7)
    lookahead.refresh_all(price / machine.verify_us[0], CostModel(machine).prices)
    return lookahead


def test_sure_drafts_are_worth_making_and_hopeless_ones_are_not() -> None:
    assert looked(STEEP, 0.95, 1.2).threshold[0][mood(0.95)] < 1.0
    assert looked(STEEP, 0.05, 1.0).threshold[0][mood(0.05)] > 1.0


def test_no_eighth_draft() -> None:
    assert min(looked(FLAT, 0.99, 1.0).threshold[7]) > 1.0


def test_nothing_is_worth_drafting_where_a_row_costs_a_step() -> None:
    lookahead = looked(DEAR, 0.95, 1.0)
    assert all(threshold > 1.0 for threshold in lookahead.threshold[0])


def test_thresholds_rise_with_the_price_of_time() -> None:
    for chance in (0.5, 0.8, 0.95):
        columns = [looked(STEEP, chance, price).threshold for price in (1.0, 1.3, 1.6, 2.0, 3.0)]
        for cheap, dear in pairwise(columns):
            for low, high in zip(cheap, dear, strict=True):
                assert all(a <= b + 1e-9 for a, b in zip(low, high, strict=True))


def test_looks_across_a_row_that_is_dear_alone() -> None:
    # Behind the cliff at five rows are three that are cheap: for drafts as sure as this it is worth going there.
    assert looked(CLIFF, 0.99, 3.0, spread=0.003).threshold[3][mood(0.99)] < 1.0
    assert looked(CLIFF, 0.75, 3.0).threshold[3][mood(0.75)] > 0.95


def test_what_is_foretold_of_a_draft_decides_whether_it_is_made() -> None:
    rng, lookahead = random.Random(0), Lookahead()
    for _ in range(300):
        easy = rng.random() < 0.5
        lookahead.learn([0.97 if easy else 0.3] * 7, [8 if easy else 1] * 7)
    lookahead.refresh_all(1.0 / STEEP.verify_us[0], CostModel(STEEP).prices)
    unsure, sure = lookahead.threshold[1][1], lookahead.threshold[1][8]
    assert sure < unsure


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_extremes_are_no_special_case(chance: float) -> None:
    threshold = looked(STEEP, chance, 1.0, spread=0.0).threshold[0][mood(chance)]
    assert (threshold > 1.0) == (chance == 0.0)


def test_known_luck_decides_like_the_threshold_when_it_is_neither_good_nor_bad() -> None:
    lookahead = looked(STEEP, 0.7, 1.2, spread=0.2)
    for depth in range(7):
        for at in range(10):
            threshold = lookahead.threshold[depth][at]
            if threshold < 0.9:
                assert lookahead.worth(depth, at, min(1.0, threshold + 0.08), 0.0)
            if 0.1 < threshold <= 1.0:
                assert not lookahead.worth(depth, at, threshold - 0.08, 0.0)


def test_more_luck_makes_more_drafts_worth_while() -> None:
    lookahead = looked(STEEP, 0.7, 1.2, spread=0.2)
    for reach in (0.4, 0.6, 0.8, 1.0):
        answers = [lookahead.worth(1, 2, reach, shift) for shift in (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0)]
        assert answers == sorted(answers)
