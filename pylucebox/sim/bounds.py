"""What could have been: the best fixed width of a request in hindsight, what probabilities can tell, and the bound."""

from __future__ import annotations

from typing import Final, NamedTuple

from pylucebox.sim.costs import cycle_us
from pylucebox.sim.trace import DEPTH, Trace
from pylucebox.width import WidthCosts

__all__ = ["BestFixed", "best_fixed", "clairvoyant_us", "fixed_us", "informed_us"]

_WIDTHS: Final = range(DEPTH + 1)
_PRICES: Final = (0.7, 0.8, 0.9, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5)
"""Prices of time that are tried, in units of the best fixed width's speed."""


class BestFixed(NamedTuple):
    """The fixed number of drafts that decodes a request fastest, 0 to 7, and its time."""

    n_drafts: int
    us: float


def fixed_us(trace: Trace, costs: WidthCosts, n_drafts: int) -> float:
    """Return the time that a fixed number of drafts takes for a request, in microseconds."""
    last, at, us = len(trace.tokens) - 1, 0, 0.0
    while at < last:
        verified = min(n_drafts, trace.max_tokens - 2 - at)
        held = min(verified, trace.match[at])
        us += cycle_us(costs, verified + 1, verified, rejected=held < verified)
        at += 1 + held
    return us


def best_fixed(trace: Trace, costs: WidthCosts) -> BestFixed:
    """Return the best of all eight fixed widths for a request, no drafts included."""
    return min((BestFixed(n, fixed_us(trace, costs, n)) for n in _WIDTHS), key=lambda found: found.us)


def clairvoyant_us(trace: Trace, costs: WidthCosts) -> float:
    """Return the least time that any policy can take for a request, in microseconds.

    Found backwards from the end of the text: at each position the number of drafts that makes this cycle and the best
    continuation shortest, with knowledge of which drafts will hold.
    """
    last = len(trace.tokens) - 1
    least = [0.0] * (last + DEPTH + 2)
    prices = [[cycle_us(costs, n + 1, n, rejected=rejected) for n in _WIDTHS] for rejected in (False, True)]
    for at in range(last - 1, -1, -1):
        match, widest = trace.match[at], min(DEPTH, trace.max_tokens - 2 - at)
        least[at] = min(prices[match < n][n] + least[at + 1 + min(match, n)] for n in range(widest + 1))
    return least[0]


def informed_us(trace: Trace, costs: WidthCosts) -> float:
    """Return what a policy would take that knows the probabilities of a whole chain before it drafts any of it.

    It verifies what is worth most by them at a price of time that was best in hindsight, and pays for no draft that it
    does not verify. Where the probabilities are calibrated, this is about as far as they can carry a real policy, which
    has to draft first and to learn costs and price. Unlike `clairvoyant_us` it is no strict bound.
    """
    last = len(trace.tokens) - 1
    if not last:
        return 0.0
    speed = last / best_fixed(trace, costs).us
    prices = [cycle_us(costs, n + 1, n, rejected=False) for n in _WIDTHS]
    return min(_at_price(trace, costs, [share * speed * us for us in prices]) for share in _PRICES)


def _at_price(trace: Trace, costs: WidthCosts, prices: list[float]) -> float:
    """Return the time of a request when a cycle with n drafts costs ``prices[n]`` tokens."""
    last, at, us = len(trace.tokens) - 1, 0, 0.0
    while at < last:
        reach, value = 1.0, -prices[0]
        drafts, best = 0, value
        for n, p in enumerate(trace.probs[at][: trace.max_tokens - 2 - at], 1):
            reach *= p
            value += reach - (prices[n] - prices[n - 1])
            if value > best:
                drafts, best = n, value
        held = min(drafts, trace.match[at])
        us += cycle_us(costs, drafts + 1, drafts, rejected=held < drafts)
        at += 1 + held
    return us
