"""How much a text surprises the model that writes it, and what that foretells of drafts.

A sampler has the logits of each token on the host, so the probability that the trunk gave to what it wrote costs next
to nothing, also where nothing is drafted, and even where a request does without MTP. Drafts hold in runs where the
trunk is sure of its tokens, and seldom where it is not. The constants below were fitted on texts that the built-in
model wrote greedily and at several temperatures, others than those that policies are judged on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pylucebox._stats import MAX_DRAFT

__all__ = ["KEPT", "Foretold", "Surprise"]

KEPT: Final = 7 / 8
"""Part of what is remembered that stays, per token."""

_MOST: Final = 0.7
"""Nats of a token that count at most. What tells is how often there is a surprise, and hardly how large it is."""
_BEST_CHANCE: Final = 0.985  # of a draft to hold after those before it, where nothing surprises
_SLOPE: Final = 0.3  # by which it falls with surprise, and with its square
_GUESSED: Final = 21.0  # drafts that hold as foretold, which those of a machine nothing is known of count as
_REMEMBERED: Final = 0.9  # of what became of drafts, per cycle
_MEMORY: Final = 0.999  # of it per plain step, so that nothing that was learned is final


class Surprise:
    """Mean surprise over the last tokens of a text.

    Attributes
    ----------
    mean
        From 0, all tokens were certain, to 1.
    n
        Tokens it rests on.
    """

    __slots__ = ("_sum", "_weight", "mean", "n")

    def __init__(self) -> None:
        self.mean = 1.0
        self.n = 0
        self._sum = 0.0
        self._weight = 0.0

    def take(self, logprobs: Iterable[float]) -> None:
        """Take the logarithms of the probabilities that the trunk gave to the next tokens; NaN counts as a surprise."""
        total, weight = self._sum, self._weight
        for logprob in logprobs:
            share = -logprob / _MOST if logprob > -_MOST else 1.0
            total = KEPT * total + share
            weight = KEPT * weight + 1.0
            self.n += 1
        self._sum, self._weight = total, weight
        if weight:
            self.mean = total / weight


class Foretold:
    """What drafts bring where a text surprises so much, and whether those of this model bring it.

    The relation is that of the built-in model. Drafts of another MTP block may hold less often than its trunk is sure;
    then `trust` falls with each cycle that disappoints, and recovers while nothing is drafted.
    """

    def __init__(self) -> None:
        self._held = self._foretold = 0.0

    @property
    def trust(self) -> float:
        """Drafts that hold for each that was foretold to, at most 1."""
        return min(1.0, (_GUESSED + self._held) / (_GUESSED + self._foretold))

    def tokens(self, surprise: float) -> list[float]:
        """Return the tokens expected of cycles with 0 to 7 drafts."""
        chance = _chance(surprise)
        trust = self.trust
        tokens, reach = [1.0], trust
        for _ in range(MAX_DRAFT):
            reach *= chance
            tokens.append(tokens[-1] + reach)
        return tokens

    def learn(self, surprise: float, n_drafts: int, n_held: int) -> None:
        """Take what became of the drafts of a cycle."""
        chance, reach, foretold = _chance(surprise), 1.0, 0.0
        for _ in range(n_drafts):
            reach *= chance
            foretold += reach
        self._held = _REMEMBERED * self._held + n_held
        self._foretold = _REMEMBERED * self._foretold + foretold

    def rest(self, n_tokens: int = 1) -> None:
        """Forget a little over so many tokens without drafts."""
        kept = _MEMORY**n_tokens
        self._held *= kept
        self._foretold *= kept


def _chance(surprise: float) -> float:
    return max(0.0, _BEST_CHANCE - _SLOPE * surprise - _SLOPE * surprise * surprise)
