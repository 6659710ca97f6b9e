"""When to draft on a processor whose plain steps are short: in spurts, as wide as pays, where the text is easy.

Weights of a small model stay in the processor's caches while plain steps follow each other. Many rows and the MTP block
push them out, so a change costs several steps: drafts catch up with what was written without them, and plain steps
behind them are slow for a while. A cycle of eight rows of the built-in model takes six plain steps, and narrow ones
bring next to nothing, so nobody can feel his way from width to width, and a look at a draft costs more than it tells.
What decides is how much the text surprises the trunk, which costs nothing: see `pylucebox.width.surprise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width.costs import Prices
from pylucebox.width.surprise import KEPT, Foretold, Surprise

__all__ = ["COLD_STEPS", "Spurts", "StepCosts", "best_chain"]

COLD_STEPS: Final = 3.5
"""Plain steps that caches cost behind a spurt: those that follow take 0.8, 0.6, 0.5, 0.4, 0.3, ... of one more each."""

_FIRST: Final = 3  # tokens that a text must have before anything is said of it
_PATIENCE: Final = 8  # plain steps behind a spurt before the next, so that caches are of use again
_AGAIN: Final = 8  # plain steps behind a text that was easy enough, but not for what was left of it
_AHEAD: Final = 64  # tokens that a text is expected to stay easy, until spurts in it tell, or as many as it has been
_EASY: Final = 0.03  # with less surprise than this
_KEPT_UP: Final = 4  # plain steps of an easy text that drafts need not catch up with
_CATCH_UP_STEPS: Final = 3.0  # plain steps that it takes to catch up with more: a graph is built for it,
_PAIR_STEPS: Final = 0.17  # and for each of them
_MARGIN: Final = 1.0  # plain steps that a spurt must be expected to gain
_STAYS: Final = 0.8  # of what plain steps bring, above which a spurt goes on: to end it has its price
_SAID: Final = 0.35  # weight of surprise in what a spurt is expected to bring, against its own cycles
_OLD: Final = 0.2  # weight of earlier cycles in these against the last
_OVERDRAFT: Final = 6.0  # plain steps beyond what may be lost, that a cycle may risk which ought to gain
_IN_USE: Final = 1.1  # times its price, a cycle of a text, whose rows are not the same again and again,
_UNTRIED: Final = 1.15  # and a narrow one once more
_NEWS: Final = 0.15  # weight of a cycle in what such cycles take
_OUTLIER: Final = 1.15  # times what is known, the most that a cycle counts as
_SHORTEST_REST: Final = 4  # plain steps in a row that nobody thinks about where no spurt can begin,
_LONGEST_REST: Final = 16  # and the most
_HALVINGS: Final = 6
_LONG: Final = 256  # tokens without drafts, after each of which they seem less dear
_FADES: Final = 0.1  # by this part of the difference to their price


class StepCosts:
    """What cycles with drafts cost in plain steps, as they follow each other in spurts.

    Kept apart from the prices of `CostModel`, which fits a line through all widths: here a few parts in a hundred
    decide, and what counts is one width in use against plain steps in use.
    """

    def __init__(self) -> None:
        self._seen_us = [0.0] * (MAX_DRAFT + 1)  # 0: never in use
        self._bar = 0.0  # 0: has to be found
        self._n_rested = 0  # tokens since drafts were in use

    def learn(self, n_drafts: int, took_us: float, price_us: float) -> None:
        """Take a cycle behind others of its kind, 0 drafts for a plain step, and its price before any was seen."""
        known_us = self._seen_us[n_drafts] or price_us
        self._seen_us[n_drafts] = known_us + _NEWS * (min(took_us, _OUTLIER * known_us) - known_us)
        if n_drafts:
            self._n_rested, self._bar = 0, 0.0

    def rest(self, n_tokens: int, prices: Prices) -> None:
        """Count tokens without drafts: after many, drafts seem less dear, since the machine may have been busy."""
        self._n_rested += n_tokens
        if self._n_rested < _LONG:
            return
        self._n_rested, self._bar = 0, 0.0
        for k in range(1, MAX_DRAFT + 1):
            if self._seen_us[k]:
                self._seen_us[k] += _FADES * (prices.verify[k] + prices.draft[k] - self._seen_us[k])

    def of(self, prices: Prices) -> list[float]:
        """Return the cost of cycles with 0 to 7 drafts, in plain steps."""
        verify, _, draft, _ = prices
        plain_us = self._seen_us[0] or verify[0]
        costs, scale = [1.0] * (MAX_DRAFT + 1), _IN_USE / plain_us
        for k in range(MAX_DRAFT, 0, -1):
            seen_us, price_us = self._seen_us[k], verify[k] + draft[k]
            if seen_us:
                scale = seen_us / (price_us * plain_us)
            # Cycles of one width were timed among their like, which flatters the narrow ones.
            costs[k] = price_us * scale * (1.0 if seen_us or k == MAX_DRAFT else _UNTRIED)
        return costs

    def bar(self, foretold: Foretold, prices: Prices) -> float:
        """Return the surprise up to which a spurt might be worth its price."""
        if self._bar:
            return self._bar
        costs, low, high = self.of(prices), 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            gain = best_chain(foretold.tokens(middle), costs, MAX_DRAFT)[1]
            if gain * _AHEAD > COLD_STEPS + _MARGIN:
                low = middle
            else:
                high = middle
        self._bar = high
        return high


class Spurts:
    """Chooses the drafts of one sequence.

    Parameters
    ----------
    foretold, costs
        What drafts bring and take; shared by all sequences, and learn from this one.

    Attributes
    ----------
    surprise
        Of the text.
    n_plain
        Plain steps in a row.
    """

    def __init__(self, foretold: Foretold, costs: StepCosts) -> None:
        self.surprise = Surprise()
        self.n_plain = 0
        self._foretold = foretold
        self._costs = costs
        self._is_drafting = False
        self._patience = 0
        self._n_easy = 0  # tokens in a row
        self._n_spurt = 0  # tokens of the present spurt
        self._ahead = float(_AHEAD)
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
        if not self._is_drafting and (self.n_plain < self._patience or self.surprise.n < _FIRST):
            return 0
        if limit < 1 or not (self._is_drafting or self.surprise.mean <= self._costs.bar(self._foretold, prices)):
            return 0
        costs = self._costs.of(prices)
        tokens = self._foretold.tokens(self.surprise.mean)
        k, gain = best_chain(tokens, costs, limit)
        affords = costs[k] - 1.0 <= room + _OVERDRAFT
        if self._is_drafting:
            share = _SAID + (1.0 - _SAID) * self._fulfilled
            goes_on = affords and share > _STAYS * (1.0 - gain)  # gain is 1 - cost / tokens
        else:
            switch = COLD_STEPS + _MARGIN
            if self.n_plain > _KEPT_UP:
                switch += _CATCH_UP_STEPS + _PAIR_STEPS * self.n_plain
            goes_on = affords and gain * min(n_left, max(self._ahead, self._n_easy)) > switch
            self._fulfilled = 1.0
        if goes_on:
            self._is_drafting = True
            self._expected = tokens[k]
            return k
        self._patience = self.n_plain + _AGAIN
        if self._is_drafting:
            self._patience = _PATIENCE
            self._ahead = 0.5 * (self._ahead + self._n_spurt)
            self._is_drafting, self._n_spurt = False, 0
        return 0

    def rests(self, prices: Prices) -> int:
        """Return for how many plain steps no spurt can begin, whatever the text may be."""
        if self._is_drafting:
            return 0
        n = self._patience - self.n_plain
        mean = self.surprise.mean
        if self.surprise.n < _FIRST:
            n = max(n, _FIRST - self.surprise.n)
        else:
            bar = self._costs.bar(self._foretold, prices)
            if mean > bar:
                n = max(n, _SHORTEST_REST, int(log(bar / mean) / log(KEPT)))
        return max(0, min(n, _LONGEST_REST))

    def learn(self, n_verified: int, n_accepted: int, n_tokens: int, logprobs: Sequence[float]) -> None:
        """Take what a cycle brought, or several without drafts."""
        if n_verified:
            self._foretold.learn(self.surprise.mean, n_verified, n_accepted)
            brought = (n_accepted + 1) / self._expected
            self._fulfilled = brought if self.n_plain else _OLD * self._fulfilled + (1.0 - _OLD) * brought
            self.n_plain = 0
            self._n_spurt += n_tokens
        else:
            self._foretold.rest(n_tokens)
            self.n_plain += n_tokens
        self.surprise.take(logprobs)
        self._n_easy = self._n_easy + n_tokens if self.surprise.mean < _EASY else 0


def best_chain(tokens: Sequence[float], costs: Sequence[float], limit: int) -> tuple[int, float]:
    """Return how many drafts bring most tokens per time, and what part of a plain step each token then saves.

    Parameters
    ----------
    tokens, costs
        Expected tokens of cycles with 0, 1, ... drafts, and their cost in plain steps.
    limit
        The most drafts, at least 1.
    """
    per_token = [costs[k] / tokens[k] for k in range(1, limit + 1)]
    least = min(per_token)
    return 1 + per_token.index(least), 1.0 - least
