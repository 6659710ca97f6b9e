"""A request, checked in full before anything runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import index
from typing import TypeVar

from pylucebox._errors import ContextFullError, InvalidArgumentError
from pylucebox._sampling import SamplingParams
from pylucebox._spec import SpecReason, SpecState, spec_inactive
from pylucebox._text import StopMatcher
from pylucebox.width.hints import Draws

MAX_TOKENS = 2**31 - 1
MAX_LOGPROBS = 100

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a generation is to do.

    Attributes
    ----------
    prompt
        Token ids, 1 to n_ctx of them.
    max_tokens
        Most new tokens; the end token counts, although it is not delivered.
    stop
        Stop strings.
    sampling
        Settings with a definite seed.
    logprobs
        None for none, else the number of likeliest tokens to report beside each token.
    verify_width
        0 for adaptive, 1 for no drafts, else the fixed width.
    spec
        Whether drafts are made for this request, and if not, why.
    chat_json
        Rendered chat request, which brings the template's grammar along; None outside chats.
    visible
        Control tokens that appear in the text.
    """

    prompt: Sequence[int]
    max_tokens: int
    stop: tuple[str, ...]
    sampling: SamplingParams
    logprobs: int | None
    verify_width: int
    spec: SpecState
    chat_json: str | None = None
    visible: frozenset[int] = frozenset()

    @property
    def use_mtp(self) -> bool:
        """Whether drafts are made."""
        return self.spec.effective

    @property
    def seed(self) -> int | None:
        """Seed to report: None when the random stream has no say."""
        return None if self.sampling.is_greedy else self.sampling.seed

    def draws(self) -> Draws | None:
        """Return the numbers that will draw the tokens, as `draws_of` has them."""
        brings_grammar = self.chat_json is not None and bool(json.loads(self.chat_json).get("grammar"))
        return None if brings_grammar else draws_of(self.sampling)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRules:
    """What an engine allows and assumes.

    Attributes
    ----------
    n_ctx
        Tokens that a sequence can hold.
    verify_width
        Width of requests that ask for none.
    max_width
        Widest step that requests may ask for.
    spec
        Whether the engine makes drafts.
    """

    n_ctx: int
    verify_width: int
    max_width: int
    spec: SpecState

    def request(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        stop: str | Sequence[str],
        sampling: SamplingParams | None,
        logprobs: int | None,
        verify_width: int | None,
        chat_json: str | None = None,
        visible: frozenset[int] = frozenset(),
    ) -> Request:
        """Return a checked request; None for `sampling` is greedy.

        Raises
        ------
        InvalidArgumentError
            An argument is out of range or of the wrong type.
        ContextFullError
            The prompt does not fit.
        """
        if not prompt:
            raise InvalidArgumentError(argument="prompt", value=prompt, allowed="at least one token")
        if len(prompt) > self.n_ctx:
            raise ContextFullError("the prompt does not fit", n_ctx=self.n_ctx, n_needed=len(prompt))
        if logprobs is not None:
            check_integer("logprobs", logprobs, 0, MAX_LOGPROBS)
        width, spec = self.verify_width, self.spec
        if verify_width is not None:
            words = f"0 (adaptive), 1 (no drafts) or up to {self.max_width}, the widest this engine was opened for"
            width = check_integer("verify_width", verify_width, 0, self.max_width, words)
        if width == 1 and spec.effective:
            spec = spec_inactive(SpecReason.OFF_REQUESTED, "the request asked for verify_width=1")
        return Request(
            prompt=prompt,
            max_tokens=check_integer("max_tokens", max_tokens, 1, MAX_TOKENS),
            stop=check_stop(stop),
            sampling=SamplingParams(temperature=0.0, seed=0) if sampling is None else seeded(sampling),
            logprobs=logprobs,
            verify_width=width,
            spec=spec,
            chat_json=chat_json,
            visible=visible,
        )


def seeded(sampling: object) -> SamplingParams:
    """Return the settings with a definite seed.

    Raises
    ------
    InvalidArgumentError
        These are no settings.
    """
    if not isinstance(sampling, SamplingParams):
        raise InvalidArgumentError(argument="sampling", value=sampling, allowed="SamplingParams, or None for greedy")
    return sampling.with_seed()


