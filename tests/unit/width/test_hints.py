"""What is known of a text beforehand: the numbers that draw it, and passages that come again."""

from __future__ import annotations

import random
from math import log

import pytest

from pylucebox.width import AdaptiveWidth
from pylucebox.width.echo import SEARCHED_TOKENS, Echo
from pylucebox.width.hints import Draws
from pylucebox.width.sequence import SequenceState

from ._drive import STEEP, StoppedClock

# ---- numbers


def test_numbers_are_those_of_the_standard_generator() -> None:
    # C++ prescribes the 10,000th number of mt19937 with its default seed; two make one of ours.
    draws = Draws(5489, 1.0)
    twister = random.Random()
    draws.luck(0)
    assert draws._random is not None
    twister.setstate(draws._random.getstate())
    words = [twister.getrandbits(32) for _ in range(9998)]  # the first two are spent
    assert words[-1] == 4123659995


def test_low_number_is_luck_and_scales_with_the_temperature() -> None:
    warm, cool = Draws(7, 1.0), Draws(7, 0.5)
    for token in range(200):
        assert cool.luck(token) == pytest.approx(0.5 * warm.luck(token))
    twister_words = [Draws(7, 1.0).luck(token) for token in (0, 1)]
    # std::mt19937(7): 327741615, 976413892 are its first two words.
    number = (327741615 + (976413892 << 32)) / 2**64
    assert twister_words[0] == pytest.approx(log((1 - number) / number))


def test_numbers_can_be_asked_for_in_any_order_and_long_texts_stay_small() -> None:
    draws, again = Draws(3, 0.8), Draws(3, 0.8)
    assert draws.luck(9) == [again.luck(token) for token in range(10)][9]
    assert draws.luck(4) == again.luck(4)
    assert draws.luck(50_000) == again.luck(50_000)
    assert len(draws._known) < 10_000
    assert draws.luck(4) == 0.0  # long past


# ---- passages


def test_what_came_before_speaks_for_a_draft_and_against_others() -> None:
    echo = Echo([1, 2, 3, 4, 5, 6, 9, 1, 2, 3])
    echo.start()
    assert echo.length == 3
    assert echo.follow(4) > 0.0
    assert echo.follow(5) > 0.0
    assert echo.follow(7) < 0.0
    assert echo.follow(8) == 0.0  # nothing is known of what follows 4 5 7


def test_longer_passage_speaks_louder() -> None:
    short, long = Echo([5, 1, 2, 3, 4, 9, 6, 1, 2, 3]), Echo([0, 8, 7, 1, 2, 3, 4, 9, 0, 8, 7, 1, 2, 3])
    for echo in (short, long):
        echo.start()
    assert 0.0 < short.follow(4) < long.follow(4)


def test_text_itself_is_searched_once_it_has_grown() -> None:
    echo = Echo([1])
    echo.start()
    assert echo.follow(2) == 0.0
    echo.extend((2, 3, 4, 5, 2, 3, 4))
    echo.start()
    assert echo.follow(5) > 0.0


def test_latest_passage_counts() -> None:
    echo = Echo([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3])
    echo.start()
    assert echo.follow(5) > 0.0


def test_end_of_a_long_prompt_is_searched_bit_by_bit() -> None:
    echo = Echo([*range(10, 20), *range(1000, 1000 + SEARCHED_TOKENS - 3), 2997, 2998, 2999])
    for _ in range(SEARCHED_TOKENS // 100):
        echo.start()
    echo.extend((1000, 1001, 1002))
    echo.start()
    assert echo.follow(1003) > 0.0
    echo.extend((10, 11, 12))
    echo.start()
    assert echo.follow(13) == 0.0


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 1, 1, 1, 1, 1]])
def test_short_and_uniform_texts(tokens: list[int]) -> None:
    echo = Echo(tokens)
    echo.start()
    for _ in range(7):
        echo.follow(1)
    echo.extend((1,))
    echo.start()
    assert echo.length >= 0


# ---- in the policy


def test_bad_luck_ends_a_chain_and_good_luck_prolongs_it() -> None:
    policy = AdaptiveWidth(STEEP, clock=StoppedClock())
    policy._caution = 1.0
    state = SequenceState()
    found = {}
    for luck in (-5.0, -2.0, 0.5, 5.0):
        state.luck = lambda _, luck=luck: luck  # type: ignore[method-assign,misc]
        found[luck] = [policy._goes_on(state, 2, mood, reach / 20) for mood in range(5) for reach in range(21)]
    counts = [sum(answers) for answers in found.values()]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
