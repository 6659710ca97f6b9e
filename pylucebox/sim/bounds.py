"""What could have been: the best fixed width of a request in hindsight, and the bound that no policy can beat."""

from __future__ import annotations

from typing import Final, NamedTuple

from pylucebox.sim.costs import cycle_us
from pylucebox.sim.trace import DEPTH, Trace
from pylucebox.width import WidthCosts

__all__ = ["BestFixed", "best_fixed", "clairvoyant_us", "fixed_us"]

_WIDTHS: Final = range(DEPTH + 1)


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
