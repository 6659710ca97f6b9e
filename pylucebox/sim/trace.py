"""All-position traces: what the MTP block drafts at every position of a text, so that any width policy can be replayed.

Position t is the place after token t of the text. The drafts made there depend on the trunk's rows up to t and on
nothing else: whatever a policy drafted and lost before is rolled back. So a trace that was recorded once replays every
policy exactly, and the match length at t says how many drafts a cycle that begins there would have held.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pylucebox._errors import InvalidArgumentError
from pylucebox._sampling import SAMPLER_RNGS
from pylucebox._stats import MAX_DRAFT
from pylucebox.width.hints import Draws, TextHints

__all__ = ["DEPTH", "SUFFIX", "Trace", "match_lengths", "quantised"]

DEPTH: Final = MAX_DRAFT
"""Drafts at each position."""

SUFFIX: Final = ".trace.npz"
"""End of the names of trace files."""

_P_STEPS: Final = 65_535  # probabilities are kept in steps of 1/65535, finer than any rule looks at them


def quantised(p: float) -> float:
    """Return a probability as a trace file holds it."""
    return round(min(1.0, max(0.0, p)) * _P_STEPS) / _P_STEPS


def match_lengths(tokens: Sequence[int], drafts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return for each position how many of its drafts equal the text that follows, before the first that does not."""
    n_tokens = len(tokens)
    lengths = []
    for at, chain in enumerate(drafts, 1):
        held = 0
        while held < len(chain) and at + held < n_tokens and chain[held] == tokens[at + held]:
            held += 1
        lengths.append(held)
    return tuple(lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a request produced, and what the MTP block drafts at each position of it.

    Attributes
    ----------
    name, kind
        What the text is called, and what sort of text it is.
    tokens
        Ids of the text. The first comes from prefill, so a replay decodes the others.
    drafts
        For each position but the last, 7 ids: a chain of drafts, the first for the next token.
    probs
        The MTP block's probability of each draft.
    n_prompt
        Tokens of the prompt.
    max_tokens
        Tokens that the request might have produced; more than there are when the text ended by itself.
    prompt
        Ids of the prompt; empty if it was not recorded.
    seed, temperature
        Of the sampler whose numbers drew the text, if they can be foretold; None otherwise.
    sampler_rng
        Where the random numbers of the text came from; None for a text that was followed or is greedy. With
        ``"gumbel"`` the drafts shared its noise, and `probs` are what their lead says of their chance to hold;
        otherwise each is the likeliest token, and `probs` are top-1 probabilities.
    facts
        Where the trace comes from: model, build, settings.
    match
        For each position how many of its drafts hold; computed.

    Raises
    ------
    InvalidArgumentError
        The parts do not fit together.
    """

    name: str
    kind: str
    tokens: tuple[int, ...]
    drafts: tuple[tuple[int, ...], ...]
    probs: tuple[tuple[float, ...], ...]
    n_prompt: int
    max_tokens: int
    prompt: tuple[int, ...] = ()
    seed: int | None = None
    temperature: float = 0.0
    sampler_rng: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    match: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the shapes and compute the match lengths."""
        n_positions = max(0, len(self.tokens) - 1)
        if not self.tokens:
            raise InvalidArgumentError(argument="tokens", value=self.tokens, allowed="one token or more")
        for name, rows in (("drafts", self.drafts), ("probs", self.probs)):
            if len(rows) != n_positions or any(len(row) != DEPTH for row in rows):
                allowed = f"{n_positions} rows of {DEPTH}, one for each token but the last"
                raise InvalidArgumentError(argument=name, value=f"{len(rows)} rows", allowed=allowed)
        if any(not 0.0 <= p <= 1.0 for row in self.probs for p in row):
            raise InvalidArgumentError(argument="probs", value="a number outside", allowed="numbers from 0 to 1")
        if self.max_tokens < len(self.tokens):
            allowed = f"{len(self.tokens)} or more, the tokens there are"
            raise InvalidArgumentError(argument="max_tokens", value=self.max_tokens, allowed=allowed)
        if self.sampler_rng not in (None, *SAMPLER_RNGS):
            allowed = f"None or one of {', '.join(SAMPLER_RNGS)}"
            raise InvalidArgumentError(argument="sampler_rng", value=self.sampler_rng, allowed=allowed)
        if self.n_prompt < 0:
            raise InvalidArgumentError(argument="n_prompt", value=self.n_prompt, allowed="0 or more")
        if self.prompt and len(self.prompt) != self.n_prompt:
            allowed = f"{self.n_prompt} ids, as many as n_prompt says, or none"
            raise InvalidArgumentError(argument="prompt", value=f"{len(self.prompt)} ids", allowed=allowed)
        object.__setattr__(self, "match", match_lengths(self.tokens, self.drafts))

    def hints(self) -> TextHints:
        """Return what an engine knows of this text beforehand."""
        draws = None if self.seed is None else Draws(self.seed, self.temperature)
        return TextHints((*self.prompt, self.tokens[0]), self.n_prompt, draws)

    def cut(self, max_tokens: int) -> Trace:
        """Return the trace of the same request limited to `max_tokens`, at least 1; itself if it is no longer."""
        if max_tokens >= self.max_tokens:
            return self
        n_kept = min(max_tokens, len(self.tokens))
        return replace(
            self,
            tokens=self.tokens[:n_kept],
            drafts=self.drafts[: n_kept - 1],
            probs=self.probs[: n_kept - 1],
            max_tokens=max_tokens,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the text and the drafts, hex; probabilities are left out, since their last digits may differ."""
        words = hashlib.sha256()
        for row in (self.tokens, *self.drafts):
            words.update(b"".join(token.to_bytes(4, "little", signed=True) for token in row))
        return words.hexdigest()
