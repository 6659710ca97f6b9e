"""The best fixed width and the clairvoyant are bounds, and they are reached."""

from __future__ import annotations

import itertools
import random

import pytest
from _traces import COSTS, trace_of

from pylucebox.sim.bounds import best_fixed, clairvoyant_us, fixed_us, informed_us
from pylucebox.sim.costs import curves, cycle_us
from pylucebox.sim.latent import texts
from pylucebox.sim.library import recorded
from pylucebox.sim.machine import Machine
from pylucebox.sim.replay import replay
from pylucebox.sim.rules import RULES, Rule
from pylucebox.sim.trace import DEPTH, Trace
from pylucebox.width import CycleContext, FixedWidth

TRACES = [trace.cut(160) for trace in (*recorded(), *texts())]


def random_trace(seed: int, n: int) -> Trace:
    source = random.Random(seed)
    return trace_of([source.choice((0, 0, 1, 2, 4, 7)) for _ in range(n)], limit=n + 1 + seed % 3)


@pytest.mark.parametrize("seed", range(8))
def test_the_time_of_a_fixed_width_is_that_of_its_replay(seed: int) -> None:
    trace = random_trace(seed, 60)
    for width in range(1, DEPTH + 2):
        assert fixed_us(trace, COSTS, width - 1) == replay(trace, FixedWidth(width), Machine(COSTS)).decode_us


def least_by_trying(trace: Trace) -> float:
    """Try every sequence of widths."""

    def least(at: int) -> float:
        if at >= len(trace.tokens) - 1:
            return 0.0
        found = []
        for drafts in range(min(DEPTH, trace.max_tokens - 2 - at) + 1):
            held = min(drafts, trace.match[at])
            found.append(cycle_us(COSTS, drafts + 1, drafts, rejected=held < drafts) + least(at + 1 + held))
        return min(found)

    return least(0)


@pytest.mark.parametrize("seed", range(8))
def test_the_clairvoyant_is_what_trying_everything_finds(seed: int) -> None:
    trace = random_trace(seed, 9)
    assert clairvoyant_us(trace, COSTS) == pytest.approx(least_by_trying(trace))


@pytest.mark.parametrize("trace", TRACES, ids=[trace.name for trace in TRACES])
def test_best_fixed_beats_every_fixed_width_and_the_clairvoyant_beats_it(trace: Trace) -> None:
    for curve in curves():
        times = [replay(trace, FixedWidth(width), Machine(curve.costs)).decode_us for width in range(1, DEPTH + 2)]
        best = best_fixed(trace, curve.costs)
        assert best.us == pytest.approx(min(times))
        assert times[best.n_drafts] == pytest.approx(best.us)
        assert clairvoyant_us(trace, curve.costs) <= best.us + 1e-6


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_no_rule_beats_the_clairvoyant(rule: Rule) -> None:
    for curve, trace in itertools.product(curves()[:1] + curves()[-2:], TRACES[::3]):
        machine = Machine(curve.costs)
        done = replay(trace, rule.make(curve.costs, machine), machine)
        assert done.decode_us >= clairvoyant_us(trace, curve.costs) - 1e-6
        assert sum(cycle.n_tokens for cycle in done.cycles) == len(trace.tokens) - 1


class Oracle:
    """Knows the match lengths, and drafts that many."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.at = 0

    def begin(self, *_: int) -> None:
        self.at = 0

    def choose(self, _: int, context: CycleContext) -> int:
        return min(context.max_width, self.trace.match[self.at] + 1)

    def observe(self, _: int, observation: object) -> None:
        self.at += len(observation.tokens)  # type: ignore[attr-defined]


def test_the_bound_is_reached_where_rows_are_free() -> None:
    curve = curves()[-1]
    trace = next(trace for trace in recorded() if trace.name == "code")
    bound = clairvoyant_us(trace, curve.costs)
    assert replay(trace, Oracle(trace), Machine(curve.costs)).decode_us == pytest.approx(bound, rel=0.03)


def test_certain_probabilities_tell_all_that_there_is_to_know() -> None:
    lengths = (4, 3, 2, 1, 0, 1, 0, 0, 7, 6, 5, 4, 3, 2, 1, 0) * 10
    trace = trace_of(lengths)
    sure = trace_of(lengths, probs=[[float(depth < length) for depth in range(DEPTH)] for length in trace.match])
    bound = clairvoyant_us(trace, COSTS)
    assert bound <= informed_us(sure, COSTS) < 1.03 * bound
    assert informed_us(trace, COSTS) > 1.1 * bound


def test_probabilities_that_say_nothing_leave_the_best_fixed_width() -> None:
    source = random.Random(1)
    lengths = [next((d for d in range(DEPTH) if source.random() > 0.7), DEPTH) for _ in range(600)]
    trace = trace_of(lengths, probs=[[0.7] * DEPTH] * 600)
    assert informed_us(trace, COSTS) == pytest.approx(best_fixed(trace, COSTS).us, rel=0.03)


def test_a_text_of_one_token_takes_no_time() -> None:
    assert informed_us(trace_of(()), COSTS) == clairvoyant_us(trace_of(()), COSTS) == 0.0
