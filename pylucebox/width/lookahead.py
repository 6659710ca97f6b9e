"""Whether to make one more draft: its price now against what it and those after it may bring.

Drafts come one after the other, and how sure the next one will be is not known before it is made. It is known how sure
drafts of each depth have lately been, so the value of going on follows backwards from the deepest one. It depends on
the past only through the chance that all drafts so far hold, so the result is one threshold for each depth.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from math import exp
from operator import mul
from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width.costs import Prices

__all__ = ["Lookahead", "mood_of"]

_EDGES: Final = (0.08, 0.2, 0.35, 0.5, 0.65, 0.78, 0.88, 0.95, 0.985)
_CENTRES: Final = (0.04, 0.14, 0.27, 0.43, 0.58, 0.72, 0.83, 0.92, 0.97, 0.995)
_MOOD: Final = (0, 0, 0, 0, 1, 1, 1, 2, 2, 2)  # how sure a draft of each bin was: not, fairly, very
_MOODS: Final = 6  # these three, and the same where the text may go on as it did before
_ECHO: Final = 3
_START: Final = (0.2, 0.2, 0.2, 0.2, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)  # drafts of each bin that nothing is known yet
_POOLED: Final = 4.0  # drafts that those after another mood count as
_FORGET: Final = 0.96  # per draft of a depth
_GRID: Final = 8  # steps from 0 to 1
_NEVER: Final = 2.0  # no chance is so high

# For each bin and each point of the grid: the point, where a draft of that chance leads from it, in which cell that is,
# and where in the cell.
_SPOTS: Final = [
    [(index, index * chance, int(index * chance), index * chance % 1.0) for index in range(_GRID + 1)]
    for chance in _CENTRES
]


_SHIFT: Final = 0.5  # log-odds, in steps of which luck is rounded
_MOST_SHIFTS: Final = 8
_SHIFTED: Final = [
    [1.0 / (1.0 + (1.0 / chance - 1.0) * exp(-_SHIFT * shift)) for chance in _CENTRES]
    for shift in range(-_MOST_SHIFTS, _MOST_SHIFTS + 1)
]


def mood_of(chance: float, echoes: bool = False) -> int:
    """Return how sure a draft is: 0 not, 1 fairly, 2 very; 3 more where the next one has something to repeat."""
    return _MOOD[bisect(_EDGES, chance)] + _ECHO * echoes


class Lookahead:
    """For each number of drafts made, the chance of holding from which one more is worth its time.

    How sure a draft is says something about the next one, so thresholds depend on the last draft, and the first one's
    on the first draft of the cycle before.

    Attributes
    ----------
    threshold
        Entry [d][mood]: after d drafts, the last of which was so sure, make another if all d hold with at least this
        chance. Entry 7 forbids an eighth.
    """

    def __init__(self) -> None:
        self.threshold = [[0.0] * _MOODS for _ in range(MAX_DRAFT)] + [[_NEVER] * _MOODS]
        self._weights = [[[0.0] * len(_START) for _ in range(_MOODS)] for _ in range(MAX_DRAFT)]
        self._pooled = [list(_START) for _ in range(MAX_DRAFT)]
        self._value = [[[0.0] * (_GRID + 2)] * _MOODS for _ in range(MAX_DRAFT + 1)]
        self._shares = [[[1.0 / len(_START)] * len(_START)] * _MOODS for _ in range(MAX_DRAFT)]
        self._prices = [(0.0, 0.0, 0.0)] * MAX_DRAFT  # of draft, row and rejection, in tokens
        self._next = MAX_DRAFT - 1

    def learn(self, chances: Sequence[float], moods: Sequence[int]) -> None:
        """Take the chances of the drafts of a cycle without luck, and the mood that each was made in."""
        for depth, (chance, mood) in enumerate(zip(chances, moods)):  # noqa: B905 - the last mood has no draft yet
            found = bisect(_EDGES, chance)
            for weights in (self._weights[depth][mood], self._pooled[depth]):
                for index, weight in enumerate(weights):
                    weights[index] = weight * _FORGET
                weights[found] += 1.0

    def worth(self, depth: int, mood: int, reach: float, shift: float) -> bool:
        """Tell whether another draft is worth its time when `shift` is known, the log-odds that its luck adds.

        Parameters
        ----------
        depth
            Drafts made.
        mood
            After the last of them.
        reach
            Chance that all of them hold.
        """
        draft, row, reject = self._prices[depth]
        deeper, at = self._value[depth + 1], reach * _GRID
        lost = row + reject * reach
        worth = -draft
        chances = _SHIFTED[_MOST_SHIFTS + max(-_MOST_SHIFTS, min(_MOST_SHIFTS, round(shift / _SHIFT)))]
        echo = _ECHO if mood >= _ECHO else 0
        for share, chance, after in zip(self._shares[depth][mood], chances, _MOOD, strict=True):
            spot = at * chance
            cell = int(spot)
            values = deeper[after + echo]
            gain = values[cell] + (spot - cell) * (values[cell + 1] - values[cell]) + chance * reach * (1.0 + reject) - lost
            if gain > 0.0:
                worth += share * gain
        return worth > 0.0

    def refresh_all(self, price: float, prices: Prices) -> None:
        """Compute all thresholds; see `refresh`."""
        self._next = MAX_DRAFT - 1
        for _ in range(MAX_DRAFT):
            self.refresh(price, prices)

    def refresh(self, price: float, prices: Prices) -> None:
        """Compute the thresholds of one depth, each call the next shallower one and in the end the deepest again.

        Parameters
        ----------
        price
            Tokens that a microsecond is worth.
        prices
            Of the parts of a cycle.
        """
        _, verify, drafts, reject_us = prices
        depth = self._next
        self._next = depth - 1 if depth else MAX_DRAFT - 1
        row = price * (verify[depth + 1] - verify[depth])
        draft = price * max(0.0, drafts[depth + 1] - drafts[depth])
        reject = price * reject_us / _GRID
        held = 1.0 / _GRID + reject
        self._prices[depth] = (draft, row, reject * _GRID)
        # What a draft of each bin gains, over the chance of holding before it.
        deeper = self._value[depth + 1]
        columns = []
        for echo in (0, _ECHO):
            gains = []
            for mood, spots in zip(_MOOD, _SPOTS, strict=True):
                after = deeper[mood + echo]
                gains.append(
                    [
                        max(0.0, after[cell] * (1.0 - part) + after[cell + 1] * part + spot * held - index * reject - row)
                        for index, spot, cell, part in spots
                    ]
                )
            columns.append(list(zip(*gains, strict=True)))
        pooled = self._pooled[depth]
        scale = _POOLED / sum(pooled)
        values, thresholds, all_shares = [], [], []
        for mood, weights in enumerate(self._weights[depth]):
            total = sum(weights) + _POOLED
            shares = [(weight + scale * other) / total for weight, other in zip(weights, pooled, strict=True)]
            all_shares.append(shares)
            curve = [sum(map(mul, shares, column)) - draft for column in columns[mood >= _ECHO]]
            thresholds.append(_crossing(curve))
            values.append([max(0.0, worth) for worth in curve])
            values[-1].append(0.0)  # beside the last cell, of no weight
        self._value[depth], self.threshold[depth], self._shares[depth] = values, thresholds, all_shares


def _crossing(curve: Sequence[float]) -> float:
    """Return where a rising curve over 0 to 1 becomes positive."""
    below = -1.0
    for index, worth in enumerate(curve):
        if worth > 0.0:
            return (index - worth / (worth - min(below, 0.0))) / _GRID if index else 0.0
        below = worth
    return _NEVER
