"""Replay of traces: what a width policy would have done on a machine, cycle by cycle, run as an engine runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, runtime_checkable

from pylucebox._errors import InvalidArgumentError
from pylucebox.sim.machine import Machine
from pylucebox.sim.trace import DEPTH, Trace
from pylucebox.width import (
    MAX_WIDTH,
    CycleContext,
    CycleObservation,
    CyclePlan,
    DraftPolicy,
    WidthPolicy,
    check_choice,
)
from pylucebox.width.hints import TextHints

__all__ = ["Replay", "ReplayCycle", "replay", "replay_batch"]

MAX_ROWS: Final = MAX_WIDTH
"""Rows of a verify step over all sequences, as the native library limits them."""


@runtime_checkable
class Planner(WidthPolicy, Protocol):
    """The part of `DraftPolicy` that decides cycles; rules that are only simulated have no more."""

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:
        """Return what the next cycle should do."""

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:
        """Return rows to verify, and further drafts to make before asking again."""


class ReplayCycle(NamedTuple):
    """A cycle of one sequence: where in the text it began, and what came of it."""

    position: int
    n_drafted: int
    n_verified: int
    n_accepted: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What became of a request.

    Attributes
    ----------
    n_tokens
        Tokens decoded; that of the prefill is not among them.
    decode_us
        Time of the cycles that the request took part in, by the cost curve, without noise.
    prefill_us
        What MTP cost its prompt; 0 if the request did without.
    cycles
        Its cycles.
    refused
        Why the request did without MTP, if the policy said so.
    """

    n_tokens: int
    decode_us: float
    prefill_us: float
    cycles: tuple[ReplayCycle, ...]
    refused: str | None = None

    @property
    def total_us(self) -> float:
        """Decoding and what MTP cost before it."""
        return self.decode_us + self.prefill_us

    @property
    def tokens_per_s(self) -> float:
        """Speed of decoding."""
        return 1e6 * self.n_tokens / self.decode_us if self.decode_us else 0.0

    @property
    def tokens_per_cycle(self) -> float:
        """Mean number of tokens of a cycle."""
        return self.n_tokens / len(self.cycles) if self.cycles else 0.0

    @property
    def n_verified(self) -> int:
        """Drafts verified."""
        return sum(cycle.n_verified for cycle in self.cycles)

    @property
    def n_accepted(self) -> int:
        """Drafts that held."""
        return sum(cycle.n_accepted for cycle in self.cycles)

    def widths(self) -> dict[int, int]:
        """Return how many cycles verified each number of drafts."""
        return dict(sorted(Counter(cycle.n_verified for cycle in self.cycles).items()))


@dataclass(slots=True)
class _Sequence:
    """A trace that is being replayed."""

    seq: int
    trace: Trace
    position: int = 0
    us: float = 0.0
    cycles: list[ReplayCycle] = field(default_factory=list)
    hints: TextHints = field(init=False)

    def __post_init__(self) -> None:
        self.hints = self.trace.hints()

    @property
    def is_done(self) -> bool:
        return self.position >= len(self.trace.tokens) - 1

    def context(self, n_active: int) -> CycleContext:
        left = self.trace.max_tokens - 1 - self.position
        n_past = self.trace.n_prompt + self.position
        return CycleContext(self.seq, n_past, left, min(MAX_WIDTH, left), n_active, self.hints)


@dataclass(slots=True)
class _Part:
    """What a sequence does in the present cycle; `is_drafted` tells that its drafts are made before rows are cut."""

    sequence: _Sequence
    width: int
    n_drafted: int
    is_drafted: bool


def replay(trace: Trace, policy: WidthPolicy, machine: Machine, *, charge_prefill: bool = False) -> Replay:
    """Replay one request.

    Parameters
    ----------
    trace
        The text.
    policy
        Chooses widths. One that plans, as a `DraftPolicy` does, is asked for plans, as an engine would.
    machine
        Runs the cycles. Its noise goes on from request to request.
    charge_prefill
        Ask the policy whether MTP is worth its prefill, and count what that costs.

    Raises
    ------
    InvalidArgumentError
        The policy chose a width that is not possible.
    """
    refused = None
    tax_us = machine.costs.mtp_prefill_us_per_token * trace.n_prompt if charge_prefill else 0.0
    if charge_prefill and isinstance(policy, DraftPolicy):
        refused = policy.worth_drafting(trace.n_prompt, trace.max_tokens)
    if refused is not None:
        return _plain(trace, machine, refused)
    (found,) = replay_batch([trace], policy, machine)
    return Replay(n_tokens=found.n_tokens, decode_us=found.decode_us, prefill_us=tax_us, cycles=found.cycles)


def _plain(trace: Trace, machine: Machine, refused: str) -> Replay:
    n_tokens = len(trace.tokens) - 1
    times = [machine.cycle([1], 0, rejected=False).true_us for _ in range(n_tokens)]
    cycles = tuple(ReplayCycle(at, 0, 0, 0, 1) for at in range(n_tokens))
    return Replay(n_tokens=n_tokens, decode_us=sum(times), prefill_us=0.0, cycles=cycles, refused=refused)


