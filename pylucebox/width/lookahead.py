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
_OUTLOOKS: Final = (-1.0, -0.2, 0.4, 0.9, 1.4, 1.9, 2.5, 3.2, 4.0)  # log-odds between which moods change
_MOODS: Final = len(_OUTLOOKS) + 1
_PRIOR: Final = (
    (0.092, 0.380, 0.249, 0.111, 0.084, 0.033, 0.023, 0.014, 0.012, 0.002),
    (0.038, 0.273, 0.245, 0.157, 0.107, 0.066, 0.044, 0.041, 0.018, 0.012),
    (0.022, 0.157, 0.198, 0.156, 0.122, 0.103, 0.067, 0.076, 0.038, 0.061),
    (0.016, 0.097, 0.131, 0.129, 0.113, 0.105, 0.132, 0.083, 0.079, 0.115),
    (0.007, 0.056, 0.076, 0.064, 0.074, 0.095, 0.120, 0.128, 0.145, 0.235),
    (0.009, 0.025, 0.057, 0.039, 0.048, 0.059, 0.083, 0.151, 0.159, 0.371),
    (0.002, 0.021, 0.023, 0.016, 0.038, 0.042, 0.097, 0.120, 0.210, 0.430),
    (0.000, 0.009, 0.009, 0.017, 0.010, 0.022, 0.048, 0.130, 0.232, 0.522),
    (0.000, 0.000, 0.001, 0.004, 0.008, 0.009, 0.014, 0.091, 0.197, 0.677),
    (0.000, 0.000, 0.000, 0.000, 0.000, 0.002, 0.002, 0.010, 0.133, 0.852),
)
"""How often a draft was as sure as each bin says, in each mood."""

_AFTER: Final = (
    (0.136, 0.284, 0.116, 0.091, 0.091, 0.065, 0.052, 0.052, 0.052, 0.061),
    (0.136, 0.404, 0.233, 0.064, 0.067, 0.023, 0.019, 0.010, 0.020, 0.024),
    (0.087, 0.275, 0.321, 0.104, 0.047, 0.023, 0.016, 0.037, 0.062, 0.028),
    (0.057, 0.260, 0.246, 0.159, 0.068, 0.061, 0.031, 0.054, 0.041, 0.023),
    (0.059, 0.137, 0.213, 0.171, 0.131, 0.080, 0.059, 0.053, 0.062, 0.035),
    (0.012, 0.051, 0.146, 0.213, 0.119, 0.106, 0.062, 0.079, 0.132, 0.079),
    (0.008, 0.051, 0.085, 0.157, 0.151, 0.125, 0.084, 0.098, 0.143, 0.097),
    (0.003, 0.024, 0.076, 0.090, 0.107, 0.103, 0.102, 0.108, 0.189, 0.199),
    (0.001, 0.007, 0.036, 0.049, 0.093, 0.110, 0.082, 0.114, 0.165, 0.343),
    (0.000, 0.007, 0.018, 0.029, 0.051, 0.095, 0.064, 0.089, 0.191, 0.456),
)
"""How often each mood came next, after a draft of each bin.

Both from the texts that the weights of `pylucebox.width.forecast` were fitted on, each draft by the chance of getting
to it."""
_STRENGTH: Final = 4.0  # drafts that this counts as
_FORGET: Final = 0.99  # per draft of a depth
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


def mood_of(outlook: float) -> int:
    """Return the mood, from 0 to 9, in which a draft is made that is foretold these log-odds."""
    return bisect(_OUTLOOKS, outlook)


