"""What a generation returns: steps while it runs, a completion at its end."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pylucebox._errors import LuceboxError
from pylucebox._spec import SpecState
from pylucebox._stats import RequestStats
from pylucebox.width import WidthTelemetry

__all__ = ["ChatCompletion", "Completion", "CycleInfo", "FinishReason", "Step", "TokenLogprob", "token_digest"]

FinishReason = Literal["stop", "length", "cancelled", "context", "error"]
"""Why a generation ended: end token or stop string; `max_tokens`; `Engine.cancel()`; the context is full; its sampler
failed, which only `Engine.generate_many` reports so."""


def token_digest(token_ids: Sequence[int]) -> str:
    """Return the SHA-256, in hex, of token ids written as little-endian 32-bit integers.

    Equal digests mean equal tokens, so two runs can be compared without keeping their output.

    Raises
    ------
    OverflowError
        An id does not fit into 32 bits.
    """
    return hashlib.sha256(b"".join(token.to_bytes(4, "little", signed=True) for token in token_ids)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token and its log-probability under the trunk.

    Attributes
    ----------
    token_id
        The token.
    token_bytes
        Its bytes, which need not be whole UTF-8 characters.
    logprob
        Natural logarithm of its probability in the model's own distribution, before temperature, penalties or grammar.
    top
        The likeliest tokens at this place, best first; empty in the entries themselves.
    """

    token_id: int
    token_bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()

    @property
    def text(self) -> str:
        """The bytes as text; parts of characters show as U+FFFD."""
        return self.token_bytes.decode("utf-8", "replace")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; `logprob` is None for a probability of zero, which JSON cannot express."""
        return {
            "token_id": self.token_id,
            "token": self.text,
            "bytes": list(self.token_bytes),
            "logprob": self.logprob if math.isfinite(self.logprob) else None,
            "top": [entry.as_dict() for entry in self.top],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleInfo:
    """The cycle that a step came from.

    Attributes
    ----------
    width
        Rows of the sequence in the verify step: the last token and its drafts, 1 to 8.
    n_drafted, n_verified, n_accepted
        Drafts made, those of them that were verified, and those that held. `n_verified` is `width` less one.
    draft_probs
        The MTP block's probability of each draft, over the whole vocabulary, or, where drafts share the sampler's
        noise, what their lead says of their chance to hold; `n_drafted` entries.
    draft_us, verify_us, sample_us, rollback_us
        Times in microseconds, over all sequences of the cycle.
    n_rows
        Rows of the verify step over all sequences.
    graph_built
        Whether the verify graph had to be built.
    """

    width: int
    n_drafted: int
    n_verified: int
    n_accepted: int
    draft_probs: tuple[float, ...]
    draft_us: int
    verify_us: int
    sample_us: int
    rollback_us: int
    n_rows: int
    graph_built: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one cycle, or prefill, added to a generation.

    Attributes
    ----------
    text
        New text. It never splits a character and never holds any part of a stop string, so it may lag behind the
        tokens and may be empty. The texts of all steps joined are `Completion.text`.
    token_ids
        New tokens; an end token, and what follows a stop string, is already cut off.
    logprobs
        One entry per token, or None when none were asked for.
    from_draft
        For each token whether a draft had foreseen it.
    finish_reason
        None but in the last step.
    cycle
        The cycle; None for the first token, which prefill samples.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    from_draft: tuple[bool, ...] = ()
    finish_reason: FinishReason | None = None
    cycle: CycleInfo | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "logprobs": _logprobs(self.logprobs),
            "from_draft": list(self.from_draft),
            "finish_reason": self.finish_reason,
            "cycle": self.cycle.as_dict() if self.cycle else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A finished generation.

    Attributes
    ----------
    text
        The text, without the stop string or end token.
    token_ids
        Its tokens. The end token is not among them; the token that completed a stop string is the last one.
    finish_reason
        See `FinishReason`.
    stop_sequence
        The stop string that ended the text; None for any other end.
    error
        What went wrong if the reason is ``"error"``; None for any other end.
    prompt_tokens
        Tokens of the prompt.
    logprobs
        One entry per token of `token_ids`, or None when none were asked for.
    stats
        Counts and times of the request.
    spec
        Whether drafts were made, and if not, why.
    seed
        Seed the sampler ran with; None when it was greedy.
    sampler_rng
        Where its random numbers came from, see `SamplingParams`; None when it was greedy.
    telemetry
        What the width policy did and why, over all requests that ran together so far; None without a `DraftPolicy`.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_sequence: str | None
    prompt_tokens: int
    logprobs: tuple[TokenLogprob, ...] | None
    stats: RequestStats
    spec: SpecState
    seed: int | None = None
    sampler_rng: str | None = None
    error: LuceboxError | None = None
    telemetry: WidthTelemetry | None = None

    @property
    def digest(self) -> str:
        """`token_digest` of `token_ids`."""
        return token_digest(self.token_ids)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; every key is always there."""
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "stop_sequence": self.stop_sequence,
            "prompt_tokens": self.prompt_tokens,
            "logprobs": _logprobs(self.logprobs),
            "stats": self.stats.as_dict(),
            "spec": self.spec.as_dict(),
            "seed": self.seed,
            "sampler_rng": self.sampler_rng,
            "error": None if self.error is None else str(self.error),
            "digest": self.digest,
            "telemetry": None if self.telemetry is None else self.telemetry.as_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion(Completion):
    """A finished chat turn: a completion, and the message read from it.

    Attributes
    ----------
    message
        The assistant's message in the OpenAI form: ``role``, ``content``, and if present ``reasoning_content`` and
        ``tool_calls``.
    """

    message: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {"message": self.message, **Completion.as_dict(self)}


def _logprobs(entries: tuple[TokenLogprob, ...] | None) -> list[dict[str, Any]] | None:
    return None if entries is None else [entry.as_dict() for entry in entries]


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