def replay_batch(traces: Sequence[Trace], policy: WidthPolicy, machine: Machine) -> list[Replay]:
    """Replay requests that begin together, each in a sequence of its own.

    In every cycle all sequences that are not done take part. They draft in one chain as long as the longest, and
    verify at most 8 rows together; the widest are cut to that first. Unequal widths take several passes, see
    `pylucebox.sim.machine.passes`. Each sequence is billed the whole cycle.

    Parameters
    ----------
    traces
        The texts, 1 to 8.
    policy, machine
        As in `replay`.

    Raises
    ------
    InvalidArgumentError
        The policy chose a width that is not possible.
    """
    sequences = [_Sequence(seq, trace) for seq, trace in enumerate(traces)]
    planner = policy if isinstance(policy, Planner) else None  # asked once: such a check takes longer than a cycle
    policy.begin(len(traces), MAX_WIDTH)
    active = [sequence for sequence in sequences if not sequence.is_done]
    while active:
        contexts = [sequence.context(len(active)) for sequence in active]
        if planner is not None:
            parts = [_planned(planner, sequence, context) for sequence, context in zip(active, contexts, strict=True)]
        else:
            parts = [_chosen(policy, sequence, context) for sequence, context in zip(active, contexts, strict=True)]
        _limit_rows(parts)
        _run(parts, policy, machine)
        active = [sequence for sequence in active if not sequence.is_done]
    return [
        Replay(
            n_tokens=len(sequence.trace.tokens) - 1,
            decode_us=sequence.us,
            prefill_us=0.0,
            cycles=tuple(sequence.cycles),
        )
        for sequence in sequences
    ]


def _chosen(policy: WidthPolicy, sequence: _Sequence, context: CycleContext) -> _Part:
    width = check_choice(policy.choose(context.seq, context), context.max_width)
    return _Part(sequence, width, width - 1, is_drafted=False)


def _planned(policy: Planner, sequence: _Sequence, context: CycleContext) -> _Part:
    width, n_drafted, ask = policy.plan(context.seq, context)
    if not ask:
        _check_plan(width, n_drafted, 0, context)
        return _Part(sequence, width, n_drafted, is_drafted=n_drafted > width - 1)
    _check_plan(1, n_drafted, 0, context)
    probs, drafts, n_more = sequence.trace.probs[sequence.position], sequence.trace.drafts[sequence.position], 1
    while n_more:
        width, n_more = policy.decide(context.seq, probs[:n_drafted], drafts[:n_drafted])
        _check_plan(width, n_drafted + n_more, n_more, context)
        n_drafted += n_more
    _check_plan(width, n_drafted, 0, context)
    return _Part(sequence, width, n_drafted, is_drafted=True)


def _check_plan(width: int, n_drafted: int, n_more: int, context: CycleContext) -> None:
    fits = type(width) is int and 1 <= width <= context.max_width and width - 1 <= n_drafted <= DEPTH and n_more >= 0
    if not fits:
        raise InvalidArgumentError(
            argument="width_policy",
            value=f"{width} rows with {n_drafted} drafts, {n_more} of them asked for now",
            allowed=f"a policy that plans 1 to {context.max_width} rows here, and no fewer drafts than it verifies",
        )


def _limit_rows(parts: Sequence[_Part]) -> None:
    """Cut the widest until all rows fit into one step."""
    n_over = sum(part.width for part in parts) - MAX_ROWS
    for _ in range(n_over):
        widest = max(parts, key=lambda part: part.width)
        widest.width -= 1
        if not widest.is_drafted:
            widest.n_drafted = widest.width - 1


def _run(parts: Sequence[_Part], policy: WidthPolicy, machine: Machine) -> None:
    """Run one cycle and let the policy learn from it."""
    n_rows = sum(part.width for part in parts)
    accepted = [min(part.width - 1, part.sequence.trace.match[part.sequence.position]) for part in parts]
    rejected = any(held < part.width - 1 for held, part in zip(accepted, parts, strict=True))
    time = machine.cycle([part.width for part in parts], max(part.n_drafted for part in parts), rejected=rejected)
    for part, held in zip(parts, accepted, strict=True):
        sequence, at = part.sequence, part.sequence.position
        trace = sequence.trace
        # A text that ends among the accepted drafts has no token after them.
        tokens = trace.tokens[at + 1 : at + 2 + held]
        sequence.position += len(tokens)
        sequence.us += time.true_us
        sequence.cycles.append(ReplayCycle(at, part.n_drafted, part.width - 1, held, len(tokens)))
        policy.observe(
            sequence.seq,
            CycleObservation(
                seq=sequence.seq,
                width=part.width,
                n_drafted=part.n_drafted,
                n_accepted=held,
                draft_probs=trace.probs[at][: part.n_drafted],
                draft_us=time.draft_us,
                verify_us=time.verify_us,
                rollback_us=time.rollback_us,
                n_rows=n_rows,
                graph_built=time.graph_built,
                draft_tokens=trace.drafts[at][: part.n_drafted],
                tokens=tokens,
                n_active=len(parts),
                draft_graph_built=time.draft_graph_built,
            ),
        )
