"""Recording of all-position traces on a real model: at every position of a text seven drafts are made and forgotten."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pylucebox._build import recorded_build
from pylucebox._errors import ContextFullError, InvalidArgumentError, StrPath
from pylucebox._native_session import NativeSession
from pylucebox._open import EngineOptions, open_engine
from pylucebox._request import draws_of
from pylucebox._sampling import SamplingParams
from pylucebox._session import FINISH_CONTEXT, FINISH_EOG, Ask, Session
from pylucebox.ab.environment import file_facts
from pylucebox.sim.trace import DEPTH, Trace, quantised

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["OpenRecorder", "TextSource", "TracingSession", "record"]

_SEQ = 0
_NO_EOG = SamplingParams(temperature=0.0, seed=0, ignore_eos=True)


class TracingSession(Session, Protocol):
    """A session that can draft without consequences and be led along a text."""

    def draft(self, seq: int, n: int) -> tuple[list[int], list[float]]:
        """Draft `n` tokens after the last token and forget them again; return them and their probabilities."""

    def force(self, seq: int, token: int) -> None:
        """Replace the last sampled token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """Where a text comes from.

    Attributes
    ----------
    name, kind
        What it is called, and what sort of text it is.
    prompt
        Ids of the prompt, at least one.
    max_tokens
        Most tokens to trace.
    sampling
        How the text is generated, without drafts; of no effect with `forced`.
    forced
        Ids of a text to follow in place of generating one; empty for none.
    """

    name: str
    kind: str
    prompt: Sequence[int]
    max_tokens: int
    sampling: SamplingParams
    forced: Sequence[int] = ()


def record(
    session: TracingSession,
    source: TextSource,
    facts: dict[str, str],
    progress: Callable[[int], None] = lambda _: None,
) -> Trace:
    """Record a trace.

    The text is what decoding without drafts gives, since nothing that is drafted here is verified.

    Parameters
    ----------
    session
        With MTP; its sequence 0 is cleared before and after.
    source
        The text.
    facts
        Where the trace comes from; digests of the prompt and the settings are added.
    progress
        Called with the tokens traced so far.

    Raises
    ------
    ContextFullError
        Prompt and text do not fit into the context.
    SequenceStateError
        The session drafts nothing.
    LuceboxError
        The model cannot be run.
    """
    _check_room(session, source)
    session.clear(_SEQ)
    try:
        return _record(session, source, facts, progress)
    finally:
        session.clear(_SEQ)


def _check_room(session: TracingSession, source: TextSource) -> None:
    n_forced = len(source.forced)
    if source.max_tokens < 1 or n_forced > source.max_tokens:
        allowed = f"{max(1, n_forced)} or more, the tokens of the text to follow"
        raise InvalidArgumentError(argument="max_tokens", value=source.max_tokens, allowed=allowed)
    # The drafts at the last position lie behind the text.
    n_needed = len(source.prompt) + (n_forced or source.max_tokens) + DEPTH
    if n_needed > session.n_ctx:
        raise ContextFullError("the text cannot be traced", n_ctx=session.n_ctx, n_needed=n_needed)


def _record(
    session: TracingSession, source: TextSource, facts: dict[str, str], progress: Callable[[int], None]
) -> Trace:
    forced = source.forced
    n_wanted = len(forced) or source.max_tokens
    sampler = session.open_sampler(_NO_EOG if forced else source.sampling, None)
    rng: str = sampler.rng
    token, finish = session.prefill(_SEQ, source.prompt, sampler, use_mtp=True)
    tokens: list[int] = []
    drafts: list[tuple[int, ...]] = []
    probs: list[tuple[float, ...]] = []
    while True:
        if forced:
            token = forced[len(tokens)]
            session.force(_SEQ, token)
        tokens.append(token)
        progress(len(tokens))
        ended = finish == FINISH_CONTEXT or (finish == FINISH_EOG and not forced)
        if ended or len(tokens) >= n_wanted:
            break
        chain, chances = session.draft(_SEQ, DEPTH)
        drafts.append(tuple(chain))
        probs.append(tuple(map(quantised, chances)))
        (result,), _ = session.cycle([Ask(_SEQ, 1, n_wanted + 1 - len(tokens))])
        token, finish = result.tokens[0], result.finish
    words = ",".join(map(str, source.prompt))
    draws = not forced and draws_of(source.sampling) is not None
    plain = bool(forced) or source.sampling.is_greedy
    made = "forced" if forced else f"temperature {source.sampling.temperature:g}, seed {source.sampling.seed}"
    return Trace(
        name=source.name,
        kind=source.kind,
        tokens=tuple(tokens),
        drafts=tuple(drafts),
        probs=tuple(probs),
        n_prompt=len(source.prompt),
        max_tokens=max(n_wanted, len(tokens)),
        prompt=tuple(source.prompt),
        seed=source.sampling.seed if draws else None,
        temperature=source.sampling.temperature if draws else 0.0,
        sampler_rng=None if plain else rng,
        facts={**facts, "text": made, "prompt_sha256": hashlib.sha256(words.encode()).hexdigest()},
    )


class OpenRecorder:
    """A model with its MTP block, open for recording.

    Parameters
    ----------
    model
        Path of the GGUF file.
    mtp
        ``"auto"`` or the path of an MTP file.
    n_ctx
        Context in tokens; None takes the default of `Engine`.
    n_threads
        None takes the default of `Engine`.
    device
        As `Engine` takes it.

    Attributes
    ----------
    session
        With MTP.
    facts
        Of model and build.

    Raises
    ------
    LuceboxError
        The library, the model or the MTP file cannot be used, or there is none.
    """

    def __init__(
        self,
        model: StrPath,
        *,
        mtp: StrPath = "auto",
        n_ctx: int | None = None,
        n_threads: int | None = None,
        device: str = "auto",
    ) -> None:
        options = EngineOptions(model=model, mtp=mtp, n_ctx=n_ctx, spec="require", n_threads=n_threads, device=device)
        self._opened = open_engine(options, None)
        self.session: NativeSession = self._opened.session
        self.facts = {**_build_facts(), **self._model_facts(), "caches": "f16, f16"}

    def _model_facts(self) -> dict[str, str]:
        info = self._opened.model.info
        facts: dict[str, str] = {}
        for what, path in (("model", info.path), ("mtp", info.mtp_path)):
            if path is not None:
                found = file_facts(Path(path))
                facts |= {what: found["name"], f"{what}_sha256": found["sha256"]}
        return facts

    @property
    def n_ctx_train(self) -> int:
        """Tokens that the model was trained for."""
        return self._opened.model.info.n_ctx_train

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the ids of a text, with control tokens read as such."""
        return self._opened.model.tokenize(text, add_special=add_special, parse_special=True)

    def close(self) -> None:
        """Free session and model."""
        self._opened.session.close()
        self._opened.model.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free session and model."""
        self.close()


def _build_facts() -> dict[str, str]:
    build = recorded_build()
    return {"version": build.version, "upstream": build.upstream_build, "series": build.series_hash}
