"""Replays against what was computed by hand, and against rules that break the rules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from _traces import COSTS, trace_of

from pylucebox import InvalidArgumentError
from pylucebox.sim.machine import QUIET, REALISTIC, Machine, passes, swept
from pylucebox.sim.replay import Replay, ReplayCycle, replay, replay_batch
from pylucebox.sim.trace import DEPTH
from pylucebox.width import CycleContext, CycleObservation, CyclePlan, FixedWidth


class Watcher:
    """Plans what it is told to, cycle by cycle, and keeps what it is shown.

    A step is a plan, and the answers to what `decide` is asked.
    """

    def __init__(self, *steps: tuple[CyclePlan, list[tuple[int, int]]], refuses: str | None = None) -> None:
        self.steps = itertools.cycle(steps)
        self.refuses = refuses
        self.answers: list[tuple[int, int]] = []
        self.begun: list[tuple[int, int]] = []
        self.contexts: list[CycleContext] = []
        self.shown: list[tuple[float, ...]] = []
        self.observations: list[CycleObservation] = []

    def begin(self, n_seq: int, max_width: int) -> None:
        self.begun.append((n_seq, max_width))

    def choose(self, *_: object) -> int:
        raise AssertionError("one that plans is asked for plans")

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:
        assert seq == context.seq
        self.contexts.append(context)
        plan, answers = next(self.steps)
        self.answers = list(answers)
        return plan

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:  # noqa: ARG002
        assert seq == self.contexts[-1].seq
        self.shown.append(tuple(probs))
        return self.answers.pop(0)

    def observe(self, seq: int, observation: CycleObservation) -> None:
        assert seq == observation.seq
        self.observations.append(observation)

    def worth_drafting(self, prompt_tokens: int, max_tokens: int) -> str | None:
        self.asked = (prompt_tokens, max_tokens)
        return self.refuses

    def telemetry(self) -> None:
        return None


def plans(*steps: CyclePlan) -> Watcher:
    return Watcher(*((step, []) for step in steps))


def test_fixed_width_by_hand() -> None:
    # Two drafts a cycle: from 0 both hold, from 3 none, from 4 one. Then two tokens are left, so one draft.
    trace = trace_of((2, 0, 7, 0, 1, 0, 1, 0))
    done = replay(trace, FixedWidth(3), Machine(COSTS))
    assert done.cycles == (
        ReplayCycle(0, 2, 2, 2, 3),
        ReplayCycle(3, 2, 2, 0, 1),
        ReplayCycle(4, 2, 2, 1, 2),
        ReplayCycle(6, 1, 1, 1, 2),
    )
    two, one = 120 + 20, 110 + 10
    assert done.decode_us == two + (two + 5) + (two + 5) + one
    assert (done.n_tokens, done.n_verified, done.n_accepted) == (8, 7, 4)
    assert done.tokens_per_cycle == 2.0
    assert done.tokens_per_s == 1e6 * 8 / done.decode_us
    assert done.widths() == {1: 1, 2: 3}


def test_without_drafts_each_token_costs_a_plain_step() -> None:
    done = replay(trace_of((3, 2, 1, 0, 0)), FixedWidth(1), Machine(COSTS))
    assert (done.decode_us, done.n_tokens, len(done.cycles)) == (500.0, 5, 5)


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("lengths", [(0,) * 20, (7,) * 20, (3, 1, 0, 5, 2) * 6, (0,)])
def test_tokens_are_conserved_and_positions_join(width: int, lengths: tuple[int, ...]) -> None:
    trace = trace_of(lengths)
    done = replay(trace, FixedWidth(width), Machine(COSTS, REALISTIC, 1))
    assert sum(cycle.n_tokens for cycle in done.cycles) == len(trace.tokens) - 1 == done.n_tokens
    ends = [cycle.position + cycle.n_tokens for cycle in done.cycles]
    assert [cycle.position for cycle in done.cycles[1:]] == ends[:-1]
    for cycle in done.cycles:
        assert cycle.n_tokens == cycle.n_accepted + 1
        assert cycle.n_accepted == min(cycle.n_verified, trace.match[cycle.position])


def test_a_text_of_one_token_takes_no_cycle() -> None:
    assert replay(trace_of(()), FixedWidth(8), Machine(COSTS)).cycles == ()


def test_a_text_that_ends_among_the_accepted_drafts_has_no_token_after_them() -> None:
    # The last of three drafts is the end token; without a limit in sight seven are verified.
    trace = trace_of((3, 2, 1), limit=100)
    done = replay(trace, FixedWidth(8), Machine(COSTS))
    assert done.cycles == (ReplayCycle(0, 7, 7, 3, 3),)


def test_shadow_drafts_cost_their_chain_and_hold_nothing() -> None:
    trace = trace_of((5, 4, 3, 2, 1, 0))
    watcher = plans(CyclePlan(2, 6), CyclePlan(1, 0))
    done = replay(trace, watcher, Machine(COSTS))
    assert done.cycles == (
        ReplayCycle(0, 6, 1, 1, 2),
        ReplayCycle(2, 0, 0, 0, 1),
        ReplayCycle(3, 6, 1, 1, 2),
        ReplayCycle(5, 0, 0, 0, 1),
    )
    assert done.decode_us == 2 * (110 + 60 + 100)


def test_what_a_policy_is_told() -> None:
    probs = [[(at + 1) / 10 + depth / 100 for depth in range(DEPTH)] for at in range(4)]
    trace = trace_of((2, 0, 0, 0), probs=probs)
    watcher = plans(CyclePlan(2, 3), CyclePlan(2, 3), CyclePlan(1, 0))
    replay(trace, watcher, Machine(COSTS))
    assert watcher.begun == [(1, 8)]
    assert all(context.hints is watcher.contexts[0].hints for context in watcher.contexts)
    assert [context._replace(hints=None) for context in watcher.contexts] == [
        CycleContext(seq=0, n_past=3, max_tokens_left=4, max_width=4, n_active=1),
        CycleContext(seq=0, n_past=5, max_tokens_left=2, max_width=2, n_active=1),
        CycleContext(seq=0, n_past=6, max_tokens_left=1, max_width=1, n_active=1),
    ]
    first, second, _ = watcher.observations
    assert first == CycleObservation(
        seq=0,
        width=2,
        n_drafted=3,
        n_accepted=1,
        draft_probs=tuple(probs[0][:3]),
        draft_us=30,
        verify_us=110,
        rollback_us=0,
        n_rows=2,
        graph_built=False,
        draft_tokens=trace.drafts[0][:3],
        tokens=trace.tokens[1:3],
        n_active=1,
    )
    assert (second.n_accepted, second.rollback_us, second.tokens) == (0, 5, trace.tokens[3:4])


def test_a_policy_that_asks_sees_the_drafts_as_they_come() -> None:
    trace = trace_of((4, 3, 2, 1, 0), probs=[[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]] * 5)
    ask = CyclePlan(1, 1, ask=True)
    watcher = Watcher((ask, [(2, 2), (2, 1), (4, 0)]), (ask, [(1, 0)]))
    done = replay(trace, watcher, Machine(COSTS))
    assert watcher.shown == [(0.9,), (0.9, 0.8, 0.7), (0.9, 0.8, 0.7, 0.6), (0.9,)]
    assert done.cycles == (ReplayCycle(0, 4, 3, 3, 4), ReplayCycle(4, 1, 0, 0, 1))
    assert done.decode_us == (130 + 40) + (100 + 10)


@pytest.mark.parametrize(
    "step",
    [
        (CyclePlan(0, 0), []),
        (CyclePlan(9, 8), []),
        (CyclePlan(3, 1), []),
        (CyclePlan(1, 8), []),
        (CyclePlan(1, -1), []),
        (CyclePlan(1, 1, ask=True), [(3, 0)]),
        (CyclePlan(1, 1, ask=True), [(2, -1)]),
        (CyclePlan(1, 1, ask=True), [(2, 7)]),
        (CyclePlan(1, 1, ask=True), [(0, 0)]),
        (CyclePlan(True, 1), []),
    ],
)
def test_a_plan_that_is_not_possible_is_refused(step: tuple[CyclePlan, list[tuple[int, int]]]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        replay(trace_of((7,) * 20), Watcher(step), Machine(COSTS))
    assert caught.value.argument == "width_policy"


def test_a_width_beyond_the_limit_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        replay(trace_of((7,) * 3), plans(CyclePlan(5, 4)), Machine(COSTS))


def test_several_sequences_share_the_time_and_eight_rows() -> None:
    class Wide(FixedWidth):
        def observe(self, seq: int, observation: CycleObservation) -> None:
            seen.append((seq, observation.width, observation.n_rows, observation.n_active))

    seen: list[tuple[int, int, int, int]] = []
    # Six rows for each of two are cut to four; the second is done after one cycle, then the first has the step alone.
    first, second = replay_batch([trace_of((3,) * 4 + (5,) * 6), trace_of((3, 3, 2, 1))], Wide(6), Machine(COSTS))
    assert seen == [(0, 4, 8, 2), (1, 4, 8, 2), (0, 6, 6, 1)]
    assert second.decode_us == 170 + 30
    assert first.decode_us == (170 + 30) + (150 + 50)


@pytest.mark.parametrize(
    ("widths", "rows"),
    [
        ((5,), [5]),
        ((2, 2, 2), [6]),
        ((4, 2), [4, 2]),
        ((2, 4), [2, 4]),
        ((3, 3, 1, 1), [3, 3, 2]),
        ((1, 1, 3, 3), [2, 6]),
        ((1, 3, 1), [1, 3, 1]),
    ],
)
def test_unequal_widths_take_several_passes(widths: tuple[int, ...], rows: list[int]) -> None:
    assert passes(widths) == rows
    verify_us = sum(COSTS.verify_us[n - 1] for n in rows)
    assert Machine(COSTS).cycle(widths, 3, rejected=True).true_us == verify_us + 30 + 5


def test_the_widest_are_cut_first_and_shadow_drafts_stay() -> None:
    watcher = plans(CyclePlan(7, 6), CyclePlan(2, 1), CyclePlan(3, 7))
    traces = [trace_of((7,) * 30, name=name) for name in "abc"]
    replays = replay_batch(traces, Once(watcher), Machine(COSTS))
    widths = [(done.cycles[0].n_verified + 1, done.cycles[0].n_drafted) for done in replays]
    assert widths == [(3, 2), (2, 1), (3, 7)]
    assert replays[0].cycles[0] == ReplayCycle(0, 2, 2, 2, 3)


class Once(Watcher):
    """Plans what another does in the first cycle, and nothing after it."""

    def __init__(self, other: Watcher) -> None:
        super().__init__()
        self.other = other

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:
        return self.other.plan(seq, context) if len(self.observations) < 3 else CyclePlan(1, 0)


def test_a_policy_that_finds_mtp_not_worth_it_saves_the_prefill() -> None:
    trace = trace_of((7,) * 10)
    refusing, taking = Watcher(refuses="too short"), plans(CyclePlan(1, 0))
    done = replay(trace, refusing, Machine(COSTS), charge_prefill=True)
    assert (done.refused, done.prefill_us, done.decode_us) == ("too short", 0.0, 1000.0)
    assert refusing.asked == (3, 11)
    assert refusing.observations == []
    paid = replay(trace, taking, Machine(COSTS), charge_prefill=True)
    assert (paid.refused, paid.prefill_us, paid.total_us) == (None, 6.0, 1006.0)
    assert replay(trace, refusing_plain(), Machine(COSTS)).refused is None


def refusing_plain() -> Watcher:
    return Watcher((CyclePlan(1, 0), []), refuses="asked only when prefill counts")


def run_noisy(seed: int) -> tuple[Replay, list[tuple[int, int, bool]]]:
    watcher = plans(CyclePlan(2, 1), CyclePlan(1, 0))
    done = replay(trace_of((1, 0) * 400, limit=10_000), watcher, Machine(COSTS, REALISTIC, seed))
    return done, [(o.draft_us, o.verify_us, o.graph_built) for o in watcher.observations]


def test_noise_is_seen_by_policies_and_not_by_scores() -> None:
    quiet = replay(trace_of((1, 0) * 400, limit=10_000), plans(CyclePlan(2, 1), CyclePlan(1, 0)), Machine(COSTS))
    (done, seen), (_, others) = run_noisy(1), run_noisy(2)
    assert done.decode_us == quiet.decode_us
    assert seen != others
    assert run_noisy(1)[1] == seen
    assert [built for _, _, built in seen].index(True) == 0
    assert sum(built for _, _, built in seen) == 2  # one for each width
    assert max(verify for _, verify, _ in seen) > 450  # a hiccup of four steps


def test_the_clock_shows_what_cycles_took() -> None:
    machine = Machine(COSTS)
    assert machine.clock() == 0
    replay(trace_of((1, 0)), FixedWidth(2), machine)
    assert machine.clock() == 1000 * (110 + 10)


def test_a_sweep_on_a_noisy_machine_is_near_the_truth_and_not_exact() -> None:
    assert swept(COSTS, QUIET, 1) is COSTS
    found = swept(COSTS, REALISTIC, 1)
    assert found.verify_us != COSTS.verify_us
    assert found.verify_us == pytest.approx(COSTS.verify_us, rel=0.15)
    assert found == swept(COSTS, REALISTIC, 1)
