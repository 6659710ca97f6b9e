"""The rules that users meet elsewhere do what their descriptions say."""

from __future__ import annotations

import pytest
from _traces import COSTS, trace_of

from pylucebox import InvalidArgumentError
from pylucebox.sim.costs import curve
from pylucebox.sim.machine import Machine
from pylucebox.sim.replay import ReplayCycle, replay
from pylucebox.sim.rules import RULES, rules
from pylucebox.sim.rules.climb_drop import ClimbDrop
from pylucebox.sim.rules.linear_fit import LinearFit
from pylucebox.sim.rules.look_ahead import LookAhead
from pylucebox.sim.rules.mean_accepted import MeanAccepted
from pylucebox.sim.rules.spec_auto import SpecAuto
from pylucebox.sim.rules.stopping import p_min, product
from pylucebox.sim.trace import DEPTH
from pylucebox.width import WidthPolicy

EASY, HARD = (7,) * 300, (0,) * 300


def drafts(policy: WidthPolicy, lengths: tuple[int, ...], machine: str = "gfx1151-16k") -> list[int]:
    done = replay(trace_of(lengths, limit=10_000), policy, Machine(curve(machine).costs))
    return [cycle.n_verified for cycle in done.cycles]


def test_the_mean_climbs_by_one_and_falls_by_quarters() -> None:
    assert drafts(MeanAccepted(), EASY)[:7] == [2, 3, 4, 5, 6, 7, 7]
    assert drafts(MeanAccepted(), HARD)[:5] == [2, 2, 1, 1, 1]  # means 2, 1.5, 1.125, ...
    assert set(drafts(MeanAccepted(), HARD)[3:]) == {1}  # it never stops


def test_climbing_takes_two_clean_cycles_and_dropping_six_lost_drafts() -> None:
    assert drafts(ClimbDrop(), EASY)[:10] == [3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    assert set(drafts(ClimbDrop(), HARD)) == {3}  # the floor
    falling = drafts(ClimbDrop(), EASY[:40] + HARD)
    assert falling[-1] == 3
    assert max(falling) > 3


def test_the_line_climbs_at_first_and_ends_near_the_best_width() -> None:
    assert drafts(LinearFit(), EASY)[:6] == [3, 4, 5, 6, 7, 7]
    hard = drafts(LinearFit(), HARD)
    assert min(hard) == 1  # it never stops
    assert hard[150:].count(1) > 0.9 * len(hard[150:])


def test_the_line_looks_deeper_every_seventeenth_cycle_and_at_all_seven_every_eighth_time() -> None:
    hard = drafts(LinearFit(), HARD)
    assert hard[17 * 8 - 1] == DEPTH
    assert all(hard[17 * n - 1] > 1 for n in range(3, 8))


def test_the_line_forgets_with_each_request() -> None:
    policy = LinearFit()
    first = drafts(policy, HARD)
    assert drafts(policy, HARD) == first


def test_a_line_misjudges_a_machine_whose_rows_are_free() -> None:
    lengths = (4, 3, 2, 1, 0) * 60  # five tokens can be had in each cycle
    flat = drafts(LinearFit(), lengths, "flat-gpu")
    assert sum(flat[100:]) / len(flat[100:]) < DEPTH  # where the best width is the widest or near it


def test_p_min_stops_at_a_draft_and_product_at_a_chain() -> None:
    probs = [[0.9, 0.8, 0.75, 0.69, 0.9, 0.9, 0.9]] * 20
    trace = trace_of((7,) * 20, probs=probs)
    first = replay(trace, p_min(0.7, 6), Machine(COSTS)).cycles[0]
    assert first == ReplayCycle(0, 4, 3, 3, 4)  # the fourth was paid for
    first = replay(trace, product(0.6, 5), Machine(COSTS)).cycles[0]
    assert first == ReplayCycle(0, 3, 2, 2, 3)  # 0.9 x 0.8 x 0.75 is below


def test_stopping_rules_have_a_most() -> None:
    trace = trace_of((7,) * 40, probs=[[1.0] * DEPTH] * 40)
    assert replay(trace, p_min(0.7, 6), Machine(COSTS)).cycles[0].n_drafted == 6
    assert replay(trace, product(0.6, 5), Machine(COSTS)).cycles[0].n_drafted == 5


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
@pytest.mark.parametrize("lengths", [EASY, HARD, (3, 1, 0, 5, 2) * 30, (0,), ()])
def test_every_rule_gets_through_every_text(rule: object, lengths: tuple[int, ...]) -> None:
    machine = Machine(COSTS)
    policy = rule.make(COSTS, machine)  # type: ignore[attr-defined]
    for limit in (0, len(lengths) + 50):
        done = replay(trace_of(lengths, limit=limit), policy, machine, charge_prefill=True)
        assert done.n_tokens == len(lengths)


def test_looking_ahead_verifies_what_is_worth_its_rows_at_the_price_of_the_machine() -> None:
    sure, hopeless = [[1.0] * DEPTH] * 60, [[0.001] * DEPTH] * 200
    for name in ("flat-gpu", "gfx1151-16k"):
        costs = curve(name).costs
        easy = replay(trace_of((7,) * 60, probs=sure), LookAhead(costs), Machine(costs)).cycles
        assert [cycle.n_verified for cycle in easy[:5]] == [DEPTH] * 5
        hard = replay(trace_of((0,) * 200, probs=hopeless), LookAhead(costs), Machine(costs)).cycles
        assert max(cycle.n_verified for cycle in hard) == 0
    # A draft of one half is worth a row of a hundredth of a step, and not one of a third.
    even = [[0.5] * DEPTH] * 60
    verified = {}
    for name in ("flat-gpu", "gfx1151-16k"):
        costs = curve(name).costs
        done = replay(trace_of((1, 0) * 30, probs=even), LookAhead(costs), Machine(costs))
        verified[name] = done.n_verified / len(done.cycles)
    assert verified["flat-gpu"] > 1.0 > verified["gfx1151-16k"]


def test_the_calibrated_rule_probes_first_and_keeps_what_it_learned() -> None:
    policy, costs = SpecAuto(), curve("gfx1151-16k").costs
    # Whatever is said to hold by four in five does not, and the other way round.
    probs = [[0.8 if at % 2 else 0.2] * DEPTH for at in range(900)]
    trace = trace_of([0 if at % 2 else 2 for at in range(900)], probs=probs, limit=10_000)
    cycles = replay(trace, policy, Machine(costs)).cycles
    assert [cycle.n_verified for cycle in cycles[:8]] == [1, 2, 3, 4, 5, 6, 7, 1]
    late = [cycle for number, cycle in enumerate(cycles) if number >= 100 and number % 32]
    assert {cycle.n_verified for cycle in late if cycle.position % 2} == {0}
    assert {cycle.n_verified for cycle in late if not cycle.position % 2} == {2}
    again = replay(trace, policy, Machine(costs)).cycles
    assert sum(cycle.n_verified for cycle in again[:40]) < sum(cycle.n_verified for cycle in cycles[:40])


def test_rules_are_found_by_name() -> None:
    assert rules(()) == RULES
    assert [rule.name for rule in rules(("fixed-3", "off"))] == ["fixed-3", "off"]
    with pytest.raises(InvalidArgumentError, match="linear-fit"):
        rules(("guesswork",))
    assert len({rule.name for rule in RULES}) == len(RULES)
