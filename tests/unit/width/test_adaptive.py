"""The adaptive policy on texts and machines that show one thing each."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from pylucebox._errors import InvalidArgumentError
from pylucebox.width import AdaptiveWidth, CycleContext, CycleObservation, FixedWidth, WidthCosts

from ._drive import CLIFF, DEAR, FLAT, MACHINES, MIDDLE, SMALL, STEEP, WRONG, StoppedClock, Text, ask, drive, text


def adaptive(machine: WidthCosts | None) -> AdaptiveWidth:
    return AdaptiveWidth(machine, clock=StoppedClock())


def best_fixed(said: Text, machine: WidthCosts) -> float:
    return max(drive(FixedWidth(width), said, machine).speed for width in range(1, 9))


# ---- speed


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("chance", [0.1, 0.5, 0.8, 0.97])
def test_probabilities_that_tell_beat_every_fixed_width(name: str, chance: float) -> None:
    machine = MACHINES[name]
    ratios = [drive(adaptive(machine), said, machine).speed / best_fixed(said, machine) for said in _texts(chance)]
    # Where all or nothing is drafted there is nothing to win.
    gains = name not in {"dear", "flat"} and chance in {0.5, 0.8}
    assert sum(ratios) / len(ratios) > (1.05 if gains else 0.97)


@pytest.mark.parametrize("name", ["steep", "middle", "flat", "cliff"])
@pytest.mark.parametrize("chance", [0.3, 0.6, 0.85, 0.97])
def test_counting_is_near_the_best_fixed_width(name: str, chance: float) -> None:
    machine = MACHINES[name]
    ratios = [
        drive(adaptive(machine), said, machine, shows_probs=False).speed / best_fixed(said, machine)
        for said in _texts(chance)
    ]
    assert sum(ratios) / len(ratios) > 0.92


def _texts(chance: float) -> list[Text]:
    return [text((500, chance), seed=seed) for seed in range(2)]


@pytest.mark.parametrize("name", ["steep", "middle", "flat"])
def test_text_of_changing_kind_beats_every_fixed_width(name: str) -> None:
    said = text((300, 0.95), (300, 0.3), (300, 0.9), (300, 0.1))
    assert drive(adaptive(MACHINES[name]), said, MACHINES[name]).speed > 1.05 * best_fixed(said, MACHINES[name])


def test_probabilities_that_say_nothing_do_little_harm() -> None:
    for machine in (STEEP, MIDDLE, FLAT):
        said = text((800, 0.8), telling=False)
        assert drive(adaptive(machine), said, machine).speed > 0.91 * best_fixed(said, machine)


# ---- what is given up comes back


@pytest.mark.parametrize("name", ["steep", "middle", "flat", "cliff", "small"])
@pytest.mark.parametrize("telling", [True, False])
def test_easy_text_after_a_hopeless_one_is_noticed(name: str, telling: bool) -> None:
    machine = MACHINES[name]
    said = text((400, 0.05), (600, 0.97), telling=telling)
    ran = drive(adaptive(machine), said, machine)
    parked = ran.verified(200, 400)
    assert sum(k > 0 for k in parked) < 0.3 * len(parked) or name == "flat"
    again = next(at for at, _, k, _ in ran.cycles if at >= 400 and k >= 2)
    patience = 300 if name == "small" and not telling else 150  # drafts are dear there
    assert again < 400 + patience


def test_parked_request_goes_on_looking() -> None:
    ran = drive(adaptive(STEEP), text((1000, 0.0)), STEEP)
    looks = [at for at, n_drafted, _, _ in ran.cycles if n_drafted and at > 300]
    assert 20 < len(looks) < 120


# ---- the price of being wrong


@pytest.mark.parametrize("name", MACHINES)
def test_drafts_that_never_hold_cost_two_percent_and_four_steps(name: str) -> None:
    machine = MACHINES[name]
    for telling in (True, False):
        said = text((1000, 0.0), telling=telling)
        off = drive(FixedWidth(1), said, machine)
        assert drive(adaptive(machine), said, machine).us <= 1.02 * off.us + 4 * machine.verify_us[0]


def test_one_hiccup_of_the_machine_changes_nothing() -> None:
    said = text((600, 0.9), seed=3)
    calm = drive(adaptive(MIDDLE), said, MIDDLE)
    upset = drive(adaptive(MIDDLE), said, MIDDLE, disturb=lambda n, us: us * (100 if n == 20 else 1))
    assert upset.speed > 0.98 * calm.speed


def test_hiccups_and_noise_cost_little() -> None:
    said = text((800, 0.8), seed=4)
    calm = drive(adaptive(STEEP), said, STEEP)
    rng = random.Random(0)
    rough = drive(
        adaptive(STEEP),
        said,
        STEEP,
        noise=0.2,
        builds=True,
        disturb=lambda _, us: us + (900_000 if rng.random() < 0.005 else 0),
    )
    assert rough.speed > 0.96 * calm.speed


@pytest.mark.parametrize("error", [0.5, 3.0])
def test_width_with_a_wrong_price_is_put_right(error: float) -> None:
    # Width 8 is best here; it starts out as far too dear, or width 4 as far too cheap.
    wrong = list(FLAT.verify_us)
    wrong[7 if error > 1 else 3] *= error
    policy = adaptive(WidthCosts.from_dict({**FLAT.as_dict(), "verify_us": wrong}))
    ran = drive(policy, text((4000, 0.97)), FLAT)
    late = ran.verified(3000)
    assert sum(late) / len(late) > 5.0


# ---- cold start


@pytest.mark.parametrize("name", ["steep", "middle", "flat", "cliff"])
def test_machine_that_nothing_is_known_of_is_learned_in_a_request(name: str) -> None:
    machine = MACHINES[name]
    policy = adaptive(None)
    said = text((600, 0.9))
    first = drive(policy, said, machine, builds=True)
    second = drive(policy, said, machine)
    assert first.speed > 0.85 * best_fixed(said, machine)
    assert second.speed > 0.95 * best_fixed(said, machine)
    assert policy.telemetry().costs_source == "none"


def test_engine_that_builds_a_graph_in_every_cycle_does_not_stall_the_start() -> None:
    policy = adaptive(None)
    policy.begin(1, 8)
    widths = []
    for n in range(100):
        n_drafted, width = ask(policy, CycleContext(0, n * 8, 1000, 8), [0.95] * 7)
        widths.append(width)
        held = width - 1
        seen = CycleObservation(
            0, width, n_drafted, held, (0.95,) * n_drafted, 500 * n_drafted, 12_000, 0, width, True,
            draft_tokens=(1,) * n_drafted, tokens=(1,) * (held + 1),
        )  # fmt: skip
        policy.observe(0, seen)
    assert Counter(widths[50:]).most_common(1)[0][0] == 8


# ---- limits


@pytest.mark.parametrize("n_left", range(1, 9))
def test_ends_of_requests_are_kept(n_left: int) -> None:
    policy = adaptive(FLAT)
    policy.begin(1, 8)
    n_drafted, width = ask(policy, CycleContext(0, 10, n_left, 8), [0.99] * 7)
    assert width <= n_left
    assert n_drafted <= n_left - 1
    if n_left == 1:
        assert n_drafted == 0


def test_cancelled_cycles_leave_no_trace() -> None:
    said = text((400, 0.8))
    undisturbed = drive(adaptive(MIDDLE), said, MIDDLE)
    policy = adaptive(MIDDLE)
    policy.begin(1, 8)
    cycles = []
    at = 0
    while at < 399:
        part = drive(policy, said, MIDDLE, begin=False, start=at, end=min(400, at + 2))
        cycles += part.cycles
        at = part.cycles[-1][0] + part.cycles[-1][3] + 1
        policy.plan(0, CycleContext(0, 10 + at, 400, 8))  # never run
    assert len(cycles) >= len(undisturbed.cycles)
    assert policy.telemetry().cycles == len(cycles)


# ---- several sequences


def batch(
    policy: AdaptiveWidth, chances: list[float], machine: WidthCosts, lengths: list[int], then: float | None = None
) -> Counter[tuple[int, int]]:
    """Run sequences side by side until all have their tokens; count passes by sequences and width.

    Drafts hold with the chances of each, and in the second half of a text with `then`, if that is given.
    """
    rng = random.Random(0)
    passes: Counter[tuple[int, int]] = Counter()
    left = list(lengths)
    policy.begin(len(left), 8)
    while active := [seq for seq, n in enumerate(left) if n > 0]:
        plans = {}
        for seq in active:
            context = CycleContext(seq, 1000 - left[seq], left[seq], 8, len(active))
            plans[seq] = ask(policy, context, [0.9] * 7)
        n_rows = sum(width for _, width in plans.values())
        assert n_rows <= 8
        passes[len(active), max(width for _, width in plans.values())] += 1
        n_draft = max(n_drafted for n_drafted, _ in plans.values())
        for seq, (n_drafted, width) in plans.items():
            chance = chances[seq] if then is None or left[seq] > lengths[seq] // 2 else then
            drafts = tuple(1 if rng.random() < chance else WRONG for _ in range(n_drafted))
            held = next((d for d in range(width - 1) if drafts[d] == WRONG), width - 1)
            policy.observe(
                seq,
                CycleObservation(
                    seq=seq,
                    width=width,
                    n_drafted=n_drafted,
                    n_accepted=held,
                    draft_probs=(0.9,) * n_drafted,
                    draft_us=round(machine.draft_us[n_draft - 1]) if n_draft else 0,
                    verify_us=round(machine.verify_us[n_rows - 1]),
                    rollback_us=0,
                    n_rows=n_rows,
                    graph_built=False,
                    draft_tokens=drafts,
                    tokens=(1,) * (held + 1),
                    n_active=len(active),
                ),
            )
            left[seq] -= held + 1
    return passes


def test_four_sequences_with_one_finishing_early() -> None:
    passes = batch(adaptive(FLAT), [0.95] * 4, FLAT, [300, 300, 300, 40])
    assert passes[4, 2] > 0.8 * sum(n for (n_active, _), n in passes.items() if n_active == 4)
    assert passes[3, 2] > 0.8 * sum(n for (n_active, _), n in passes.items() if n_active == 3)


def test_batch_with_useless_drafts_goes_without() -> None:
    passes = batch(adaptive(MIDDLE), [0.02] * 3, MIDDLE, [400] * 3)
    assert passes[3, 1] > 0.9 * passes.total()


def test_batch_loses_no_more_than_the_ledger_allows_even_if_thinking_is_too_dear() -> None:
    """What was chosen while drafts held is not kept for want of time when they do no longer."""
    now_ns = 0

    def dear_clock() -> int:
        nonlocal now_ns
        now_ns += 200_000
        return now_ns

    plain_us = SMALL.verify_us[3]
    passes = batch(AdaptiveWidth(SMALL, clock=dear_clock), [0.99] * 4, SMALL, [1000] * 4, then=0.0)
    assert passes[4, 2] > 100  # they pay at first
    n_lost = passes[4, 2] - 250  # passes that took longer and brought nothing more
    assert n_lost * (SMALL.verify_us[7] + SMALL.draft_us[0] - plain_us) < 0.02 * 1000 * plain_us + 14 * plain_us


@pytest.mark.parametrize("n_seq", [5, 8, 9])
def test_more_sequences_than_rows_for_drafts_go_without(n_seq: int) -> None:
    policy = adaptive(FLAT)
    policy.begin(n_seq, 8)
    for _ in range(30):
        plans = [policy.plan(seq, CycleContext(seq, 10, 100, 8, n_seq)) for seq in range(n_seq)]
        assert set(plans) == {(1, 0, False)}
        for seq in range(n_seq):
            seen = CycleObservation(seq, 1, 0, 0, (), 0, 12_000, 0, n_seq, False, tokens=(1,), n_active=n_seq)
            policy.observe(seq, seen)
    assert policy.telemetry().plain_reasons == (("limit", 30 * n_seq),)


def test_last_of_a_batch_goes_on_alone() -> None:
    policy = adaptive(FLAT)
    batch(policy, [0.95, 0.95], FLAT, [40, 60])
    policy.begin(1, 8)
    assert drive(policy, text((300, 0.97)), FLAT).speed > 0.9 * best_fixed(text((300, 0.97)), FLAT)


def test_new_request_in_a_sequence_starts_afresh() -> None:
    policy = adaptive(STEEP)
    drive(policy, text((500, 0.0)), STEEP)
    assert policy.telemetry().expected_acceptance[0] < 0.3
    policy.plan(0, CycleContext(0, 5, 300, 8))  # fewer tokens in the context than before
    assert policy.telemetry().expected_acceptance[0] >= 0.75


# ---- from request to request


def test_verdict_on_one_text_does_not_bind_the_next() -> None:
    ratios = []
    for seed in range(4):
        policy, easy = adaptive(STEEP), text((300, 0.95), seed=seed)
        drive(policy, text((1000, 0.0)), STEEP)
        ratios.append(drive(policy, easy, STEEP).speed / drive(adaptive(STEEP), easy, STEEP).speed)
    assert sum(ratios) / len(ratios) > 0.95


def test_state_survives_saving_and_loading() -> None:
    policy = adaptive(None)
    said = text((500, 0.8))
    drive(policy, said, MIDDLE, noise=0.02)
    stored = json.loads(json.dumps(policy.snapshot()))
    again = adaptive(None)
    again.load(stored)
    assert again.snapshot() == policy.snapshot()
    assert drive(again, said, MIDDLE).verified()[:5] != drive(adaptive(None), said, MIDDLE).verified()[:5]
    assert drive(again, said, MIDDLE).speed > 0.98 * drive(adaptive(MIDDLE), said, MIDDLE).speed


@pytest.mark.parametrize(
    "stored", [{}, {"version": 2}, {"version": 1, "costs": [], "calibrator": {}}, {"version": 1, "costs": [[1, 0, {}]]}]
)
def test_other_states_are_refused_and_change_nothing(stored: dict[str, Any]) -> None:
    policy = adaptive(MIDDLE)
    before = policy.snapshot()
    with pytest.raises(InvalidArgumentError):
        policy.load(stored)
    assert policy.snapshot() == before


def test_measured_costs_replace_what_was_known() -> None:
    policy = adaptive(DEAR)
    policy.load_costs(FLAT)
    assert policy.telemetry().costs_source == "sweep"
    assert policy.telemetry().verify_us == pytest.approx(FLAT.verify_us, rel=0.01)


# ---- short requests


def taxed(machine: WidthCosts, us_per_token: float) -> AdaptiveWidth:
    return adaptive(WidthCosts.from_dict({**machine.as_dict(), "mtp_prefill_us_per_token": us_per_token}))


def test_request_too_short_to_earn_back_its_prompt_goes_without_mtp() -> None:
    policy = taxed(STEEP, 52.0)
    reason = policy.worth_drafting(16_384, 32)
    assert reason is not None
    assert "16384" in reason
    assert "32" in reason
    assert policy.worth_drafting(16_384, 1024) is None
    assert policy.worth_drafting(64, 32) is None


def test_speed_that_was_measured_lowers_the_bar() -> None:
    policy = taxed(STEEP, 52.0)
    n_tokens = next(n for n in range(1, 1000) if policy.worth_drafting(16_384, n) is None)
    drive(policy, text((800, 0.98)), STEEP)
    policy.begin(1, 8)
    assert policy.worth_drafting(16_384, n_tokens // 2 + 10) is None


def test_where_drafts_seldom_pay_only_hopeless_requests_go_without() -> None:
    policy = taxed(DEAR, 10.0)
    assert policy.worth_drafting(10_000, 10_000) is not None  # not even perfect drafts pay here
    policy = taxed(
        WidthCosts.from_dict({**MIDDLE.as_dict(), "verify_us": [24_000 + 17_000 * n for n in range(8)]}), 1.0
    )
    drive(policy, text((500, 0.0)), MIDDLE)
    policy.begin(1, 8)
    assert policy.worth_drafting(100, 1000) is None


@pytest.mark.parametrize("machine", [None, MIDDLE])
def test_prompts_that_cost_nothing_more_are_never_refused(machine: WidthCosts | None) -> None:
    assert adaptive(machine).worth_drafting(100_000, 1) is None


# ---- callers of other kinds, telemetry, own time


def test_engine_that_only_asks_for_widths_is_served_by_counting() -> None:
    policy = adaptive(FLAT)
    policy.begin(1, 8)
    widths = []
    for n in range(60):
        width = policy.choose(0, CycleContext(0, 8 * n, 1000, 8))
        widths.append(width)
        policy.observe(
            0, CycleObservation(0, width, width - 1, width - 1, (0.9,) * (width - 1), 600, 12_500, 0, width, False)
        )
    assert widths[30:].count(8) > 25


def test_observation_without_a_plan_is_taken() -> None:
    policy = adaptive(MIDDLE)
    policy.begin(1, 8)
    policy.observe(3, CycleObservation(3, 2, 1, 0, (0.5,), 1, 2, 3, 2, False))
    assert policy.telemetry().cycles == 1


def test_telemetry_adds_up() -> None:
    policy = adaptive(STEEP)
    said = text((300, 0.5))
    ran = drive(policy, said, STEEP)
    seen = policy.telemetry()
    assert seen.cycles == len(ran.cycles) == sum(seen.verified_histogram) == sum(seen.drafted_histogram)
    assert seen.tokens == 299
    assert seen.verified_histogram[0] == sum(n for _, n in seen.plain_reasons) == ran.verified().count(0)
    assert seen.conditional_acceptance[0] == pytest.approx(0.5, abs=0.15)
    assert seen.uses_confidence
    assert seen.ledger_us <= seen.ledger_max_us
    json.dumps(seen.as_dict())
    policy.begin(1, 8)
    assert policy.telemetry().cycles == 0


def test_thought_is_spared_on_short_cycles() -> None:
    class Clock:
        """A machine on which each look at the clock is 50 us after the last."""

        now = 0

        def __call__(self) -> int:
            self.now += 50_000
            return self.now

    said = text((1500, 0.8))
    thoughtful, hurried = adaptive(SMALL), AdaptiveWidth(SMALL, clock=Clock())
    drive(thoughtful, said, SMALL)
    ran = drive(hurried, said, SMALL)
    assert sum(n or 0 for n in hurried.telemetry().drafted_histogram) == len(ran.cycles)
    assert ran.speed > 0.9 * best_fixed(said, SMALL)


def test_reasons_of_plain_cycles_are_told() -> None:
    policy = adaptive(STEEP)
    drive(policy, text((800, 0.0), telling=False), STEEP)
    assert {reason for reason, _ in policy.telemetry().plain_reasons} <= {"price", "ledger", "limit"}
    assert dict(policy.telemetry().plain_reasons)["price"] > 100


def test_cliff_is_not_climbed_for_one_more_draft() -> None:
    ran = drive(adaptive(CLIFF), text((800, 0.8)), CLIFF)
    at_the_edge = Counter(ran.verified())[4]
    assert at_the_edge < 0.05 * len(ran.cycles)
