"""One request on a GPU whose steps are short: as little thought as can be, while the device waits for the next cycle.

A cycle of eight rows of a small model takes two milliseconds there, so what the other modules think about a cycle, some
thirty microseconds, would be a hundredth and more of the speed.
"""

from __future__ import annotations

from typing import Final

from pylucebox.width.book import CostBook
from pylucebox.width.choice import affordable
from pylucebox.width.ledger import Ledger
from pylucebox.width.policy import MAX_WIDTH, CycleContext, CycleObservation, CyclePlan
from pylucebox.width.report import Tally
from pylucebox.width.sequence import SequenceState

__all__ = ["BRIEF_STEP_US", "BriefSteps"]

BRIEF_STEP_US: Final = 1000.0
"""Plain step of a GPU, a hundredth of which pays for no look at a draft."""

_PLANS: Final = tuple(CyclePlan(k + 1, k) for k in range(MAX_WIDTH))
_SAME_COSTS: Final = 64  # tokens over which costs stay the same
_TIMED: Final = 8  # cycles, of which one tells what they cost
_OUTLIER: Final = 1.5  # times its price, the most a cycle counts as


class BriefSteps:
    """Plans and accounts for the cycles of a request.

    Parameters
    ----------
    book
        What is known of the machine; it learns.
    ledger, tally
        Of the request.

    Attributes
    ----------
    n_tokens, took_us
        That the request got from these cycles, and their time.
    """

    def __init__(self, book: CostBook, ledger: Ledger, tally: Tally) -> None:
        self.n_tokens = 0
        self.took_us = 0.0
        self._book = book
        self._ledger = ledger
        self._tally = tally
        self._model = book.at(1, 0)
        self._next_at = 0  # tokens of context where costs may be others
        self._n_cycles = 0

    def plan(self, state: SequenceState, context: CycleContext) -> CyclePlan:
        """Return what the next cycle should do."""
        n_past = context.n_past
        if n_past >= self._next_at or n_past < state.n_past:
            self._next_at = n_past + _SAME_COSTS
            self._model = self._book.at(1, n_past)
        state.n_past = n_past
        limit = min(context.max_width, context.max_tokens_left, MAX_WIDTH) - 1
        state.reason = "price" if limit > 0 else "limit"
        prices = self._model.prices
        allowed = affordable(max(0, limit), prices, self._ledger.room * prices.verify[0])
        if allowed == 0 < limit:
            state.reason = "ledger"
        return _PLANS[state.brief.choose(allowed, prices)]

    def observe(self, state: SequenceState, observation: CycleObservation) -> None:
        """Learn from a finished cycle."""
        n_verified, n_accepted = observation.n_verified, observation.n_accepted
        n_tokens = len(observation.tokens) or n_accepted + 1
        took_us = observation.draft_us + observation.verify_us + observation.rollback_us
        self.n_tokens += n_tokens
        self.took_us += took_us
        self._tally.add(observation, n_tokens, state.reason)
        verify, _, draft, reject = self._model.prices
        if n_verified:
            price_us = verify[n_verified] + draft[observation.n_drafted] + reject
            self._ledger.drafted(min(took_us, _OUTLIER * price_us), n_tokens, verify[0])
        else:
            self._ledger.plain(0.0, n_tokens, verify[0])
        self._n_cycles += 1
        if self._n_cycles % _TIMED == 0 and not (observation.graph_built or observation.shared_prefill):
            self._time(observation)
        state.brief.learn(n_verified, n_accepted)

    def _time(self, last: CycleObservation) -> None:
        self._model.learn_verify(last.width, last.verify_us, built=False)
        if last.n_drafted and not last.draft_graph_built:
            self._model.learn_draft(last.n_drafted, max(1.0, last.draft_us))
            self._model.learn_rest(last.n_accepted < last.n_verified, last.rollback_us)
