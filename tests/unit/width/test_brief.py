"""Short steps where each launch of drafts has a price, as of a small model on a GPU."""

from dataclasses import replace

import pytest

from pylucebox.width import AdaptiveWidth, CycleContext, CycleObservation, CyclePlan, WidthCosts
from pylucebox.width.acceptance import Acceptance
from pylucebox.width.brief import BriefCycles
from pylucebox.width.costs import CostModel

# Measured on an H200 with the built-in model.
VERIFY = (750.0, 860.0, 940.0, 970.0, 1165.0, 1195.0, 1260.0, 1350.0)
DRAFT = (215.0, 360.0, 505.0, 640.0, 770.0, 900.0, 1030.0)
COSTS = WidthCosts(VERIFY, DRAFT, 25.0, 0.5, 128, "sweep", on_gpu=True)
PRICES = CostModel(COSTS).prices


def drafts(counts: BriefCycles, held: list[int]) -> list[int]:
    """Return the drafts chosen while as many as given would hold in each cycle."""
    chosen = []
    for most in held:
        k = counts.choose(7, PRICES)
        chosen.append(k)
        counts.learn(k, min(k, most))
    return chosen


def test_a_text_whose_drafts_hold_soon_gets_all_of_them() -> None:
    assert drafts(BriefCycles(Acceptance()), [7] * 20)[4:] == [7] * 16


def test_a_short_reply_begins_with_all_drafts_whatever_the_last_text_was() -> None:
    hard = Acceptance()
    for _ in range(20):
        hard.learn(0, held=False)
    assert drafts(BriefCycles(hard.successor()), [7, 7]) == [7, 7]


def test_a_text_whose_drafts_never_hold_gets_few_and_less_and_less_often() -> None:
    chosen = drafts(BriefCycles(Acceptance()), [0] * 200)
    assert sum(chosen[8:]) <= 12
    assert any(chosen[100:])  # none is given up for good


def test_a_text_that_becomes_easy_gets_drafts_again() -> None:
    chosen = drafts(BriefCycles(Acceptance()), [0] * 100 + [7] * 60)
    assert min(chosen[-20:]) >= 6


def test_how_the_last_cycle_ended_counts() -> None:
    most = ([7] * 6 + [0] * 6) * 12
    chosen = drafts(BriefCycles(Acceptance()), most)
    behind_run = [after for held, k, after in zip(most[60:], chosen[60:], chosen[61:], strict=False) if 0 < k <= held]
    behind_miss = [after for held, k, after in zip(most[60:], chosen[60:], chosen[61:], strict=False) if k > held]
    assert sum(behind_run) / len(behind_run) > 1.2 * sum(behind_miss) / len(behind_miss)


@pytest.mark.parametrize("limit", range(4))
def test_no_more_than_the_limit(limit: int) -> None:
    assert BriefCycles(Acceptance()).choose(limit, PRICES) <= limit


def run(policy: AdaptiveWidth, held: list[int], n_captures: int = 0, *, dearer: float = 1.0) -> list[CyclePlan]:
    """Run a request whose drafts would hold so often, and return its plans.

    The first `n_captures` cycles of each width take twenty milliseconds more, for their graphs. Drafts and rows take
    `dearer` times what they should.
    """
    policy.begin(1, 8)
    plans: list[CyclePlan] = []
    n_past = 100
    for most in held:
        plan = policy.plan(0, CycleContext(0, n_past, 1000, 8, 1))
        captures = plans.count(plan) < n_captures
        plans.append(plan)
        n_accepted = min(plan.width - 1, most)
        n_past += n_accepted + 1
        draft_us = dearer * DRAFT[plan.n_draft - 1] if plan.n_draft else 0
        verify_us = VERIFY[plan.width - 1] * (dearer if plan.n_draft else 1.0)
        done = CycleObservation(
            0, plan.width, plan.n_draft, n_accepted, (0.5,) * plan.n_draft, int(draft_us),
            int(verify_us) + 20_000 * captures, 0, plan.width, graph_built=captures,
            draft_tokens=(1,) * plan.n_draft, tokens=(1,) * (n_accepted + 1),
        )  # fmt: skip
        policy.observe(0, done)
    return plans


def test_all_drafts_of_a_cycle_are_made_in_one_launch_and_none_is_looked_at() -> None:
    plans = run(AdaptiveWidth(COSTS, clock=lambda: 0), [7, 0, 3, 7, 7, 7, 1] * 20)
    assert all(plan.n_draft == plan.width - 1 and not plan.ask for plan in plans)


def test_a_policy_without_time_to_think_widens_all_the_same() -> None:
    clock = iter(range(0, 10**12, 10**6))  # each call seems to take a millisecond
    plans = run(AdaptiveWidth(COSTS, clock=lambda: next(clock)), [7] * 30)
    assert plans[-1] == CyclePlan(8, 7)


def test_drafts_that_hold_two_times_in_three_are_kept() -> None:
    plans = run(AdaptiveWidth(COSTS, clock=lambda: 0), [7, 2, 7, 0, 7, 5, 4, 1, 7] * 12)
    assert sum(plan.n_draft > 1 for plan in plans) > 0.8 * len(plans)


def test_the_next_request_starts_from_what_held() -> None:
    policy = AdaptiveWidth(COSTS, clock=lambda: 0)
    run(policy, [7] * 40)
    assert run(policy, [7])[0] == CyclePlan(8, 7)


def test_nothing_is_timed_where_the_device_waits_for_the_next_cycle() -> None:
    calls: list[None] = []
    run(AdaptiveWidth(COSTS, clock=lambda: len(calls.append(None) or calls)), [7, 3, 0, 7, 7] * 8)
    assert not calls


def test_no_text_loses_more_than_is_promised() -> None:
    policy = AdaptiveWidth(COSTS, clock=lambda: 0)
    plans = run(policy, [0] * 400)
    assert sum(plan.n_draft for plan in plans) > 0
    assert policy.telemetry().ledger_max_us <= (0.02 * len(plans) + 4.0) * VERIFY[0]


def test_drafts_that_became_too_dear_are_given_up() -> None:
    policy = AdaptiveWidth(COSTS, clock=lambda: 0)
    plans = run(policy, [7] * 400, dearer=8.0)
    assert plans[0] == CyclePlan(8, 7)
    assert sum(plan.n_draft for plan in plans[-100:]) < 0.2 * 7 * 100


def test_a_reply_ends_within_its_limit_and_says_why_nothing_was_drafted() -> None:
    policy = AdaptiveWidth(COSTS, clock=lambda: 0)
    policy.begin(1, 8)
    plans = [policy.plan(0, CycleContext(0, 100 + i, left, 8, 1)) for i, left in enumerate((3, 2, 1))]
    assert [plan.width for plan in plans] == [3, 2, 1]
    policy.observe(0, CycleObservation(0, 1, 0, 0, (), 0, 750, 0, 1, graph_built=False, tokens=(1,)))
    assert policy.telemetry().plain_reasons == (("limit", 1),)


@pytest.mark.parametrize("n_captures", [0, 2, 5])
def test_without_a_sweep_a_gpu_drafts_as_well(n_captures: int) -> None:
    policy = AdaptiveWidth(clock=lambda: 0)
    policy.load_device(on_gpu=True)
    plans = run(policy, [7] * 80, n_captures)
    assert plans[-40:] == [CyclePlan(8, 7)] * 40


def test_on_a_cpu_drafts_are_looked_at() -> None:
    policy = AdaptiveWidth(replace(COSTS, on_gpu=False), clock=lambda: 0)
    assert any(plan.ask for plan in run(policy, [7] * 10))