def settings_per_prompt(sampling: object, n_prompts: int) -> Sequence[SamplingParams | None]:
    """Return one entry for each of `n_prompts` prompts: settings given once hold for all.

    Raises
    ------
    InvalidArgumentError
        A list of another length, or no settings at all.
    """
    if sampling is None or isinstance(sampling, SamplingParams):
        return [sampling] * n_prompts
    if not isinstance(sampling, Sequence) or len(sampling) != n_prompts:
        allowed = f"SamplingParams, None, or {n_prompts} of these, one for each prompt"
        raise InvalidArgumentError(argument="sampling", value=sampling, allowed=allowed)
    return sampling


def check_integer(argument: str, value: object, low: int, high: int, words: str = "") -> int:
    """Return `value` if it is an integer from `low` to `high`.

    Raises
    ------
    InvalidArgumentError
        It is not; the message says `words`, or the range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgumentError(argument=argument, value=value, allowed=words or f"an integer from {low} to {high}")
    return value


def check_bool(argument: str, value: object) -> None:
    """Raise InvalidArgumentError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(argument=argument, value=value, allowed="True or False")


def check_callable(argument: str, value: object) -> None:
    """Raise InvalidArgumentError unless `value` is a function, or something else that can be called, or None."""
    if value is not None and not callable(value):
        raise InvalidArgumentError(argument=argument, value=value, allowed="a function, or None")


def check_prompts(prompts: Iterable[_T]) -> list[_T]:
    """Return the prompts of a batch as a list; a generator is used up.

    Raises
    ------
    InvalidArgumentError
        It is one text, has no order, or is not iterable. The prompts themselves are not looked at.
    """
    refused = isinstance(prompts, (str, bytes, bytearray, memoryview, Mapping, Set))
    if refused or not isinstance(prompts, Iterable):
        raise InvalidArgumentError(argument="prompts", value=prompts, allowed="a sequence of prompts")
    return list(prompts)


def check_ids(argument: str, ids: Sequence[int], n_vocab: int) -> list[int]:
    """Return `ids` as a list of plain integers.

    Raises
    ------
    InvalidArgumentError
        They are not integers of the vocabulary, or not a sequence. Bytes are refused: they are rather text than token
        ids. So are sets and mappings, whose order says nothing.
    """
    allowed = f"token ids, a sequence of integers from 0 to {n_vocab - 1}"
    values = None
    if not isinstance(ids, (str, bytes, bytearray, memoryview, Mapping, Set)):
        try:
            values = [index(token) for token in ids]
        except TypeError:
            values = None
    if values is None:
        raise InvalidArgumentError(argument=argument, value=ids, allowed=allowed)
    if values and not 0 <= min(values) <= max(values) < n_vocab:
        wrong = next(token for token in values if not 0 <= token < n_vocab)
        raise InvalidArgumentError(argument=argument, value=wrong, allowed=allowed)
    return values


def check_stop(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Return the stop strings as a tuple.

    Raises
    ------
    InvalidArgumentError
        One is empty or not a string.
    """
    try:
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
    except TypeError as error:
        raise InvalidArgumentError(argument="stop", value=stop, allowed="a string, or several") from error
    StopMatcher(stops)
    return stops


def draws_of(sampling: SamplingParams) -> Draws | None:
    """Return the numbers that will draw the tokens of a request; None where they say nothing of them.

    A grammar that refuses a token has another number drawn, and some samplers draw numbers of their own. A number is
    worth knowing only if the candidates stand in the order of their probabilities, as `top_k` leaves them. Where drafts
    share the noise of the sampler, their lead tells it already.
    """
    if sampling.sampler_rng != "mt19937":
        return None
    if sampling.is_greedy or sampling.seed is None or sampling.top_k == 0 or sampling.samplers is not None:
        return None
    if sampling.grammar is not None or sampling.json_schema is not None:
        return None
    draws_more = sampling.xtc_probability > 0.0 or sampling.mirostat != 0 or sampling.adaptive_target >= 0.0
    return None if draws_more or sampling.typical_p < 1.0 else Draws(sampling.seed, sampling.temperature)
