"""Log-probabilities from raw logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pylucebox._result import TokenLogprob

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def token_logprobs(
    logits: npt.NDArray[np.float32], token: int, n_top: int, token_bytes: Callable[[int], bytes]
) -> TokenLogprob:
    """Return the log-probability of `token` and of the likeliest tokens at its place.

    Parameters
    ----------
    logits
        Shape (n_vocab,), before temperature, penalties and grammar.
    token
        The token that was drawn.
    n_top
        How many of the likeliest tokens to list, best first; equal logits by rising id.
    token_bytes
        Bytes of a token.
    """
    import numpy as np  # noqa: PLC0415 - only those who ask for log-probabilities pay for it

    shifted = logits.astype(np.float64)
    shifted -= shifted.max()
    log_probs = shifted - np.log(np.exp(shifted).sum())

    def entry(index: int, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        return TokenLogprob(token_id=index, token_bytes=token_bytes(index), logprob=float(log_probs[index]), top=top)

    n_top = min(n_top, len(log_probs))
    if n_top == 0:
        return entry(token)
    # All that reach the n-th best value, so that ties at the edge are settled by id and not by the partition.
    edge = np.partition(log_probs, -n_top)[-n_top]
    reached = np.flatnonzero(log_probs >= edge)
    best = reached[np.lexsort((reached, -log_probs[reached]))][:n_top]
    return entry(token, tuple(entry(int(index)) for index in best))
