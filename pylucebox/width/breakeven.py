"""Whether a request is long enough to earn back what MTP costs in its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pylucebox.width.costs import Prices
from pylucebox.width.spurts import COLD_STEPS, best_chain
from pylucebox.width.surprise import Foretold, Surprise

__all__ = ["Experience", "tokens_to_earn_back"]

_NEWS: Final = 0.2  # weight of a request in what requests save
_ENOUGH: Final = 32  # tokens that a request must have to count
_BLOCK: Final = 12  # tokens that are looked at together


def tokens_to_earn_back(
    prompt_tokens: int, prefill_us_per_token: float, plain_us: float, tokens_per_us: float
) -> float | None:
    """Return the tokens that a request must produce before MTP has paid for itself.

    Parameters
    ----------
    prompt_tokens
        Length of the prompt.
    prefill_us_per_token
        What MTP adds to it, per token.
    plain_us
        Time of a token without MTP.
    tokens_per_us
        Speed with MTP.

    Returns
    -------
    float or None
        None if MTP saves nothing per token, so that it never pays.
    """
    saved_us = plain_us - 1.0 / tokens_per_us
    if saved_us <= 0.0:
        return None
    return prompt_tokens * prefill_us_per_token / saved_us


class Experience:
    """What MTP saved in the requests so far, or would have saved in those that did without.

    How much a text surprises the trunk tells whether its drafts would have held, so a refusal is lifted by easy texts
    that it was wrong for.

    Attributes
    ----------
    saved
        Plain steps per token, mean over requests of which the last weigh most; None before the first.
    """

    def __init__(self) -> None:
        self.saved: float | None = None

    def learn(self, saved_steps: float, n_tokens: int, prices: Prices) -> None:
        """Take a request of so many tokens, which took so many plain steps less than it has tokens."""
        if n_tokens < _ENOUGH:
            return
        if self.saved is None:
            self.saved = _most_saved(prices)
        self.saved += _NEWS * (max(0.0, saved_steps) / n_tokens - self.saved)

    def overhear(self, logprobs: Sequence[float], foretold: Foretold, prices: Prices) -> None:
        """Take a request without MTP, by the logarithms of the probabilities that the trunk gave to its tokens."""
        saved_steps, was_easy = 0.0, False
        for begin in range(0, len(logprobs) - _BLOCK + 1, _BLOCK):
            surprise = Surprise()
            surprise.take(logprobs[begin : begin + _BLOCK])
            gain = best_chain(foretold.tokens(surprise.mean), len(prices.draft) - 1, prices)[1]
            is_easy = gain > 0.0
            if is_easy:
                saved_steps += _BLOCK * gain - (0.0 if was_easy else COLD_STEPS)
            was_easy = is_easy
        self.learn(saved_steps, len(logprobs), prices)


def _most_saved(prices: Prices) -> float:
    """Return the plain steps per token that drafts save which all hold."""
    return max(0.0, best_chain([k + 1.0 for k in range(len(prices.draft))], len(prices.draft) - 1, prices)[1])
