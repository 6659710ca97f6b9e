"""One request on a processor with short plain steps: spurts of drafts, and as little thought as can be between them.

A plain step of a small model takes a few hundred microseconds, and Python runs with cold caches behind it, so a thought
about each of them would cost more than drafts bring.
"""

from __future__ import annotations

from typing import Final

from pylucebox.width.book import CostBook
from pylucebox.width.ledger import Ledger
from pylucebox.width.plain_steps import PlainSteps
from pylucebox.width.policy import MAX_WIDTH, CycleContext, CycleObservation, CyclePlan
from pylucebox.width.report import Tally
from pylucebox.width.sequence import SequenceState
from pylucebox.width.spurts import COLD_STEPS, StepCosts

__all__ = ["SHORT_STEP_US", "ShortSteps"]

SHORT_STEP_US: Final = 2000.0
"""Plain step of a processor, below which weights come from caches that wider steps empty."""

_PLANS: Final = tuple(CyclePlan(k + 1, k) for k in range(MAX_WIDTH))
_SAME_COSTS: Final = 64  # tokens over which costs stay the same
_OUTLIER: Final = 1.5  # times its price, the most a cycle counts as


class ShortSteps:
    """Plans and accounts for the cycles of a request.

    Parameters
    ----------
    book, plain_steps, costs
        What is known of the machine; they learn.
    ledger, tally
        Of the request.

    Attributes
    ----------
    n_tokens
        That the request got from these cycles.
    """

    def __init__(self, book: CostBook, plain_steps: PlainSteps, costs: StepCosts, ledger: Ledger, tally: Tally) -> None:
        self.n_tokens = 0
        self._book = book
        self._plain_steps = plain_steps
        self._costs = costs
        self._ledger = ledger
        self._tally = tally
        self._model = book.at(1, 0)
        self._next_at = 0  # tokens of context where costs may be others
        self._next_timed = 0  # tokens of the text from which another plain step tells its time
        self._was_drafting = False

    @property
    def saved_steps(self) -> float:
        """Plain steps that drafts have saved so far."""
        return -self._ledger.lost_us / self._model.prices.verify[0]

    def plan(self, state: SequenceState, context: CycleContext) -> CyclePlan:
        """Return what the next cycle should do."""
        n_past, n_left = context.n_past, context.max_tokens_left
        if n_past >= self._next_at or n_past < state.n_past:
            self._next_at = n_past + _SAME_COSTS
            self._model = self._book.at(1, n_past)
        state.n_past = n_past
        limit = min(context.max_width, n_left, MAX_WIDTH) - 1
        k = state.spurts.choose(limit, n_left, self._model.prices, self._ledger.room) if limit > 0 else 0
        return _PLANS[k]

    def rests(self, state: SequenceState) -> int:
        """Return for how many cycles nothing will be drafted."""
        return state.spurts.rests(self._model.prices)

    def observe(self, state: SequenceState, observation: CycleObservation) -> None:
        """Learn from a finished cycle."""
        n_accepted, n_verified = observation.n_accepted, observation.n_verified
        n_tokens = len(observation.tokens) or n_accepted + 1
        self.n_tokens += n_tokens
        self._tally.add(observation, n_tokens, "price")
        plain_us = self._model.prices.verify[0]
        if n_verified:
            self._drafted(state, observation, n_tokens, plain_us)
        else:
            # The first plain steps behind a spurt are slow, and only for it.
            self._costs.rest(n_tokens, self._model.prices)
            self._ledger.plain(COLD_STEPS * plain_us if self._was_drafting else 0.0, n_tokens, plain_us)
            if self._plain_steps.plain(plain_us, n_tokens) and not observation.graph_built:
                self._costs.learn(0, observation.verify_us + observation.rollback_us, plain_us)
                if self.n_tokens >= self._next_timed:
                    self._next_timed = self.n_tokens + _SAME_COSTS
                    self._model.learn_verify(1, observation.verify_us, built=False)
        self._was_drafting = n_verified > 0
        state.spurts.learn(n_verified, n_accepted, n_tokens, observation.logprobs)

    def _drafted(self, state: SequenceState, last: CycleObservation, n_tokens: int, plain_us: float) -> None:
        verify, _, draft, reject = self._model.prices
        n_verified, n_drafted = last.n_verified, last.n_drafted
        took_us = last.draft_us + last.verify_us + last.rollback_us
        price_us = verify[n_verified] + draft[n_drafted] + reject
        self._ledger.drafted(min(took_us, _OUTLIER * price_us), n_tokens, plain_us)
        if self._was_drafting and not (last.graph_built or last.draft_graph_built):
            # else the drafts had to catch up, and caches were full of what plain steps read
            self._costs.learn(n_verified, took_us, price_us)
        self._plain_steps.drafted(None)
        for depth in range(last.n_accepted + (last.n_accepted < n_verified and n_tokens > last.n_accepted)):
            held = depth < last.n_accepted
            state.acceptance.learn(depth, held)
            self._tally.label(depth, held)
