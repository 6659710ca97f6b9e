"""The rule that everything serves: most tokens per time."""

from __future__ import annotations

from collections.abc import Sequence
from math import log1p, sqrt
from typing import Final

from pylucebox.width.acceptance import Acceptance, expected_tokens
from pylucebox.width.costs import Prices

__all__ = [
    "PLENTY",
    "Price",
    "affordable",
    "best_of",
    "joint_rates",
    "rates_of",
    "worth_knowing",
    "worth_verifying",
]

_MEMORY: Final = 14 / 15  # of the price, per cycle
_GUESSED_CYCLES: Final = 8.0  # that the expected speed counts as at the start
_STICKY: Final = 0.01  # so much slower than the best, the present choice stays
_DOUBT: Final = 1.3  # standard deviations by which an unseen depth may be better
_WORTH: Final = 1.01
PLENTY: Final = 8.0  # plain steps that may still be lost, from where on only the mean gain counts
_SCRAP: Final = 0.05  # of a plain step, that at least is left in the worst case


class Price:
    """What a microsecond is worth in tokens: the recent speed, never less than that of plain decoding.

    Parameters
    ----------
    tokens, took_us
        Of a cycle as it is expected to be.
    """

    def __init__(self, tokens: float, took_us: float) -> None:
        self._tokens = _GUESSED_CYCLES * tokens
        self._took_us = _GUESSED_CYCLES * took_us

    def earn(self, tokens: int, took_us: float) -> None:
        """Take a cycle."""
        self._tokens = _MEMORY * self._tokens + tokens
        self._took_us = _MEMORY * self._took_us + took_us

    def per_us(self, plain_us: float) -> float:
        """Return tokens per microsecond, where a plain step takes `plain_us`."""
        return max(self._tokens / self._took_us, 1.0 / plain_us)


def rates_of(
    acceptance: list[float],
    deepest: int,
    prices: Prices,
) -> list[float]:
    """Return the expected tokens per microsecond of cycles with 0 to `deepest` drafts."""
    _, verify, draft, reject = prices
    tokens = expected_tokens(acceptance)
    rates = [1.0 / verify[0]]
    reach = 1.0
    for k in range(1, deepest + 1):
        reach *= acceptance[k - 1]
        rates.append(tokens[k] / (verify[k] + draft[k] + (1.0 - reach) * reject))
    return rates


def joint_rates(
    texts: Sequence[tuple[list[float], int]], n_active: int, widest: int, prices: Prices, room_us: float
) -> list[float]:
    """Return the expected speed of passes in which all sequences verify 0, 1, ... drafts.

    It is the geometric mean over the sequences, in tokens per microsecond. The sum would let texts that draft well
    slow down one that does not by as much as they gain.

    Parameters
    ----------
    texts
        Acceptance and most drafts of each sequence that is known.
    n_active
        Sequences of the pass.
    widest
        Rows that each may have.
    prices
        Of the parts of a cycle.
    room_us
        What a pass may take longer than a plain one; choices that might take more are left out.
    """
    _, verify, draft, reject = prices
    plain_us = verify[min(n_active, len(verify)) - 1]
    curves = [(expected_tokens(acceptance), limit) for acceptance, limit in texts]
    rates = [1.0 / plain_us]
    for k in range(1, widest):
        took_us = verify[n_active * (k + 1) - 1] + draft[k]
        if took_us + reject - plain_us > room_us:
            break
        all_hold = tokens = 1.0
        for curve, limit in curves:
            tokens *= curve[min(k, limit)]
            all_hold *= curve[k] - curve[k - 1]
        rates.append(tokens ** (1 / len(curves)) / (took_us + (1.0 - all_hold) * reject))
    return rates


def affordable(limit: int, prices: Prices, room_us: float) -> int:
    """Return how many of `limit` drafts may be verified, if a cycle may lose no more than `room_us` to a plain step."""
    verify, _, draft, reject = prices
    k = limit
    while k and verify[k] + draft[k] + reject - verify[0] > room_us:
        k -= 1
    return k


def best_of(rates: Sequence[float], present: int) -> int:
    """Return the fastest choice, or the present one if it is nearly as fast."""
    best = max(range(len(rates)), key=rates.__getitem__)
    if present < len(rates) and rates[present] >= (1.0 - _STICKY) * rates[best]:
        return present
    return best


def worth_knowing(
    acceptance: Acceptance,
    chosen: int,
    deepest: int,
    prices: Prices,
) -> int:
    """Return how deep to draft so that better news than expected would change the choice; `chosen` if it would not."""
    hopeful = list(acceptance.rates())
    for depth in range(chosen, deepest):
        rate = hopeful[depth]
        doubt = sqrt(max(rate * (1.0 - rate), 0.02) / acceptance.labels(depth))
        hopeful[depth] = min(1.0, rate + _DOUBT * doubt)
    rates = rates_of(hopeful, deepest, prices)
    best = max(range(len(rates)), key=rates.__getitem__)
    return best if best > chosen and rates[best] > _WORTH * rates[chosen] else chosen


def worth_verifying(chances: Sequence[float], prices: Prices, price: float, room: float) -> int:
    """Return how many drafts of a chain pay for their rows.

    Gains are weighed by the logarithm of what may still be lost, as a gambler does who must not go broke. What is lost
    by a row that is nearly free hardly counts then, however little is left, and what a dear one loses counts the more.
    Where much may be lost this is the mean gain.

    Parameters
    ----------
    chances
        Of each draft, if those before it hold.
    prices
        Of the parts of a cycle.
    price
        Tokens that a microsecond is worth.
    room
        Plain steps that may still be lost.
    """
    _, verify, _, reject = prices
    best, best_gain, tokens, reach = 0, 0.0, 0.0, 1.0
    ends: list[float] = []  # chance that the drafts hold to just this depth
    for k, chance in enumerate(chances, 1):
        ends.append(reach * (1.0 - chance))
        reach *= chance
        tokens += reach
        cost = price * (verify[k] - verify[0])
        reject_cost = price * reject
        if room > PLENTY:
            gain = tokens - cost - (1.0 - reach) * reject_cost
        else:
            broke = max(room, cost + reject_cost + _SCRAP)
            gain = reach * log1p((k - cost) / broke)
            for held, share in enumerate(ends):
                gain += share * log1p((held - cost - reject_cost) / broke)
        if gain > best_gain:
            best, best_gain = k, gain
    return best
