"""From probabilities to chances."""

from __future__ import annotations

import json
import math
import random

import pytest

from pylucebox.width.calibration import Calibrator, Recent, log_odds


def teach(calibrator: Calibrator, n: int, *, shift: float = 0.0, informative: bool = True, seed: int = 0) -> None:
    """Show labels whose true log-odds are the probability's, shifted; or that have nothing to do with it."""
    rng = random.Random(seed)
    for _ in range(n):
        p = rng.uniform(0.02, 0.98)
        chance = 1 / (1 + math.exp(-log_odds(p) - shift)) if informative else 0.5
        calibrator.learn(1, p, 0.0, rng.random() < chance, 0.5)


@pytest.mark.parametrize("p", [math.nan, -1.0, 2.0, math.inf])
def test_what_is_no_probability_says_nothing(p: float) -> None:
    assert log_odds(p) == 0.0


def test_log_odds_are_limited() -> None:
    assert log_odds(0.0) == -log_odds(1.0) == -6.9


def test_chances_follow_the_probabilities_from_the_start() -> None:
    low, high = Calibrator().chances([0.2, 0.9], Recent(0.75))
    assert low < 0.35
    assert high > 0.75


def test_probabilities_that_promise_too_much_are_corrected() -> None:
    calibrator = Calibrator()
    teach(calibrator, 600, shift=-1.5)
    (chance,) = calibrator.chances([0.9], Recent(0.5))
    assert chance == pytest.approx(1 / (1 + math.exp(-log_odds(0.9) + 1.5)), abs=0.08)


def test_probabilities_that_say_nothing_are_found_out() -> None:
    calibrator = Calibrator()
    teach(calibrator, 400, informative=False)
    low, high = calibrator.chances([0.1, 0.9], Recent(0.5))
    assert 0.35 < low <= high < 0.65


def test_probabilities_that_are_worse_than_counting_are_not_used() -> None:
    calibrator, rng = Calibrator(), random.Random(0)
    for _ in range(40):  # before the weights have followed
        p = rng.choice((0.02, 0.98))
        calibrator.learn(1, p, 0.0, p < 0.5, 0.5)
    assert not calibrator.better


def test_probabilities_that_tell_are_trusted() -> None:
    calibrator = Calibrator()
    teach(calibrator, 300)
    assert calibrator.better
    chances, counts = calibrator.brier
    assert chances is not None
    assert counts is not None
    assert chances < counts


def test_more_probable_never_counts_as_less_likely() -> None:
    calibrator, rng = Calibrator(), random.Random(3)
    for _ in range(500):  # the opposite of what probabilities should say
        p = rng.random()
        calibrator.learn(0, p, log_odds(1 - p), rng.random() > p, 0.5)
    chances = calibrator.chances([0.1, 0.1, 0.5, 0.9], Recent(0.5))[1:]
    assert chances == sorted(chances)
    assert calibrator.chances([0.5], Recent(0.9)) >= calibrator.chances([0.5], Recent(0.1))


def test_another_text_inherits_no_pessimism() -> None:
    calibrator = Calibrator()
    teach(calibrator, 600, shift=-4.0)
    (before,) = calibrator.chances([0.9], Recent(0.75))
    calibrator.begin()
    (after,) = calibrator.chances([0.9], Recent(0.75))
    assert after > before


def test_calibrator_survives_json() -> None:
    calibrator = Calibrator()
    teach(calibrator, 50)
    again = Calibrator.restored(json.loads(json.dumps(calibrator.snapshot())))
    assert again.chances([0.3, 0.8], Recent(0.6)) == calibrator.chances([0.3, 0.8], Recent(0.6))
    with pytest.raises(ValueError, match="weights"):
        Calibrator.restored({"weights": [1.0], "curvature": [1.0]})
