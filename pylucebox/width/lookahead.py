"""Whether to make one more draft: its price now against what it and those after it may bring.

Drafts come one after the other, and how sure the next one will be is not known before it is made. It is known how sure
drafts of each depth have lately been, so the value of going on follows backwards from the deepest one. It depends on
the past only through the chance that all drafts so far hold, so the result is one threshold for each depth.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from math import exp
from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width.costs import Prices

__all__ = ["Lookahead", "mood_of"]

_EDGES: Final = (0.08, 0.2, 0.35, 0.5, 0.65, 0.78, 0.88, 0.95, 0.985)
_CENTRES: Final = (0.04, 0.14, 0.27, 0.43, 0.58, 0.72, 0.83, 0.92, 0.97, 0.995)
_MOOD: Final = (0, 0, 1, 1, 2, 2, 2, 3, 4, 4)  # how sure a draft of each bin was, from hardly to almost
_ECHO: Final = 5
_MOODS: Final = 2 * _ECHO  # these five, and the same where the text may go on as it did before
_PRIOR: Final = (
    (
        (0.048, 0.273, 0.182, 0.127, 0.098, 0.050, 0.048, 0.036, 0.039, 0.098),
        (0.029, 0.181, 0.167, 0.148, 0.120, 0.079, 0.061, 0.040, 0.061, 0.114),
        (0.035, 0.097, 0.131, 0.120, 0.119, 0.078, 0.078, 0.066, 0.092, 0.183),
        (0.007, 0.110, 0.116, 0.071, 0.110, 0.065, 0.097, 0.065, 0.154, 0.206),
        (0.003, 0.055, 0.075, 0.055, 0.051, 0.038, 0.044, 0.096, 0.058, 0.525),
        (0.001, 0.176, 0.010, 0.027, 0.027, 0.036, 0.089, 0.027, 0.097, 0.510),
        (0.011, 0.158, 0.044, 0.028, 0.033, 0.022, 0.049, 0.066, 0.207, 0.381),
        (0.000, 0.012, 0.024, 0.026, 0.038, 0.055, 0.055, 0.105, 0.164, 0.520),
        (0.000, 0.013, 0.031, 0.013, 0.023, 0.028, 0.046, 0.121, 0.167, 0.558),
        (0.001, 0.018, 0.023, 0.012, 0.012, 0.018, 0.022, 0.044, 0.090, 0.760),
    ),
    (
        (0.014, 0.143, 0.128, 0.114, 0.108, 0.123, 0.098, 0.102, 0.058, 0.112),
        (0.016, 0.124, 0.156, 0.125, 0.142, 0.094, 0.066, 0.067, 0.087, 0.124),
        (0.012, 0.072, 0.093, 0.103, 0.119, 0.095, 0.085, 0.088, 0.109, 0.224),
        (0.001, 0.052, 0.069, 0.097, 0.099, 0.086, 0.046, 0.073, 0.154, 0.323),
        (0.002, 0.017, 0.047, 0.046, 0.041, 0.031, 0.031, 0.061, 0.071, 0.653),
        (0.023, 0.289, 0.092, 0.012, 0.044, 0.027, 0.048, 0.057, 0.180, 0.228),
        (0.020, 0.106, 0.058, 0.035, 0.073, 0.064, 0.075, 0.092, 0.204, 0.272),
        (0.002, 0.016, 0.035, 0.034, 0.047, 0.047, 0.066, 0.092, 0.234, 0.427),
        (0.004, 0.012, 0.023, 0.022, 0.023, 0.033, 0.061, 0.117, 0.256, 0.448),
        (0.001, 0.023, 0.020, 0.012, 0.010, 0.016, 0.021, 0.041, 0.120, 0.737),
    ),
)
"""How often a draft was as sure as each bin says, after each mood: first drafts, then later ones.

