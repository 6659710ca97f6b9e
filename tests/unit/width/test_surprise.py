"""What the trunk's own probabilities foretell of drafts."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from pylucebox.width.surprise import Foretold, Surprise


def surprise_of(*logprobs: float) -> float:
    surprise = Surprise()
    surprise.take(logprobs)
    return surprise.mean


def test_nothing_is_known_of_a_text_without_tokens() -> None:
    assert Surprise().mean == 1.0
    assert Surprise().n == 0


def test_certain_tokens_are_no_surprise_and_improbable_ones_count_alike() -> None:
    assert surprise_of(0.0, 0.0, 0.0) == 0.0
    assert surprise_of(-1.0) == surprise_of(-20.0) == surprise_of(-math.inf) == 1.0
    assert 0.0 < surprise_of(-0.1) < surprise_of(-0.2) < 1.0


def test_what_is_not_known_counts_as_a_surprise() -> None:
    assert surprise_of(math.nan) == 1.0


def test_the_last_tokens_weigh_most() -> None:
    surprise = Surprise()
    surprise.take([-5.0] * 50)
    surprise.take([0.0] * 30)
    assert surprise.mean < 0.05
    assert surprise.n == 80


def test_tokens_taken_one_by_one_and_together_are_the_same() -> None:
    logprobs = [-0.01, -3.0, -0.3, 0.0, -0.5]
    one_by_one = Surprise()
    for logprob in logprobs:
        one_by_one.take((logprob,))
    assert one_by_one.mean == surprise_of(*logprobs)


def test_drafts_are_expected_to_hold_less_the_more_a_text_surprises() -> None:
    foretold = Foretold()
    tokens = [foretold.tokens(step / 20)[-1] for step in range(21)]
    assert all(a > b for a, b in pairwise(tokens))
    assert 7.5 < tokens[0] < 8.0
    assert tokens[-1] < 2.0


def test_drafts_that_do_not_hold_take_trust_away_until_it_comes_back() -> None:
    foretold = Foretold()
    for _ in range(3):
        foretold.learn(0.0, 7, 0)
    doubtful = foretold.tokens(0.0)[-1]
    assert doubtful < 0.75 * Foretold().tokens(0.0)[-1]
    foretold.rest(5000)
    assert foretold.tokens(0.0)[-1] == pytest.approx(Foretold().tokens(0.0)[-1], rel=0.01)


def test_drafts_that_hold_more_often_than_foretold_promise_no_more() -> None:
    foretold = Foretold()
    for _ in range(20):
        foretold.learn(0.5, 7, 7)
    assert foretold.trust == 1.0
