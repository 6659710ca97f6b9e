"""How sure the next draft is going to be."""

from __future__ import annotations

from pylucebox.width import forecast
from pylucebox.width.forecast import Forecast


def told(places: list[tuple[int, int]], odds: float) -> Forecast:
    """A forecast that has seen first drafts of these odds behind such pairs of tokens."""
    found = Forecast()
    for place in places:
        found.start(place)
        found.note(0, odds, 99)
    return found


def behind(found: Forecast, *tokens: int) -> float:
    found.start(tokens)
    return found.ahead(0, 1.0, 0)


def test_a_place_is_expected_to_be_as_it_was() -> None:
    sure, unsure = told([(1, 2)] * 3, 4.0), told([(1, 2)] * 3, -4.0)
    assert behind(sure, 1, 2) > behind(sure, 3, 4) > behind(unsure, 1, 2)


def test_two_tokens_say_more_than_the_last_alone() -> None:
    found = told([(1, 2)] * 3, -4.0)
    found.start((5, 2))
    found.note(0, 4.0, 99)
    assert behind(found, 1, 2) < behind(found, 7, 2) < behind(found, 5, 2)


def test_more_recent_acceptance_and_longer_passages_promise_more() -> None:
    found = Forecast()
    found.start((1, 2))
    assert found.ahead(0, 2.0, 0) > found.ahead(0, -2.0, 0)
    assert found.ahead(0, 0.0, 12) > found.ahead(0, 0.0, 4) > found.ahead(0, 0.0, 0)


def test_unknown_tokens_are_no_place() -> None:
    found = Forecast()
    for _ in range(5):
        found.start(())
        found.note(0, -4.0, None)
        found.note(1, -4.0, None)
    fresh = Forecast()
    fresh.note(0, -4.0, None)
    assert behind(found, 1, 2) == behind(fresh, 1, 2)


def test_memory_is_bounded_and_the_oldest_place_goes_first() -> None:
    found = told([(token, token) for token in range(forecast._MOST_PLACES + 10)], -4.0)
    assert len(found._one) == len(found._two) == forecast._MOST_PLACES
    assert behind(found, 0, 0) > behind(found, 100, 100)
