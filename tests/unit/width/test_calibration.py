"""From probabilities to chances."""

from __future__ import annotations

import json
import math
import random

import pytest

from pylucebox.width.calibration import Calibrator, Signs, log_odds


def signs(p: float, recent: float = 0.5, luck: float = 0.0, echo: float = 0.0) -> Signs:
    return Signs(log_odds(p), log_odds(recent), luck, echo)


def chances_of(calibrator: Calibrator, probs: list[float], recent: float) -> list[float]:
    """Chances of a chain without luck or echo."""
    return [calibrator.chance(depth, signs(p, recent))[0] for depth, p in enumerate(probs)]


def teach(calibrator: Calibrator, n: int, *, shift: float = 0.0, informative: bool = True, seed: int = 0) -> None:
    """Show labels whose true log-odds are the probability's, shifted; or that have nothing to do with it."""
    rng = random.Random(seed)
    for _ in range(n):
        p = rng.uniform(0.02, 0.98)
        chance = 1 / (1 + math.exp(-log_odds(p) - shift)) if informative else 0.5
        calibrator.learn(1, signs(p), rng.random() < chance, 0.5)


@pytest.mark.parametrize("p", [math.nan, -1.0, 2.0, math.inf])
def test_what_is_no_probability_says_nothing(p: float) -> None:
    assert log_odds(p) == 0.0


def test_log_odds_are_limited() -> None:
    assert log_odds(0.0) == -log_odds(1.0) == -6.9


def test_chances_follow_the_probabilities_from_the_start() -> None:
    low, high = chances_of(Calibrator(), [0.2, 0.9], 0.75)
    assert low < 0.35
    assert high > 0.75


def test_probabilities_that_promise_too_much_are_corrected() -> None:
    calibrator = Calibrator()
    teach(calibrator, 600, shift=-1.5)
    (chance,) = chances_of(calibrator, [0.9], 0.5)
    assert chance == pytest.approx(1 / (1 + math.exp(-log_odds(0.9) + 1.5)), abs=0.08)


def test_probabilities_that_say_nothing_are_found_out() -> None:
    calibrator = Calibrator()
    teach(calibrator, 400, informative=False)
    low, high = chances_of(calibrator, [0.1, 0.9], 0.5)
    assert 0.35 < low <= high < 0.65


def test_probabilities_that_are_worse_than_counting_are_not_used() -> None:
    calibrator, rng = Calibrator(), random.Random(0)
    for _ in range(40):  # before the weights have followed
        p = rng.choice((0.02, 0.98))
        calibrator.learn(1, signs(p), p < 0.5, 0.5)
    assert not calibrator.better


def test_probabilities_that_tell_are_trusted() -> None:
    calibrator = Calibrator()
    teach(calibrator, 300)
    assert calibrator.better
    chances, counts = calibrator.brier
    assert chances is not None
    assert counts is not None
    assert chances < counts


def test_a_text_that_begins_oddly_is_not_left_to_counting() -> None:
    calibrator = Calibrator()
    for p, held in ((0.82, False), (0.84, False), (0.3, True)):  # where counting says three in four
        calibrator.learn(0, signs(p), held, 0.75)
    assert calibrator.better


def test_more_probable_never_counts_as_less_likely() -> None:
    calibrator, rng = Calibrator(), random.Random(3)
    for _ in range(500):  # the opposite of what probabilities should say
        p = rng.random()
        calibrator.learn(0, signs(p, 1 - p), rng.random() > p, 0.5)
    chances = chances_of(calibrator, [0.1, 0.1, 0.5, 0.9], 0.5)[1:]
    assert chances == sorted(chances)
    assert chances_of(calibrator, [0.5], 0.9) >= chances_of(calibrator, [0.5], 0.1)


def test_luck_and_echoes_move_the_chance_and_what_is_usual_leaves_luck_out() -> None:
    calibrator = Calibrator()
    poor, usual = calibrator.chance(1, signs(0.7, luck=-3.0))
    plain, same = calibrator.chance(1, signs(0.7))
    good, _ = calibrator.chance(1, signs(0.7, luck=3.0))
    assert poor < plain < good
    assert usual == same == plain
    assert calibrator.chance(1, signs(0.7, echo=-1.0))[0] < plain < calibrator.chance(1, signs(0.7, echo=1.0))[0]


def test_luck_that_says_nothing_is_found_out() -> None:
    calibrator, rng = Calibrator(), random.Random(5)
    for _ in range(800):
        calibrator.learn(1, signs(0.6, luck=rng.choice((-3.0, 3.0))), rng.random() < 0.6, 0.6)
    assert calibrator.luck_weight < 0.15


def test_another_text_inherits_no_pessimism() -> None:
    calibrator = Calibrator()
    teach(calibrator, 600, shift=-4.0)
    (before,) = chances_of(calibrator, [0.9], 0.75)
    calibrator.begin()
    (after,) = chances_of(calibrator, [0.9], 0.75)
    assert after > before


def test_calibrator_survives_json() -> None:
    calibrator = Calibrator()
    teach(calibrator, 50)
    again = Calibrator.restored(json.loads(json.dumps(calibrator.snapshot())))
    assert chances_of(again, [0.3, 0.8], 0.6) == chances_of(calibrator, [0.3, 0.8], 0.6)
    with pytest.raises(ValueError, match="weights"):
        Calibrator.restored({"weights": [1.0], "curvature": [1.0]})