From the texts that the start of the calibration was fitted on."""
_STRENGTH: Final = 4.0  # drafts that this counts as
_FORGET: Final = 0.99  # per draft of a depth
_GRID: Final = 8  # steps from 0 to 1
_NEVER: Final = 2.0  # no chance is so high

# For each bin and each point of the grid: where a draft of that chance leads from it, in which cell that is, and how
# far it is from the lower end of the cell and from the upper one.
_SPOTS: Final = [
    [
        (index * chance, int(index * chance), index * chance % 1.0, 1.0 - index * chance % 1.0)
        for index in range(_GRID + 1)
    ]
    for chance in _CENTRES
]


_SHIFT: Final = 0.5  # log-odds, in steps of which luck is rounded
_MOST_SHIFTS: Final = 8
_SHIFTED: Final = [
    [1.0 / (1.0 + (1.0 / chance - 1.0) * exp(-_SHIFT * shift)) for chance in _CENTRES]
    for shift in range(-_MOST_SHIFTS, _MOST_SHIFTS + 1)
]


def mood_of(chance: float, echoes: bool = False) -> int:
    """Return how sure a draft is, from 0 to 4; 5 more where the next one has something to repeat."""
    return _MOOD[bisect(_EDGES, chance)] + _ECHO * echoes


class Lookahead:
    """For each number of drafts made, the chance of holding from which one more is worth its time.

    How sure a draft is says something about the next one, so thresholds depend on the last draft, and the first one's
    on the first draft of the cycle before.

    Parameters
    ----------
    echoes
        Whether texts are known that may repeat themselves; otherwise their moods are left out.

    Attributes
    ----------
    threshold
        Entry [d][mood]: after d drafts, the last of which was so sure, make another if all d hold with at least this
        chance. Entry 7 forbids an eighth.
    """

    def __init__(self, *, echoes: bool = False) -> None:
        moods = _MOODS if echoes else _ECHO
        self._echoes = echoes
        self.threshold = [[0.0] * moods for _ in range(MAX_DRAFT)] + [[_NEVER] * moods]
        self._weights = [[[0.0] * len(_CENTRES) for _ in range(moods)] for _ in range(MAX_DRAFT)]
        self._value = [[[0.0] * (_GRID + 2)] * moods for _ in range(MAX_DRAFT + 1)]
        self._shares: list[Sequence[Sequence[float]]] = [_PRIOR[depth > 0] for depth in range(MAX_DRAFT)]
        self._prices = [(0.0, 0.0, 0.0)] * MAX_DRAFT  # of draft, row and rejection, in tokens
        self._next = MAX_DRAFT - 1

    def learn(self, chances: Sequence[float], moods: Sequence[int]) -> None:
        """Take the chances of the drafts of a cycle without luck, and the mood that each was made in."""
        for depth, (chance, mood) in enumerate(zip(chances, moods)):  # noqa: B905 - the last mood has no draft yet
            weights = self._weights[depth][mood]
            weights[:] = [weight * _FORGET for weight in weights]
            weights[bisect(_EDGES, chance)] += 1.0

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
            gain = values[cell] + (spot - cell) * (values[cell + 1] - values[cell])
            gain += chance * reach * (1.0 + reject) - lost
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
        losses = [row + index * reject for index in range(_GRID + 1)]
        columns = []
        for echo in (0, _ECHO) if self._echoes else (0,):
            gains = []
            for mood, spots in zip(_MOOD, _SPOTS, strict=True):
                after = deeper[mood + echo]
                gains.append(
                    [
                        gain
                        if (gain := after[cell] * rest + after[cell + 1] * part + spot * held - lost) > 0.0
                        else 0.0
                        for (spot, cell, part, rest), lost in zip(spots, losses, strict=True)
                    ]
                )
            columns.append(list(zip(*gains, strict=True)))
        values, thresholds, all_shares = [], [], []
        for mood in range(len(deeper)):
            weights, prior = self._weights[depth][mood], _PRIOR[depth > 0][mood]
            total = sum(weights) + _STRENGTH
            shares = [(weight + _STRENGTH * other) / total for weight, other in zip(weights, prior, strict=True)]
            all_shares.append(shares)
            # written out, since this is most of the policy's time
            a, b, c, d, e, f, g, h, i, j = shares
            curve = [
                a * p + b * q + c * r + d * s + e * t + f * u + g * v + h * w + i * x + j * y - draft
                for p, q, r, s, t, u, v, w, x, y in columns[mood >= _ECHO]
            ]
            thresholds.append(_crossing(curve))
            values.append([worth if worth > 0.0 else 0.0 for worth in curve])
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