class Lookahead:
    """For each number of drafts made, the chance of holding from which one more is worth its time.

    How sure a draft will be can be foretold in part (`pylucebox.width.forecast`), so thresholds depend on that.

    Attributes
    ----------
    threshold
        Entry [d][mood]: after d drafts, in such a mood, make another if all d hold with at least this chance. Entry 7
        forbids an eighth.
    """

    def __init__(self) -> None:
        self.threshold = [[0.0] * _MOODS for _ in range(MAX_DRAFT)] + [[_NEVER] * _MOODS]
        self._weights = [[[0.0] * len(_CENTRES) for _ in range(_MOODS)] for _ in range(MAX_DRAFT)]
        # Entry [d][bin]: what going on after d drafts is worth, the last of which was in the bin, over the grid.
        self._value = [[[0.0] * (_GRID + 2)] * len(_CENTRES) for _ in range(MAX_DRAFT + 1)]
        self._shares: list[Sequence[Sequence[float]]] = [_PRIOR] * MAX_DRAFT
        self._prices = [(0.0, 0.0, 0.0)] * MAX_DRAFT  # of draft, row and rejection, in tokens
        self._next = MAX_DRAFT - 1
        self._unblended: list[list[float]] | None = None  # values by mood of the depth that was computed last

    def learn(self, chances: Sequence[float], moods: Sequence[int]) -> None:
        """Take the chances of the drafts of a cycle without luck, and the mood that each was made in."""
        for depth, (chance, mood) in enumerate(zip(chances, moods)):  # noqa: B905 - the last mood has no draft yet
            weights = self._weights[depth][mood]
            for index, weight in enumerate(weights):
                weights[index] = weight * _FORGET
            weights[bisect(_EDGES, chance)] += 1.0

    def worth(self, depth: int, mood: int, reach: float, shift: float) -> bool:
        """Tell whether another draft is worth its time when `shift` is known, the log-odds that its luck adds.

        Parameters
        ----------
        depth
            Drafts made.
        mood
            In which another would be made.
        reach
            Chance that all of them hold.
        """
        draft, row, reject = self._prices[depth]
        deeper, at = self._value[depth + 1], reach * _GRID
        lost = row + reject * reach
        worth = -draft
        chances = _SHIFTED[_MOST_SHIFTS + max(-_MOST_SHIFTS, min(_MOST_SHIFTS, round(shift / _SHIFT)))]
        for share, chance, values in zip(self._shares[depth][mood], chances, deeper, strict=True):
            spot = at * chance
            cell = int(spot)
            gain = values[cell] + (spot - cell) * (values[cell + 1] - values[cell])
            gain += chance * reach * (1.0 + reject) - lost
            if gain > 0.0:
                worth += share * gain
        return worth > 0.0

    def refresh_all(self, price: float, prices: Prices) -> None:
        """Compute all thresholds; see `refresh`."""
        self._next = MAX_DRAFT - 1
        self._unblended = None
        for _ in range(2 * MAX_DRAFT):
            self.refresh(price, prices)

    def refresh(self, price: float, prices: Prices) -> None:
        """Compute the thresholds of one depth; every other call the next shallower one, in the end the deepest again.

        The calls between average what going on is worth over the moods that come next: each has half of the work.

        Parameters
        ----------
        price
            Tokens that a microsecond is worth.
        prices
            Of the parts of a cycle.
        """
        if self._unblended is not None:
            self._blend(self._unblended)
            return
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
        losses = [row + index * reject for index in range(_GRID + 1)]
        gains = [
            [
                max(0.0, after[cell] * (1.0 - part) + after[cell + 1] * part + spot * held - lost)
                for (_, spot, cell, part), lost in zip(spots, losses, strict=True)
            ]
            for after, spots in zip(deeper, _SPOTS, strict=True)
        ]
        columns = list(zip(*gains, strict=True))
        values, thresholds, all_shares = [], [], []
        for mood, weights in enumerate(self._weights[depth]):
            total = sum(weights) + _STRENGTH
            shares = [(weight + _STRENGTH * other) / total for weight, other in zip(weights, _PRIOR[mood], strict=True)]
            all_shares.append(shares)
            curve = [sum(map(mul, shares, column)) - draft for column in columns]
            thresholds.append(_crossing(curve))
            values.append([max(0.0, worth) for worth in curve])
        self.threshold[depth], self._shares[depth], self._unblended = thresholds, all_shares, values

    def _blend(self, values: list[list[float]]) -> None:
        """Average the values of the depth that was computed last over the moods that come after each bin."""
        depth = (self._next + 1) % MAX_DRAFT
        by_point = list(zip(*values, strict=True))
        self._value[depth] = [
            [*(sum(map(mul, moods, point)) for point in by_point), 0.0]  # the 0 is beside the last cell, of no weight
            for moods in _AFTER
        ]
        self._unblended = None


def _crossing(curve: Sequence[float]) -> float:
    """Return where a rising curve over 0 to 1 becomes positive."""
    below = -1.0
    for index, worth in enumerate(curve):
        if worth > 0.0:
            return (index - worth / (worth - min(below, 0.0))) / _GRID if index else 0.0
        below = worth
    return _NEVER
