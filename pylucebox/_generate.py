"""One request on its way through a sequence: from native cycles to steps and a completion."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Final

from pylucebox._errors import CancelledError, InvalidArgumentError
from pylucebox._logprobs import token_logprobs
from pylucebox._request import Request
from pylucebox._result import Completion, CycleInfo, FinishReason, Step, TokenLogprob
from pylucebox._session import FINISH_CONTEXT, FINISH_EOG, Ask, CycleTimes, Progress, SeqCycle, Session
from pylucebox._stats import MAX_DRAFT, RequestStats, StatsAccumulator
from pylucebox._text import TextAssembler
from pylucebox._width import CycleContext, CycleObservation, WidthPolicy

TokenBytes = Callable[[int], bytes]

# FROM_DRAFT[a][:n] tells which of n tokens were drafted when a drafts held: the first a of them.
_FROM_DRAFT: Final = tuple((True,) * held + (False,) * (MAX_DRAFT + 1 - held) for held in range(MAX_DRAFT + 1))


class Run:
    """A request in a sequence of a session. Not thread-safe; the caller clears the sequence before and after.

    Parameters
    ----------
    request
        What to generate.
    session, seq
        Where.
    token_bytes
        Bytes that a token adds to the text.
    policy
        Chooses the widths; None runs every cycle with width 1.

    Attributes
    ----------
    finish_reason
        None while the run goes on.

    Raises
    ------
    InvalidArgumentError
        The grammar or schema cannot be read, or a biased token is outside the vocabulary.
    """

    def __init__(
        self, request: Request, session: Session, seq: int, token_bytes: TokenBytes, policy: WidthPolicy | None
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self._request = request
        self._session = session
        self._seq = seq
        self._token_bytes = token_bytes
        self._policy = policy
        self._sampler = session.open_sampler(request.sampling, request.chat_json)
        self._text = TextAssembler(request.stop)
        self._stats = StatsAccumulator()
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] | None = None if request.logprobs is None else []
        self._n_left = request.max_tokens

    def start(self, progress: Progress | None = None) -> Step:
        """Run the prompt and return the step with the first token, or one that says "cancelled"."""
        request = self._request
        began = perf_counter_ns()
        try:
            token, finish = self._session.prefill(
                self._seq, request.prompt, self._sampler, use_mtp=request.use_mtp, progress=progress
            )
        except CancelledError:
            return self.cancel()
        self._stats.add_prefill(n_tokens=len(request.prompt), wall_us=(perf_counter_ns() - began) / 1000)
        return self._take([token], 0, finish, None)

    def ask(self) -> Ask:
        """Return what the next cycle should do for this run."""
        policy = self._policy
        if policy is None:
            return Ask(self._seq, 1, self._n_left)
        widest = min(self._session.max_width, self._n_left)
        n_past = len(self._request.prompt) + len(self._tokens) - 1  # the last token is not in the context yet
        width = policy.choose(self._seq, CycleContext(self._seq, n_past, self._n_left, widest))
        if not 1 <= width <= widest:
            raise InvalidArgumentError(
                argument="width_policy", value=width, allowed=f"a policy that chooses widths from 1 to {widest} here"
            )
        return Ask(self._seq, width, self._n_left)

    def absorb(self, result: SeqCycle, times: CycleTimes, wall_us: float) -> Step:
        """Take what a cycle gave this run and return it as a step.

        Parameters
        ----------
        result
            Its tokens.
        times
            Times of the whole cycle.
        wall_us
            Time around the native call, in microseconds.
        """
        _, tokens, n_drafted, n_accepted, finish, draft_probs = result
        draft_us, verify_us, sample_us, rollback_us, n_rows, graph_built = times
        self._stats.add_cycle(
            n_tokens=len(tokens),
            n_drafted=n_drafted,
            n_accepted=n_accepted,
            wall_us=wall_us,
            draft_us=draft_us,
            verify_us=verify_us,
            sample_us=sample_us,
            rollback_us=rollback_us,
            graph_built=graph_built,
        )
        width = n_drafted + 1
        if self._policy is not None:
            observation = CycleObservation(
                self._seq,
                width,
                n_drafted,
                n_accepted,
                draft_probs,
                draft_us,
                verify_us,
                rollback_us,
                n_rows,
                graph_built,
            )
            self._policy.observe(self._seq, observation)
        info = CycleInfo(
            width=width,
            n_drafted=n_drafted,
            n_accepted=n_accepted,
            draft_probs=draft_probs,
            draft_us=draft_us,
            verify_us=verify_us,
            sample_us=sample_us,
            rollback_us=rollback_us,
            n_rows=n_rows,
            graph_built=graph_built,
        )
        return self._take(tokens, n_accepted, finish, info)

    def cancel(self) -> Step:
        """End the run where it is and return the step that says so."""
        return self._end("cancelled", Step(text="", token_ids=(), logprobs=None if self._logprobs is None else ()))

    def _take(self, tokens: list[int], n_accepted: int, finish: int, info: CycleInfo | None) -> Step:
        self._n_left -= len(tokens)
        if finish == FINISH_EOG:
            tokens = tokens[:-1]  # the end token is not part of the completion
        assembler = self._text
        text = ""
        for index, token in enumerate(tokens):
            text += assembler.push(self._token_bytes(token))
            if assembler.stopped:
                tokens = tokens[: index + 1]
                break
        logprobs = None
        if self._logprobs is not None:
            logprobs = self._row_logprobs(tokens)
            self._logprobs += logprobs
        self._tokens += tokens
        self._stats.add_delivered(len(tokens))

        reason: FinishReason | None = None
        if assembler.stopped or finish == FINISH_EOG:
            reason = "stop"
        elif self._n_left <= 0:
            reason = "length"
        elif finish == FINISH_CONTEXT:
            reason = "context"
        step = Step(
            text=text,
            token_ids=tuple(tokens),
            logprobs=logprobs,
            from_draft=_FROM_DRAFT[n_accepted][: len(tokens)],
            cycle=info,
        )
        if reason is not None:
            return self._end(reason, step)
        self._texts.append(text)
        return step

    def _row_logprobs(self, tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
        n_top = self._request.logprobs or 0
        return tuple(
            token_logprobs(self._session.logits(self._seq, row), token, n_top, self._token_bytes)
            for row, token in enumerate(tokens)
        )

    def _end(self, reason: FinishReason, last: Step) -> Step:
        self.finish_reason = reason
        text = last.text + self._text.finish()
        self._texts.append(text)
        return replace(last, text=text, finish_reason=reason)

    def stats(self) -> RequestStats:
        """Return the figures so far."""
        return self._stats.snapshot()

    def completion(self) -> Completion:
        """Return the whole of a finished run."""
        if self.finish_reason is None:
            raise RuntimeError("the run goes on")
        return Completion(
            text="".join(self._texts),
            token_ids=tuple(self._tokens),
            finish_reason=self.finish_reason,
            stop_sequence=self._text.stop_sequence,
            prompt_tokens=len(self._request.prompt),
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            stats=self.stats(),
            spec=self._request.spec,
            seed=self._request.seed,
        )


def run_steps(run: Run, session: Session) -> Generator[Step, None, None]:
    """Drive one run alone to its end and yield its steps: the first token, then one step per cycle.

    An abort of the session ends it with the reason "cancelled".
    """
    yield run.start()
    while run.finish_reason is None:
        ask = run.ask()
        began = perf_counter_ns()
        try:
            (result,), times = session.cycle((ask,))
        except CancelledError:
            yield run.cancel()
            return
        yield run.absorb(result, times, (perf_counter_ns() - began) / 1000)
