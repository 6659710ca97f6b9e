"""Whether a request is long enough to earn back what MTP costs in its prompt."""

from __future__ import annotations

__all__ = ["tokens_to_earn_back"]


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
