"""When to draft on a processor whose plain steps are short: in spurts, as wide as pays, where the text is easy.

Weights of a small model stay in the processor's caches while plain steps follow each other. Many rows and the MTP block
push them out, so a change costs several steps: the drafts catch up with what was written without them, and plain steps
behind them are slow for a while. A cycle of eight rows of the built-in model takes six plain steps, and narrow ones pay
nothing, so nobody can feel his way from width to width, and a look at a draft costs more than it tells. What decides is
how much the text surprises the trunk, which costs nothing: see `pylucebox.width.surprise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pylucebox.width.costs import Prices
from pylucebox.width.surprise import Foretold, Surprise

__all__ = ["COLD_STEPS", "Spurts", "best_chain"]

COLD_STEPS: Final = 3.5
"""Plain steps that caches cost behind a spurt: those that follow take 0.8, 0.6, 0.5, 0.4, 0.3, ... of one more each."""

_FIRST: Final = 3  # tokens that a text must have before anything is said of it
_PATIENCE: Final = 8  # plain steps behind a spurt before the next, so that caches are of use again
_AHEAD: Final = 64  # tokens that a text is expected to stay as easy as it is
_KEPT_UP: Final = 4  # plain steps of an easy text that drafts need not catch up with
_CATCH_UP_STEPS: Final = 3.0  # plain steps that it takes to catch up with more: a graph is built for it,
_PAIR_STEPS: Final = 0.16  # and for each of them
_MARGIN: Final = 1.0  # plain steps that a spurt must be expected to gain
_STAYS: Final = 0.8  # of what plain steps bring, above which a spurt goes on: to end it has its price
_SAID: Final = 0.35  # weight of surprise in what a spurt is expected to bring, against its own cycles
_OLD: Final = 0.2  # weight of earlier cycles in these against the last
_OVERDRAFT: Final = 6.0  # plain steps beyond what may be lost, that a cycle may risk which ought to gain


class Spurts:
    """Chooses the drafts of one sequence.

    Parameters
    ----------
    foretold
        What drafts bring; shared by all sequences, and learns from this one.
    """

    def __init__(self, foretold: Foretold) -> None:
        self.surprise = Surprise()
        self._foretold = foretold
        self._is_drafting = False
        self._n_plain = 0
        self._patience = 0
        self._fulfilled = 1.0  # of what was foretold, that the last cycles of this spurt brought
        self._expected = 1.0  # tokens of the present cycle

    def choose(self, limit: int, n_left: int, prices: Prices, room: float) -> int:
        """Return how many drafts to verify.

        Parameters
        ----------
        limit
            The most.
        n_left
            Tokens that the text may still have.
        prices
            Of the parts of a cycle.
        room
            Plain steps that may be lost.
        """
        if self._is_drafting:
            return self._go_on(limit, prices, room)
        if self._n_plain < self._patience or self.surprise.n < _FIRST or self.surprise.mean > 0.5:
            return 0
        k, gain = self._best(limit, prices)
        switch = COLD_STEPS
        if self._n_plain > _KEPT_UP:
            switch += _CATCH_UP_STEPS + _PAIR_STEPS * self._n_plain
        if gain * min(n_left, _AHEAD) < switch + _MARGIN or self._worst(k, prices) > room + _OVERDRAFT:
            return 0
        self._is_drafting = True
        self._fulfilled = 1.0
        return k

    def _go_on(self, limit: int, prices: Prices, room: float) -> int:
        k, gain = self._best(limit, prices)
        share = _SAID + (1.0 - _SAID) * self._fulfilled
        # gain is 1 - time / tokens
        if share < _STAYS * (1.0 - gain) or self._worst(k, prices) > room + _OVERDRAFT:
            self._is_drafting = False
            self._patience = _PATIENCE
            return 0
        return k

    def _best(self, limit: int, prices: Prices) -> tuple[int, float]:
        """Return how many drafts to verify, and what part of a plain step each token then saves."""
        tokens = self._foretold.tokens(self.surprise.mean)
        k, gain = best_chain(tokens, limit, prices)
        self._expected = tokens[k]
        return k, gain

    def _worst(self, k: int, prices: Prices) -> float:
        """Return the plain steps that a cycle loses if none of its drafts holds."""
        verify, _, draft, reject = prices
        return (verify[k] + draft[k] + reject) / verify[0] - 1.0

    def learn(self, n_verified: int, n_accepted: int, logprobs: tuple[float, ...]) -> None:
        """Take what a cycle brought."""
        if n_verified:
            self._foretold.learn(self.surprise.mean, n_verified, n_accepted)
            brought = (n_accepted + 1) / self._expected
            self._fulfilled = brought if self._n_plain else _OLD * self._fulfilled + (1.0 - _OLD) * brought
            self._n_plain = 0
        else:
            self._foretold.rest()
            self._n_plain += 1
        self.surprise.take(logprobs)


def best_chain(tokens: Sequence[float], limit: int, prices: Prices) -> tuple[int, float]:
    """Return how many drafts bring most tokens per time, and what part of a plain step each token then saves.

    Parameters
    ----------
    tokens
        Expected of 0, 1, ... drafts.
    limit
        The most drafts.
    prices
        Of the parts of a cycle.
    """
    verify, _, draft, _ = prices
    costs = [(verify[k] + draft[k]) / tokens[k] for k in range(1, limit + 1)]
    if not costs:
        return 0, 0.0
    least = min(costs)
    return 1 + costs.index(least), 1.0 - least / verify[0]
