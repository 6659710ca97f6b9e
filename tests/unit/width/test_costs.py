"""What cycles cost, as far as it was measured."""

from __future__ import annotations

import json
import random

import pytest

from pylucebox.width import WidthCosts
from pylucebox.width.book import CostBook
from pylucebox.width.costs import CostModel

from ._drive import CLIFF, MIDDLE, STEEP


def test_prices_start_from_what_was_measured() -> None:
    prices = CostModel(STEEP).prices
    assert prices.verify == pytest.approx(list(STEEP.verify_us), rel=0.01)
    assert prices.draft == pytest.approx([0.0, *STEEP.draft_us])
    assert prices.reject == 0.0


def test_cliff_survives_many_measurements() -> None:
    model = CostModel(CLIFF)
    for _ in range(40):
        for rows in range(1, 9):
            model.learn_verify(rows, CLIFF.verify_us[rows - 1], built=False)
    assert model.prices.verify == pytest.approx(list(CLIFF.verify_us), rel=0.03)


def test_rows_that_were_never_timed_are_priced_by_a_line() -> None:
    model = CostModel()
    for _ in range(30):
        model.learn_verify(1, 10_000, built=False)
        model.learn_verify(3, 14_000, built=False)
    verify = model.prices.verify
    assert verify[1] == pytest.approx(12_000, rel=0.1)
    assert verify[7] == pytest.approx(24_000, rel=0.2)
    assert not model.timed(2)


def test_cycles_that_built_a_graph_do_not_count() -> None:
    model = CostModel()
    model.learn_verify(2, 90_000, built=True)
    assert not model.known
    model.learn_verify(2, 10_000, built=False)
    assert model.prices.verify[1] == pytest.approx(10_000, rel=0.01)


def test_machine_that_builds_every_time_is_priced_with_it() -> None:
    model = CostModel()
    for _ in range(5):
        model.learn_verify(2, 90_000, built=True)
    assert model.timed(2)


def test_spike_moves_a_price_by_little() -> None:
    model = CostModel(MIDDLE)
    before = model.prices.verify[3]
    for _ in range(15):  # prices are computed anew after some samples
        model.learn_verify(4, MIDDLE.verify_us[3], built=False)
    model.learn_verify(4, 100 * MIDDLE.verify_us[3], built=False)
    for _ in range(15):
        model.learn_verify(4, MIDDLE.verify_us[3], built=False)
    assert model.prices.verify[3] == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("error", [0.4, 2.5])
def test_wrong_figure_of_rows_that_are_never_run_fades(error: float) -> None:
    wrong = list(MIDDLE.verify_us)
    wrong[5] *= error
    model = CostModel(WidthCosts.from_dict({**MIDDLE.as_dict(), "verify_us": wrong}))
    rng = random.Random(1)
    for _ in range(2000):
        rows = rng.choice((1, 2, 3, 4, 5, 7, 8))
        model.learn_verify(rows, MIDDLE.verify_us[rows - 1], built=False)
    assert model.prices.verify[5] == pytest.approx(MIDDLE.verify_us[5], rel=0.1)


def test_slower_clock_moves_all_prices_at_once() -> None:
    model = CostModel(MIDDLE)
    for _ in range(60):
        model.learn_verify(2, 1.2 * MIDDLE.verify_us[1], built=False)
    assert model.prices.verify[7] > 1.08 * MIDDLE.verify_us[7]
    assert model.prices.verify[1] == pytest.approx(1.2 * MIDDLE.verify_us[1], rel=0.03)


def test_drafts_and_rejections_are_learned() -> None:
    model = CostModel(MIDDLE)
    for _ in range(100):
        model.learn_draft(3, 1.5 * MIDDLE.draft_us[2])
        model.learn_rest(True, 2_600)
        model.learn_rest(False, 600)
    assert model.prices.draft[7] == pytest.approx(1.5 * MIDDLE.draft_us[6], rel=0.02)
    assert model.prices.reject == pytest.approx(2_000, rel=0.1)


def test_a_chain_that_was_held_up_sets_no_price() -> None:
    model = CostModel()
    model.learn_verify(1, 1_000, built=False)
    model.learn_draft(7, 30_000)
    model.learn_draft(7, 1_000)
    model.learn_draft(7, 30_000)
    assert model.prices.draft[7] < 3_000


def test_rows_out_of_range_are_ignored() -> None:
    model = CostModel(STEEP)
    model.learn_verify(12, 1.0, built=False)
    model.learn_verify(0, 1.0, built=False)
    assert model.prices.verify == pytest.approx(list(STEEP.verify_us), rel=0.01)


def test_other_circumstances_start_from_the_nearest_and_go_their_own_way() -> None:
    book = CostBook(MIDDLE)
    here, far = book.at(1, 100), book.at(1, 40_000)
    assert far is book.at(1, 50_000)
    assert far is not here
    assert far.prices.verify == pytest.approx(here.prices.verify, rel=0.01)
    for _ in range(200):
        far.learn_verify(4, 2 * MIDDLE.verify_us[3], built=False)
    assert far.prices.verify[3] > 1.8 * here.prices.verify[3]
    assert book.at(3, 100) is not here


def test_book_survives_json() -> None:
    book = CostBook(MIDDLE)
    for rows in range(1, 9):
        book.at(2, 9_000).learn_verify(rows, 1.1 * MIDDLE.verify_us[rows - 1], built=False)
    stored = json.loads(json.dumps(book.snapshot()))
    again = CostBook.restored(stored)
    assert again.snapshot() == book.snapshot()
    assert again.at(2, 9_000).prices.draft == book.at(2, 9_000).prices.draft
