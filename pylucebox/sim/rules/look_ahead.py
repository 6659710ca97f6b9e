"""The least that weighs probabilities against prices: believes both, learns next to nothing, guards against nothing.

No rule that is met anywhere, but what every more elaborate one has to beat. Costs are those of the sweep, probabilities
are taken at face value, time is worth what it brought lately, and what lies beyond the last draft is expected to go as
it went on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.sim.costs import cycle_us
from pylucebox.width import CycleContext, CycleObservation, CyclePlan, WidthCosts

__all__ = ["LookAhead"]

_HOLDS: Final = 0.8  # expected of a draft before any was seen
_LEARNS: Final = 0.08  # share of a label in the mean
_KEEPS: Final = 0.96  # of tokens and time from cycle to cycle
_WORTH_STEPS: Final = 4.0  # plain steps that the price of time at the start counts for


class LookAhead:
    """One draft at a time, while one more is expected to pay for itself.

    Parameters
    ----------
    costs
        What cycles cost.
    """

    def __init__(self, costs: WidthCosts) -> None:
        self._costs = costs
        self.begin(1, MAX_DRAFT + 1)

    def begin(self, n_seq: int, max_width: int) -> None:  # noqa: ARG002 - all sequences share one state
        """Forget everything but the costs."""
        self._holds = [_HOLDS] * MAX_DRAFT
        reach = tokens = 1.0
        speed = 1.0 / self._costs.verify_us[0]
        for drafts in range(1, MAX_DRAFT + 1):
            reach *= _HOLDS
            tokens += reach
            speed = max(speed, tokens / cycle_us(self._costs, drafts + 1, drafts, rejected=False))
        self._us = _WORTH_STEPS * self._costs.verify_us[0]
        self._tokens = speed * self._us
        self._most = 0

    def choose(self, seq: int, context: CycleContext) -> int:  # noqa: ARG002 - without probabilities there is no rule
        """Return no drafts, for callers that do not plan."""
        return 1

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:  # noqa: ARG002 - all sequences alike
        """Begin with one draft if the average says that drafts pay."""
        self._most = min(MAX_DRAFT, context.max_width - 1)
        return CyclePlan(1, 1, ask=True) if self._worth(0, 1.0) > 0.0 else CyclePlan(1, 0)

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:  # noqa: ARG002 - all sequences alike
        """Draft one more, or verify what is worth its rows."""
        price, verify_us = self._tokens / self._us, self._costs.verify_us
        reach, value, best, drafts = 1.0, 0.0, 0.0, 0
        for n, p in enumerate(probs, 1):
            reach *= p
            value += reach - price * (verify_us[n] - verify_us[n - 1])
            if value > best:
                best, drafts = value, n
        if self._worth(len(probs), reach) > 0.0:
            return drafts + 1, 1
        return drafts + 1, 0

    def _worth(self, n_drafted: int, reach: float) -> float:
        """Return what the best number of further drafts is expected to bring beyond its time, in tokens."""
        price, costs = self._tokens / self._us, self._costs
        best, tokens = 0.0, 0.0
        spent_us = costs.verify_us[n_drafted] + (costs.draft_us[n_drafted - 1] if n_drafted else 0.0)
        for n in range(n_drafted, self._most):
            reach *= self._holds[n]
            tokens += reach
            best = max(best, tokens - price * (costs.verify_us[n + 1] + costs.draft_us[n] - spent_us))
        return best

    def observe(self, seq: int, observation: CycleObservation) -> None:  # noqa: ARG002 - all sequences alike
        """Update the price of time and the averages."""
        took_us = observation.draft_us + observation.verify_us + observation.rollback_us
        self._tokens = _KEEPS * self._tokens + len(observation.tokens)
        self._us = _KEEPS * self._us + took_us
        for depth in range(min(observation.n_verified, observation.n_accepted + 1)):
            self._holds[depth] += _LEARNS * ((depth < observation.n_accepted) - self._holds[depth])
