"""One request on its way through a sequence: from native cycles to steps and a completion.

A cycle takes about a millisecond on the smallest models, and Python runs with cold caches after each. So what is not
needed per cycle is left for later: statistics are added up at the end, and text is put together at the end unless
somebody reads it as it comes or a stop string may end it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Final

from pylucebox._errors import CancelledError, SamplingError
from pylucebox._logprobs import token_logprobs
from pylucebox._policy_driver import PolicyDriver
from pylucebox._request import Request
from pylucebox._result import Completion, CycleInfo, FinishReason, Step, TokenLogprob
from pylucebox._session import (
    FINISH_CONTEXT,
    FINISH_EOG,
    FINISH_FAILED,
    Ask,
    CycleTimes,
    MoreDrafts,
    Progress,
    Proposal,
    SeqCycle,
    Session,
)
from pylucebox._spec import SpecReason, spec_inactive
from pylucebox._stats import MAX_DRAFT, RequestStats, StatsAccumulator
from pylucebox._text import TextAssembler
from pylucebox.width import WidthPolicy, WidthTelemetry
from pylucebox.width.echo import SEARCHED_TOKENS
from pylucebox.width.hints import TextHints

TokenBytes = Callable[[int], bytes]
Cycle = tuple[SeqCycle, CycleTimes, int]
"""What a cycle gave a sequence, its times, and the nanoseconds around the native calls."""

# FROM_DRAFT[a][:n] tells which of n tokens were drafted when a drafts held: the first a of them.
_FROM_DRAFT: Final = tuple((True,) * held + (False,) * (MAX_DRAFT + 1 - held) for held in range(MAX_DRAFT + 1))

_LISTENS: Final = 4  # cycles of a request without MTP, for each of which one tells how probable its token was


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
        Chooses the widths of a request whose `verify_width` is 0; None for all others.

    Attributes
    ----------
    seq
        Its sequence.
    finish_reason
        None while the run goes on.

    Raises
    ------
    InvalidArgumentError
        The grammar or schema cannot be read, or a biased token is outside the vocabulary.
    """

    def __init__(
        self,
        request: Request,
        session: Session,
        seq: int,
        token_bytes: TokenBytes,
        policy: WidthPolicy | None = None,
    ) -> None:
        self.seq = seq
        self.finish_reason: FinishReason | None = None
        self._request = request
        self._session = session
        self._token_bytes = token_bytes
        self._driver = None if policy is None else PolicyDriver(policy, seq, session.n_ctx, session.max_width)
        self._overhears: PolicyDriver | None = None  # told of a text that does without MTP, once it is over
        self._width = request.verify_width if request.use_mtp else 1
        self._sampler = session.open_sampler(request.sampling, request.chat_json)
        self._sampler_rng = None if request.sampling.is_greedy else self._sampler.rng
        self._assembler = TextAssembler(request.stop)
        self._reads_text = bool(request.stop)
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] | None = None if request.logprobs is None else []
        self._n_left = request.max_tokens
        self._prefill_ns = 0
        self._cycles: list[Cycle] = []
        self._final_stats: RequestStats | None = None
        self._error: SamplingError | None = None
        self._telemetry: WidthTelemetry | None = None

    def start(self, progress: Progress | None = None) -> None:
        """Run the prompt and take the first token; a cancelled prompt ends the run.

        Raises
        ------
        SamplingError
            The sampler can choose no token.
        """
        if self._driver is not None:
            self._leave_out_mtp_unless_worth_it(self._driver)
        request = self._request
        began = perf_counter_ns()
        try:
            token, finish = self._session.prefill(
                self.seq, request.prompt, self._sampler, use_mtp=request.use_mtp, progress=progress
            )
        except CancelledError:
            self.cancel()
            return
        self._prefill_ns = perf_counter_ns() - began
        if self._driver is not None:
            known = (*request.prompt[-SEARCHED_TOKENS:], token)
            self._driver.tell(TextHints(known, len(request.prompt), request.draws()))
        self._take((token,), finish)

    def _leave_out_mtp_unless_worth_it(self, driver: PolicyDriver) -> None:
        reason = driver.reason_against(len(self._request.prompt), self._request.max_tokens)
        if reason is not None:
            self._request = replace(self._request, spec=spec_inactive(SpecReason.NOT_WORTH_IT, reason))
            self._overhears = driver if driver.overhears() else None
            self._driver, self._width = None, 1

    def n_first(self, n_active: int) -> int:
        """Choose what the next cycle does for this run, and return how many drafts to make before it.

        Parameters
        ----------
        n_active
            Runs that take part in the cycle.
        """
        driver = self._driver
        if driver is None:
            return 0
        n_past = len(self._request.prompt) + len(self._tokens) - 1  # the last token is not in the context yet
        driver.choose(n_past, self._n_left, n_active)
        return driver.n_first

    def consider(self, probs: Sequence[float], tokens: Sequence[int] = ()) -> int:
        """Look at the drafts made so far, and return how many more to make before the cycle."""
        driver = self._driver
        if driver is None:
            return 0
        driver.consider(probs, tokens)
        return driver.n_first

    def ask(self) -> Ask:
        """Return what the cycle should do for this run."""
        driver = self._driver
        if driver is None:
            listens = self._overhears is not None and len(self._cycles) % _LISTENS == 0
            return Ask(self.seq, self._width, self._n_left, listens)
        return Ask(self.seq, driver.width, self._n_left, driver.logprobs)

    def absorb(self, result: SeqCycle, times: CycleTimes, wall_ns: int) -> None:
        """Take what a cycle gave this run.

        Parameters
        ----------
        result
            Its tokens.
        times
            Times of the whole cycle.
        wall_ns
            Time around the native calls, in nanoseconds.

        Raises
        ------
        SamplingError
            The sampler could choose no further token. What came before it was taken.
        """
        if result[1]:  # none if the sampler failed at once, and then there is nothing to count
            self._cycles.append((result, times, wall_ns))
        if self._driver is not None:
            self._driver.observe(result, times)
        self._take(result[1], result[4])

    def cancel(self) -> None:
        """End the run where it is."""
        self._end("cancelled")

    def fail(self, error: SamplingError) -> None:
        """End the run where it is with an error that its completion carries."""
        self._error = error
        self._end("error")

    def steps(self) -> Generator[Step, None, None]:
        """Drive this run alone to its end: a step with the first token, then one for each cycle.

        An abort of the session ends it with the reason "cancelled".
        """
        self._reads_text = True
        self.start()
        yield self._step(0, 0, None)
        while self.finish_reason is None:
            n_tokens, n_texts, n_cycles = len(self._tokens), len(self._texts), len(self._cycles)
            self._advance()
            yield self._step(n_tokens, n_texts, self._cycles[-1] if len(self._cycles) > n_cycles else None)

    def drive(self) -> None:
        """Do what `steps` does, without the steps."""
        self.start()
        while self.finish_reason is None:
            self._advance()

    def _advance(self) -> None:
        try:
            results, times, wall_ns = run_cycle(self._session, (self,))
        except CancelledError:
            self.cancel()
            return
        self.absorb(results[0], times, wall_ns)

    def _take(self, tokens: tuple[int, ...], finish: int) -> None:
        self._n_left -= len(tokens)
        if finish == FINISH_EOG:
            tokens = tokens[:-1]  # the end token is not part of the completion
        if self._reads_text:
            tokens = self._read(tokens)
        self._tokens += tokens
        if self._logprobs is not None:
            self._logprobs += self._logprobs_of(tokens)
        if self._assembler.stopped or finish == FINISH_EOG:
            self._end("stop")
        elif self._n_left <= 0:
            self._end("length")
        elif finish == FINISH_CONTEXT:
            self._end("context")
        elif finish == FINISH_FAILED:
            raise SamplingError("cannot choose the next token", seen=self._session.failure(self.seq))

    def _read(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Add the text of `tokens`, and return them up to the one that completes a stop string."""
        push, token_bytes = self._assembler.push, self._token_bytes
        if not self._request.stop:
            self._texts.append(push(b"".join(map(token_bytes, tokens))))
            return tokens
        text = ""
        for index, token in enumerate(tokens):
            text += push(token_bytes(token))
            if self._assembler.stopped:
                tokens = tokens[: index + 1]
                break
        self._texts.append(text)
        return tokens

    def _logprobs_of(self, tokens: Sequence[int]) -> list[TokenLogprob]:
        n_top = self._request.logprobs or 0
        return [
            token_logprobs(self._session.logits(self.seq, row), token, n_top, self._token_bytes)
            for row, token in enumerate(tokens)
        ]

    def _end(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        if self._driver is not None:
            self._telemetry = self._driver.telemetry()  # now, since the next request starts it anew
        if self._overhears is not None:
            logprobs = [logprob for result, _, _ in self._cycles for logprob in result.logprobs]
            self._overhears.overhear(logprobs, len(self._cycles))
        if not self._reads_text:
            self._texts.append(self._assembler.push(b"".join(map(self._token_bytes, self._tokens))))
        self._texts.append(self._assembler.finish())

    def _step(self, n_before: int, n_texts: int, cycle: Cycle | None) -> Step:
        """Return as a step what was added since there were so many tokens and pieces of text."""
        tokens = tuple(self._tokens[n_before:])
        info = None
        n_accepted = 0
        if cycle is not None:
            result, times, _ = cycle
            n_accepted = result.n_accepted
            info = CycleInfo(
                width=result.n_verified + 1,
                n_drafted=result.n_drafted,
                n_verified=result.n_verified,
                n_accepted=n_accepted,
                draft_probs=result.draft_probs,
                draft_us=times.draft_us,
                verify_us=times.verify_us,
                sample_us=times.sample_us,
                rollback_us=times.rollback_us,
                n_rows=times.n_rows,
                graph_built=times.graph_built,
            )
        return Step(
            text="".join(self._texts[n_texts:]),
            token_ids=tokens,
            logprobs=None if self._logprobs is None else tuple(self._logprobs[n_before:]),
            from_draft=_FROM_DRAFT[n_accepted][: len(tokens)],
            finish_reason=self.finish_reason,
            cycle=info,
        )

    def stats(self) -> RequestStats:
        """Return the figures so far."""
        if self._final_stats is not None:
            return self._final_stats
        total = StatsAccumulator()
        if self._prefill_ns:
            total.add_prefill(n_tokens=len(self._request.prompt), wall_us=self._prefill_ns / 1000)
        for result, times, wall_ns in self._cycles:
            total.add_cycle(
                n_tokens=len(result.tokens),
                n_drafted=result.n_drafted,
                n_verified=result.n_verified,
                n_accepted=result.n_accepted,
                wall_us=wall_ns / 1000,
                draft_us=times.draft_us,
                verify_us=times.verify_us,
                sample_us=times.sample_us,
                rollback_us=times.rollback_us,
                graph_built=times.graph_built,
            )
        total.add_delivered(len(self._tokens))
        found = total.snapshot()
        if self.finish_reason is not None:
            self._final_stats = found
        return found

    def completion(self) -> Completion:
        """Return the whole of a finished run."""
        if self.finish_reason is None:
            raise RuntimeError("the run goes on")
        return Completion(
            text="".join(self._texts),
            token_ids=tuple(self._tokens),
            finish_reason=self.finish_reason,
            error=self._error,
            stop_sequence=self._assembler.stop_sequence,
            prompt_tokens=len(self._request.prompt),
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            stats=self.stats(),
            spec=self._request.spec,
            seed=self._request.seed,
            sampler_rng=self._sampler_rng,
            telemetry=self._telemetry,
        )


def run_cycle(session: Session, runs: Sequence[Run]) -> tuple[list[SeqCycle], CycleTimes, int]:
    """Run one cycle for all `runs` of a session.

    Returns
    -------
    tuple
        What each run got, in the order of `runs`; the times; and the nanoseconds from the first native call to the
        last, in which policies may have looked at drafts.

    Raises
    ------
    CancelledError
        The session was aborted.
    """
    n_active = len(runs)
    first = [run.n_first(n_active) for run in runs]
    began = perf_counter_ns()
    while any(first):
        asks = [MoreDrafts(run.seq, n_more) for run, n_more in zip(runs, first, strict=True) if n_more]
        proposals = {proposal.seq: proposal for proposal in session.propose(asks)[0]}
        first = [_consider(run, proposals[run.seq]) if run.seq in proposals else 0 for run in runs]
    results, times = session.cycle([run.ask() for run in runs])
    return results, times, perf_counter_ns() - began


def _consider(run: Run, proposal: Proposal) -> int:
    _, tokens, probs = proposal
    return run.consider(probs, tokens)
