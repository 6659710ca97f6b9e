"""From a recipe to the requests that a model runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pylucebox._errors import InvalidArgumentError
from pylucebox.ab.records import Request, Workload

from . import _corpus
from ._desk import Desk

PromptMaker = Callable[[Desk, int, int], str]
"""Makes a prompt for a desk and at most so many tokens; variant 1 is the positive control, variant 0 what is measured.

A prompt that is short by nature does not look at the number of tokens."""

_SLACK: Final = 16  # rows of a verify step and control tokens at the ends
_LARGEST: Final = 65_536  # prompt class that fills a context which is too small for it
_FEWEST: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen; the default is greedy."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


GREEDY: Final = Sampling()
PLAIN: Final = Sampling(temperature=0.7, top_k=40, top_p=0.95, seed=1)
"""For beginnings of texts: greedily, a small model soon repeats itself, and that flatters drafts."""
CARD: Final = Sampling(temperature=1.0, top_k=20, top_p=0.95, seed=1)
"""What the model card of Qwen3 models recommends for thinking, at temperature 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One request of a workload.

    Attributes
    ----------
    prompt
        Makes the prompt.
    n_output
        Tokens to produce in a context that is large enough.
    sampling
        For models that follow instructions.
    plain_sampling
        For models that only continue texts.
    start_share
        Start, in units of the desk's stagger.
    stop
        Stop strings.
    plain_grammar
        GBNF grammar for models that only continue texts: it takes the place of an instruction.
    """

    prompt: PromptMaker
    n_output: int
    sampling: Sampling = GREEDY
    plain_sampling: Sampling = GREEDY
    start_share: int = 0
    stop: tuple[str, ...] = ()
    plain_grammar: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a workload is made.

    Attributes
    ----------
    name, kind, title
        Of the workload.
    parts
        Its requests.
    n_prompt
        Tokens that the prompt may have in a context that is large enough.
    needs_chat
        Whether only a model that follows instructions can run it.
    has_control
        Whether another prompt must give another digest.
    n_ctx
        Context of the session; None takes what prompt and output need.
    """

    name: str
    kind: str
    title: str
    parts: tuple[Part, ...]
    n_prompt: int = 512
    needs_chat: bool = False
    has_control: bool = True
    n_ctx: int | None = None


def sized(n_prompt: int, n_output: int, n_ctx: int) -> tuple[int, int, bool]:
    """Fit a prompt class and an output into a context.

    A workload that fits stays as it is. One that does not gets an eighth of the context, at most, for its output, and
    for its prompt the whole of the rest if it is of the 64K class and less if it is smaller: half for 16K, a quarter
    for 4K. So long prompts stay longer than shorter ones in a small context, too.

    Returns
    -------
    tuple of int, int and bool
        Prompt tokens, output tokens, and whether they were scaled.
    """
    if n_prompt + n_output + _SLACK <= n_ctx:
        return n_prompt, n_output, False
    n_output = max(_FEWEST, min(n_output, n_ctx // 8))
    share = min(1.0, (n_prompt / _LARGEST) ** 0.5)
    return max(_FEWEST, int((n_ctx - n_output - _SLACK) * share)), n_output, True


def warmup(desk: Desk) -> Request:
    """Return the request that runs before the measured one: 64 tokens on text that no other prompt contains."""
    text = _corpus.warmup_article()
    prompt = desk.ask(f"Explain this to a friend:\n\n{text}") if desk.is_chat else text
    return Request(prompt=prompt, max_tokens=64, n_prompt=desk.count(prompt))


def build(recipe: Recipe, desk: Desk) -> Workload:
    """Make a workload for a model.

    Raises
    ------
    InvalidArgumentError
        The context is too small even for the scaled workload.
    """
    longest = max(part.n_output for part in recipe.parts)
    n_prompt, _, is_scaled = sized(recipe.n_prompt, longest, desk.n_ctx)
    requests = tuple(_request(part, desk, n_prompt, longest, recipe.n_prompt, variant=0) for part in recipe.parts)
    needed = max((request.n_prompt or 0) + request.max_tokens for request in requests) + _SLACK
    if recipe.n_ctx is None and needed > desk.n_ctx:
        raise InvalidArgumentError(
            argument="n_ctx",
            value=desk.n_ctx,
            allowed=f"at least {needed} tokens for the workload {recipe.name!r}; leave it out for this model",
        )
    control = None
    if recipe.has_control:
        control = _request(recipe.parts[0], desk, n_prompt, longest, recipe.n_prompt, variant=1)
    return Workload(
        name=f"{recipe.name}@{_short(desk.n_ctx)}" if is_scaled else recipe.name,
        kind=recipe.kind,
        title=recipe.title,
        requests=requests,
        warmup=warmup(desk),
        control=control,
        n_seq=len(requests),
        n_ctx=recipe.n_ctx or min(desk.n_ctx, -(-needed // 256) * 256),
    )


def _request(part: Part, desk: Desk, n_prompt: int, longest: int, n_nominal: int, *, variant: int) -> Request:
    n_output = part.n_output
    if n_prompt != n_nominal:  # scaled: all parts shrink by the same factor
        n_output = max(1, n_output * sized(n_nominal, longest, desk.n_ctx)[1] // longest)
    prompt = part.prompt(desk, n_prompt, variant)
    sampling = part.sampling if desk.is_chat else part.plain_sampling
    return Request(
        prompt=prompt,
        max_tokens=n_output,
        start_s=part.start_share * desk.stagger_s,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed + variant if sampling.temperature else 0,
        stop=part.stop,
        grammar=None if desk.is_chat else part.plain_grammar,
        n_prompt=desk.count(prompt),
    )


def _short(n_tokens: int) -> str:
    return f"{n_tokens / 1024:.3g}k" if n_tokens >= 1024 else str(n_tokens)
