"""A width policy at work for one sequence: what it chooses, checked, in the numbers that a session takes."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from pylucebox._errors import InvalidArgumentError
from pylucebox._session import CycleTimes, SeqCycle
from pylucebox._stats import MAX_DRAFT
from pylucebox.width import (
    CycleContext,
    CycleObservation,
    DraftPolicy,
    TextListener,
    WidthPolicy,
    WidthTelemetry,
    check_choice,
)
from pylucebox.width.hints import TextHints

__all__ = ["PolicyDriver"]


class PolicyDriver:
    """Asks a policy before each cycle of a sequence, and tells it afterwards.

    Parameters
    ----------
    policy
        Chooses the widths. A `DraftPolicy` is asked for plans, any other for a width alone.
    seq
        The sequence.
    n_ctx, max_width
        Of the session.

    Attributes
    ----------
    width
        Rows to verify in the next cycle.
    n_first
        Further drafts to make before that cycle; 0 when the cycle can make all it needs itself.
    logprobs
        Whether the policy wants to know how probable the trunk holds the tokens.
    """

    def __init__(self, policy: WidthPolicy, seq: int, n_ctx: int, max_width: int) -> None:
        self.width = 1
        self.n_first = 0
        self._policy = policy
        self._drafts: DraftPolicy | None = policy if isinstance(policy, DraftPolicy) else None
        self._seq = seq
        self._n_ctx = n_ctx
        self._max_width = max_width
        self._widest = 1
        self._room = 0
        self._n_active = 1
        self._asks = False
        self._hints: TextHints | None = None
        listener = self._listener = policy if isinstance(policy, TextListener) else None
        self.logprobs = listener is not None and listener.wants_logprobs(drafts=True)
        self._n_rest = 0  # cycles to come without asking
        self._rested: list[tuple[SeqCycle, CycleTimes]] = []

    def reason_against(self, prompt_tokens: int, max_tokens: int) -> str | None:
        """Return why a request of this size should do without MTP, or None."""
        return None if self._drafts is None else self._drafts.worth_drafting(prompt_tokens, max_tokens)

    def telemetry(self) -> WidthTelemetry | None:
        """Return what the policy tells of the request so far, or None if it tells nothing."""
        self._end_rest()
        return None if self._drafts is None else self._drafts.telemetry()

    def overhears(self) -> bool:
        """Tell whether the policy wants to know of a text that is written without MTP, which it advised."""
        return self._listener is not None and self._listener.wants_logprobs(drafts=False)

    def overhear(self, logprobs: Sequence[float], n_tokens: int) -> None:
        """Tell the policy of a text of so many tokens that was written without MTP."""
        if self._listener is not None:
            self._listener.overhear(logprobs, n_tokens)

    def tell(self, hints: TextHints) -> None:
        """Take what is known of the text, for all cycles from now on."""
        self._hints = hints
        self._n_rest = self._rests()

    def choose(self, n_past: int, n_left: int, n_active: int) -> None:
        """Let the policy choose `width` and `n_first`.

        Parameters
        ----------
        n_past
            Tokens of the sequence in the context.
        n_left
            Tokens it may still produce.
        n_active
            Sequences that take part in the cycle.

        Raises
        ------
        InvalidArgumentError
            What it chose is impossible.
        """
        if self._n_rest:
            if n_active == 1:
                return
            self._end_rest()
        self._room = self._n_ctx - n_past
        self._n_active = n_active
        widest = self._widest = min(self._max_width, n_left, self._room)
        context = CycleContext(self._seq, n_past, n_left, widest, n_active, self._hints, self.logprobs)
        if self._drafts is None:
            width = self._policy.choose(self._seq, context)
            # the ordinary case costs no call, here and below
            self.width = width if type(width) is int and 1 <= width <= widest else check_choice(width, widest)
            return
        width, n_draft, self._asks = self._drafts.plan(self._seq, context)
        self.width = width if type(width) is int and 1 <= width <= widest else check_choice(width, widest)
        if type(n_draft) is not int or not self.width - 1 <= n_draft <= MAX_DRAFT:
            n_draft = _check_drafts(n_draft, self.width - 1)
        n_draft = min(n_draft, self._room)  # no token can come behind that
        self.n_first = n_draft if self._asks or n_draft >= self.width else 0

    def consider(self, probs: Sequence[float], tokens: Sequence[int] = ()) -> None:
        """Show the policy the drafts made so far, if it asked for that, and let it choose again.

        Raises
        ------
        InvalidArgumentError
            What it chose is impossible.
        """
        self.n_first = 0
        if self._drafts is None or not self._asks:
            return
        width, n_more = self._drafts.decide(self._seq, probs, tokens)
        self.width = width if type(width) is int and 1 <= width <= self._widest else check_choice(width, self._widest)
        if type(n_more) is not int or not 0 <= n_more <= MAX_DRAFT:
            n_more = _check_drafts(n_more, 0)
        # without room for one more it would be shown the same drafts for ever
        self.n_first = min(n_more, min(MAX_DRAFT, self._room) - len(probs))

    def observe(self, result: SeqCycle, times: CycleTimes) -> None:
        """Tell the policy what came of its choice."""
        if self._n_rest:
            self._rested.append((result, times))
            self._n_rest -= 1
            if not self._n_rest:
                self._end_rest()
                self._n_rest = self._rests()
            return
        self._observe(result, times)
        if self.width == 1 and self._n_active == 1:
            self._n_rest = self._rests()

    def _rests(self) -> int:
        return self._listener.rests(self._seq) if self._listener is not None and self.logprobs else 0

    def _end_rest(self) -> None:
        """Tell the policy of the cycles that it was not asked about, as one."""
        self._n_rest = 0
        if not self._rested:
            return
        last, times = self._rested[-1]
        tokens = tuple(token for result, _ in self._rested for token in result.tokens)
        logprobs = tuple(logprob for result, _ in self._rested for logprob in result.logprobs)
        self._rested.clear()
        self._observe(last._replace(tokens=tokens, logprobs=logprobs), times)

    def _observe(self, result: SeqCycle, times: CycleTimes) -> None:
        seq, tokens, n_drafted, n_accepted, _, draft_probs, n_verified, draft_tokens, logprobs = result
        draft_us, verify_us, _, rollback_us, n_rows, _, _, graph_built, draft_graph_built, _, _ = times
        observation = CycleObservation(
            seq,
            n_verified + 1,
            n_drafted,
            n_accepted,
            draft_probs,
            draft_us,
            verify_us,
            rollback_us,
            n_rows,
            graph_built,
            draft_tokens,
            tokens,
            self._n_active,
            draft_graph_built,
            False,
            logprobs,
        )
        self._policy.observe(seq, observation)


def _check_drafts(n_drafts: Any, fewest: int) -> int:
    number = -1 if isinstance(n_drafts, bool) or not isinstance(n_drafts, Integral) else int(n_drafts)
    if not fewest <= number <= MAX_DRAFT:
        allowed = f"a policy that asks for {fewest} to {MAX_DRAFT} drafts here"
        raise InvalidArgumentError(argument="width_policy", value=n_drafts, allowed=allowed)
    return number
