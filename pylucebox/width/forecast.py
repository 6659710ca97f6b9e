"""How sure the next draft of a text is going to be, foretold before it is made.

Whether a draft is worth making has to be decided without its probability. What is known by then: how sure the draft
before it was, how often drafts have lately held, whether the text is in a passage that it has had before, and how sure
the MTP block was when it last stood behind the same token, and the same two. The last two tell most: a text has places
where anything may follow, and they come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Final, TypeVar

__all__ = ["Forecast"]

_WEIGHTS: Final = (-0.41, -0.24, 0.10, 0.20, 0.43, 0.78, 0.43, 0.22, 0.18, 0.75, 0.43, -0.23, -0.53)
"""Weights of: one, a first draft, the odds of the first draft of the last cycle, those of the draft before, the recent
acceptance, whether a passage goes on and how long it is, the odds seen behind the last token and 1 where none were
seen, the same of the last two, and the draft before and the recent acceptance once more where a passage goes on.

A logistic regression on what the calibrated chances turned out to be, fitted on 33 texts of the built-in model, none of
them among those that `lucebox sim` judges by."""

_MOST_ODDS: Final = 4.0  # beyond which a draft says no more of the next
_NEWS: Final = 0.3  # least weight of the latest sight of a place
_MOST_PLACES: Final = 4096  # kept; the oldest go first

_Key = TypeVar("_Key", int, tuple[int, int])
_Seen = tuple[float, int]  # mean of the odds, and how often they were seen


class Forecast:
    """What one text has shown of places like the one that a draft is to be made at."""

    def __init__(self) -> None:
        self._one: dict[int, _Seen] = {}
        self._two: dict[tuple[int, int], _Seen] = {}
        self._last = self._before = -1  # tokens that the next draft comes behind; -1 for unknown
        self._previous = 1.0
        self._first = 1.0  # odds of the first draft of the last chain

    def start(self, tokens: Sequence[int]) -> None:
        """Begin a chain behind the last of `tokens`, of which the last two count."""
        self._before, self._last = (-1, -1) if len(tokens) < 2 else (tokens[-2], tokens[-1])

    def ahead(self, depth: int, recent: float, passage: int) -> float:
        """Return the log-odds that the next draft is expected to have.

        Parameters
        ----------
        depth
            Drafts of the chain so far.
        recent
            Recent acceptance of the text, as log-odds.
        passage
            Tokens of the passage that goes on here, 0 for none.
        """
        one, first, of_first, of_previous, of_recent, goes_on, length, by_one, no_one, by_two, no_two, pp, pr = _WEIGHTS
        z = of_recent * recent
        z += one + (of_previous * self._previous if depth else first + of_first * self._first)
        if passage:
            z += goes_on + length * log2(passage / 3.0 + 0.5) + pr * recent
            if depth:
                z += pp * self._previous
        seen = self._one.get(self._last)
        z += no_one if seen is None else by_one * seen[0] * seen[1] / (seen[1] + 1)
        twice = self._two.get((self._before, self._last))
        return z + (no_two if twice is None else by_two * twice[0] * twice[1] / (twice[1] + 1))

    def note(self, depth: int, odds: float, draft: int | None) -> None:
        """Take how sure the draft at `depth` turned out to be, as log-odds, and its token, None if it is not known."""
        odds = self._previous = max(-_MOST_ODDS, min(_MOST_ODDS, odds))
        if not depth:
            self._first = odds
        last = self._last
        if last >= 0:
            _remember(self._one, last, odds)
            _remember(self._two, (self._before, last), odds)
        self._before, self._last = (last, draft) if draft is not None else (-1, -1)


def _remember(places: dict[_Key, _Seen], key: _Key, odds: float) -> None:
    seen = places.get(key)
    if seen is None:
        if len(places) >= _MOST_PLACES:
            del places[next(iter(places))]
        places[key] = (odds, 1)
        return
    mean, n = seen
    places[key] = (mean + max(_NEWS, 1.0 / (n + 1)) * (odds - mean), n + 1)
