"""Whether one more draft is worth its time."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pylucebox.width import WidthCosts
from pylucebox.width.costs import CostModel
from pylucebox.width.lookahead import Lookahead, mood_of

from ._drive import CLIFF, DEAR, FLAT, STEEP


def looked(machine: WidthCosts, chance: float, price: float, *, spread: float = 0.05) -> Lookahead:
    """A look-ahead on a machine where drafts have lately had about this chance; price in plain steps' tokens."""
    rng, lookahead = random.Random(0), Lookahead()
    for _ in range(200):
        lookahead.learn([min(0.999, max(0.0, rng.gauss(chance, spread))) for _ in range(7)], mood_of(chance))
    lookahead.refresh_all(price / machine.verify_us[0], CostModel(machine).prices)
    return lookahead


def test_sure_drafts_are_worth_making_and_hopeless_ones_are_not() -> None:
    assert looked(STEEP, 0.95, 1.2).threshold[0][2] < 1.0
    assert looked(STEEP, 0.05, 1.0).threshold[0][0] > 1.0


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
    assert looked(CLIFF, 0.99, 3.0, spread=0.003).threshold[3][2] < 1.0
    assert looked(CLIFF, 0.75, 3.0).threshold[3][1] > 0.95


def test_last_draft_tells_of_the_next() -> None:
    rng, lookahead = random.Random(0), Lookahead()
    for _ in range(300):
        easy = rng.random() < 0.5
        lookahead.learn([0.95 if easy else 0.3] * 7, 2 if easy else 0)
    lookahead.refresh_all(1.0 / STEEP.verify_us[0], CostModel(STEEP).prices)
    unsure, _, sure = lookahead.threshold[1]
    assert sure < unsure


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_extremes_are_no_special_case(chance: float) -> None:
    threshold = looked(FLAT, chance, 1.0, spread=0.0).threshold[0][mood_of(chance)]
    assert (threshold > 1.0) == (chance == 0.0)
