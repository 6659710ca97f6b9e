"""Drafting until a probability is too low, with a threshold that is the same on every machine.

`p_min` is llama.cpp's option: draft on while each draft is likely enough (met as at most six drafts with 0.7, #27836).
`product` is EXL3's: draft on while the chain as a whole is (met as 0.6 with at most five drafts). Written from
descriptions. The draft that ends a chain has been paid for and is not verified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from pylucebox.width import CycleContext, CycleObservation, CyclePlan

__all__ = ["Stopping", "p_min", "product"]

GoesOn = Callable[[Sequence[float]], bool]
"""Tells from the probabilities of a chain whether its last draft is likely enough."""


class Stopping:
    """One draft at a time, until one is not likely enough.

    Parameters
    ----------
    goes_on
        Looks at the chain.
    n_max
        Most drafts.
    """

    def __init__(self, goes_on: GoesOn, n_max: int) -> None:
        self._goes_on = goes_on
        self._n_max = n_max
        self._most: dict[int, int] = {}

    def begin(self, n_seq: int, max_width: int) -> None:
        """Do nothing: there is nothing to remember."""

    def choose(self, seq: int, context: CycleContext) -> int:  # noqa: ARG002 - all sequences alike
        """Return the widest step, for callers that do not plan."""
        return min(self._n_max + 1, context.max_width)

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:
        """Begin with one draft."""
        self._most[seq] = most = min(self._n_max, context.max_width - 1)
        return CyclePlan(width=1, n_draft=1, ask=True) if most else CyclePlan(width=1, n_draft=0)

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:  # noqa: ARG002
        """Verify what was likely enough, or draft one more."""
        if not self._goes_on(probs):
            return len(probs), 0
        return len(probs) + 1, int(len(probs) < self._most[seq])

    def observe(self, seq: int, observation: CycleObservation) -> None:
        """Do nothing: there is nothing to learn."""


def p_min(threshold: float, n_max: int) -> Stopping:
    """Return the rule that looks at each draft alone."""
    return Stopping(lambda probs: probs[-1] >= threshold, n_max)


def product(threshold: float, n_max: int) -> Stopping:
    """Return the rule that looks at the product of the chain."""
    return Stopping(lambda probs: prod(probs) >= threshold, n_max)
