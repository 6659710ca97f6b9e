"""Whether a request is long enough to earn back what MTP costs in its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width.choice import rates_of
from pylucebox.width.costs import CostModel
from pylucebox.width.spurts import COLD_STEPS, best_chain
from pylucebox.width.surprise import Foretold, Surprise

__all__ = ["Experience", "foretold_saving", "reason_against", "tokens_to_earn_back"]

_NEWS: Final = 0.1  # weight of a request in what requests save
_HOPE: Final = 0.12  # plain steps per token that MTP is hoped to save before there was a request
_PARKED_STEPS: Final = 0.02  # of a plain step, which MTP costs per token though nothing is drafted
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
    if saved_us <= 1e-9 * plain_us:  # what rounding leaves is no saving
        return None
    return prompt_tokens * prefill_us_per_token / saved_us


class Experience:
    """What MTP saved in the requests so far, or would have saved in those that did without it.

    How much a text surprises the trunk tells whether its drafts would have held, so easy texts lift a refusal that was
    wrong for them.

    Attributes
    ----------
    saved
        Plain steps per token, mean over requests of which the last weigh most.
    """

    def __init__(self) -> None:
        self.saved = _HOPE
        self._variance = 0.0

    @property
    def hoped(self) -> float:
        """Plain steps per token that MTP may be hoped to save: a standard error more than the mean."""
        return self.saved + sqrt(_NEWS / (2.0 - _NEWS) * self._variance)

    def learn(self, saved_steps: float, n_tokens: int) -> None:
        """Take a request of so many tokens, which took so many plain steps less than it has tokens."""
        if n_tokens < _ENOUGH:
            return
        surplus = saved_steps / n_tokens - _PARKED_STEPS - self.saved
        self._variance += _NEWS * (surplus * surplus - self._variance)
        self.saved = max(0.0, self.saved + _NEWS * surplus)


def foretold_saving(logprobs: Sequence[float], n_tokens: int, foretold: Foretold, costs: Sequence[float]) -> float:
    """Return the plain steps that drafts would have saved in a text.

    Parameters
    ----------
    logprobs
        Logarithms of the probabilities that the trunk gave to some of its tokens, at even distances.
    n_tokens
        Tokens that it has.
    foretold, costs
        What drafts bring where a text surprises so much, and what cycles with 0 to 7 drafts cost in plain steps.
    """
    n_each = n_tokens / max(1, len(logprobs))
    saved_steps, was_easy = 0.0, False
    for begin in range(0, len(logprobs) - _BLOCK + 1, _BLOCK):
        surprise = Surprise()
        surprise.take(logprobs[begin : begin + _BLOCK])
        gain = best_chain(foretold.tokens(surprise.mean), costs, MAX_DRAFT)[1]
        is_easy = gain > 0.0
        if is_easy:
            saved_steps += _BLOCK * n_each * gain - (0.0 if was_easy else COLD_STEPS)
        was_easy = is_easy
    return saved_steps


def reason_against(
    prompt_tokens: int, max_tokens: int, model: CostModel, *, saved: float | None, acceptance: list[float], speed: float
) -> str | None:
    """Return why a request should do without MTP, or None.

    Parameters
    ----------
    prompt_tokens, max_tokens
        Of the request.
    model
        What the machine takes.
    saved
        Plain steps per token that MTP may be hoped to save, as an `Experience` tells; None without one.
    acceptance, speed
        Without one: how often drafts are expected to hold, and tokens per microsecond of earlier requests.
    """
    tax_us, prices = model.prefill_us_per_token, model.prices
    if not model.known or tax_us <= 0.0:
        return None
    needed: float | None = None
    if saved is not None:
        needed = prompt_tokens * tax_us / (saved * prices.verify[0]) if saved > 0.0 else None
    else:
        for rates, seen in ((acceptance, speed), ([1.0] * MAX_DRAFT, 0.0)):
            fastest = max(seen, *rates_of(rates, MAX_DRAFT, prices))
            needed = tokens_to_earn_back(prompt_tokens, tax_us, prices.verify[0], fastest)
            if needed is not None:
                break  # else ask whether the best conceivable text would do
    if needed is not None and max_tokens >= needed:
        return None
    when = "it never earns back" if needed is None else f"it earns back after about {needed:.0f} tokens"
    return f"MTP makes a prompt of {prompt_tokens} tokens slower, which {when}; max_tokens is {max_tokens}"
