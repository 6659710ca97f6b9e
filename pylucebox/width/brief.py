"""Widths where steps are so short that a look at drafts takes longer than it spares.

A step of a small model on a GPU takes less than a millisecond, each launch of drafts has a price of its own, and a
hundredth of a step pays for hardly a thought. So all drafts of a cycle are made in one launch and verified, as many as
were worth it lately. Drafts that hold come in runs: where a text repeats itself all do for a while, and in between few
do. So how the last cycle ended tells most about the next, and is counted apart.
"""

from __future__ import annotations

from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width.acceptance import Acceptance
from pylucebox.width.costs import Prices

__all__ = ["BriefCycles"]

_KEPT: Final = 0.92  # of a label, per label of its depth
_AGEING: Final = 0.93  # of the labels of each depth, per cycle, so that what was given up is tried again
_LEAST_GUESS: Final = 0.85  # of a chance: a cycle too wide costs little beside some that are too narrow
_FIRST_GUESS: Final = 0.95  # the same, until a first cycle has told: in a short reply one too narrow is one more
_STRENGTH: Final = 4.0  # labels that the guess for a depth weighs
_SHARED: Final = 4.0  # labels that both kinds of cycles together weigh against one
_TOLD: Final = 4  # cycles, of which one is told to later requests: to tell all takes longer than to choose
_PATIENCE: Final = 6  # plain steps before a draft is tried again,
_MOST_PATIENCE: Final = 24  # twice as many after each that fails, up to this


class BriefCycles:
    """Chooses drafts of one sequence by counts alone.

    Parameters
    ----------
    acceptance
        What earlier requests tell; learns what this one does, for later ones.
    """

    def __init__(self, acceptance: Acceptance) -> None:
        self._acceptance = acceptance
        self._guesses = [max(_LEAST_GUESS, guess) for guess in acceptance.rates()]
        # Labels of both kinds of cycles: behind one in which a draft did not hold, and behind all others.
        self._held = [[0.0] * MAX_DRAFT, [0.0] * MAX_DRAFT]
        self._seen = [[0.0] * MAX_DRAFT, [0.0] * MAX_DRAFT]
        self._kind = 1
        self._first_guess = _FIRST_GUESS
        self._patience = _PATIENCE
        self._n_plain = 0
        self._n_cycles = 0
        self._limit = 0  # of the present cycle
        self._sure = 0  # drafts that nothing speaks against, since as many as there could be held twice

    def choose(self, limit: int, prices: Prices) -> int:
        """Return how many drafts, up to `limit`, bring most tokens per time; one now and then where none seems to."""
        if self._sure and self._sure == limit:
            return limit
        self._limit = limit
        _, verify, draft, reject = prices
        own_held, own_seen = self._held[self._kind], self._seen[self._kind]
        other_held, other_seen = self._held[1 - self._kind], self._seen[1 - self._kind]
        best, best_speed = 0, 1.0 / verify[0]
        tokens, reach, chance = 1.0, 1.0, self._first_guess
        for depth in range(limit):
            held, seen = own_held[depth], own_seen[depth]
            guess = max(self._guesses[depth], chance)
            both = (held + other_held[depth] + _STRENGTH * guess) / (seen + other_seen[depth] + _STRENGTH)
            chance = (held + _SHARED * both) / (seen + _SHARED)
            reach *= chance
            tokens += reach
            speed = tokens / (verify[depth + 1] + draft[depth + 1] + (1.0 - reach) * reject)
            if speed > best_speed:
                best, best_speed = depth + 1, speed
        return best or int(limit > 0 and self._n_plain >= self._patience)

    def learn(self, n_verified: int, n_accepted: int) -> None:
        """Take what became of the drafts of a cycle."""
        if not n_verified:
            self._n_plain += 1
            return
        self._first_guess = 0.0
        is_run = n_accepted == n_verified
        labelled = n_accepted + (not is_run)
        held, seen = self._held[self._kind], self._seen[self._kind]
        for depth in range(labelled):
            held[depth] = _KEPT * held[depth] + (depth < n_accepted)
            seen[depth] = _KEPT * seen[depth] + 1.0
        for depth in range(labelled, MAX_DRAFT):
            held[depth] *= _AGEING
            seen[depth] *= _AGEING
        self._n_cycles += 1
        if self._n_cycles % _TOLD == 0:
            for depth in range(labelled):
                self._acceptance.learn(depth, depth < n_accepted)
        # Behind a second run chances have only risen, so the choice would be the same.
        is_sure = is_run and self._kind and n_verified == self._limit and self._n_cycles > 1
        self._sure = self._limit if is_sure else 0
        self._kind = int(is_run)
        if self._n_plain >= self._patience:
            self._patience = _PATIENCE if is_run else min(2 * self._patience, _MOST_PATIENCE)
        self._n_plain = 0
