"""What a launch of drafts costs beyond its drafts, as on a GPU."""

import pytest

from pylucebox.width import AdaptiveWidth, CycleContext, CycleObservation, CyclePlan, WidthCosts
from pylucebox.width.costs import CostModel
from pylucebox.width.looks import best_look, rows_spared_us

VERIFY = (1000.0, 1250.0, 1250.0, 1330.0, 1370.0, 1400.0, 1470.0, 1500.0)


def costs(first_us: float, more_us: float) -> WidthCosts:
    """Return costs of a machine on which every launch takes `first_us` and every draft after its first `more_us`."""
    chains = tuple(first_us + n * more_us for n in range(7))
    return WidthCosts(VERIFY, chains, 20.0, 0.0, 128, "sweep")


def test_a_launch_costs_what_the_first_draft_costs_more() -> None:
    # 400 - 200, less the 15 % of 400 that may be chance
    assert CostModel(costs(400, 200)).launch_us == pytest.approx(140)


@pytest.mark.parametrize("first_us", [200, 225])
def test_what_may_be_chance_is_no_price(first_us: float) -> None:
    assert CostModel(costs(first_us, 200)).launch_us == 0


def test_drafts_in_several_launches_do_not_make_drafts_dearer() -> None:
    model = CostModel(costs(400, 200))
    before = model.prices.draft[7]
    for _ in range(40):
        model.learn_draft(7, 1600 + 3 * 140, n_launches=4)
    assert model.prices.draft[7] == pytest.approx(before)


def test_builds_apart_from_each_other_tell_nothing() -> None:
    model = CostModel(costs(400, 200))
    before = model.prices.verify[7]
    for _ in range(20):
        model.learn_verify(8, 9000, built=True)
        model.learn_verify(8, 9000, built=True)
        model.learn_verify(8, 1500, built=False)
    assert model.prices.verify[7] == pytest.approx(before, rel=0.05)


def test_where_a_launch_costs_much_a_look_is_taken_only_where_it_spares_more() -> None:
    policy = AdaptiveWidth(costs(400, 200), clock=lambda: 0)
    policy.begin(1, 8)
    for _ in range(4):  # plain steps for their time
        policy.plan(0, CycleContext(0, 100, 1000, 8, 1))
        policy.observe(0, CycleObservation(0, 1, 0, 0, (), 0, 1000, 0, 1, graph_built=False, tokens=(1,)))
    plans = []
    for _ in range(40):
        plan = policy.plan(0, CycleContext(0, 100, 1000, 8, 1))
        n_drafted, n_launches, more = plan.n_draft, 1, plan.ask
        while more:
            width, more = policy.decide(0, (0.99,) * n_drafted, (1,) * n_drafted)
            n_drafted, n_launches = n_drafted + more, n_launches + (more > 0)
        plans.append((n_drafted, n_launches))
        draft_us = 200 + 200 * n_drafted + 140 * (n_launches - 1)
        done = CycleObservation(
            0, width, n_drafted, width - 1, (0.99,) * n_drafted, draft_us, int(VERIFY[width - 1]), 0, width,
            graph_built=False, draft_tokens=(1,) * n_drafted, tokens=(1,) * width,
        )  # fmt: skip
        policy.observe(0, done)
    assert plans[-1] == (7, 1)  # all hold, so a look spares nothing


def test_chains_of_several_launches_tell_what_a_launch_costs() -> None:
    model = CostModel(costs(400, 200))
    before = model.prices.draft[7]
    for _ in range(12):
        model.learn_draft(7, 1600 + 500, n_launches=2)
    assert model.launch_us == pytest.approx(500, rel=0.15)
    assert model.prices.draft[7] == pytest.approx(before, rel=0.06)
    assert CostModel.restored(model.snapshot(), 1).launch_us == pytest.approx(model.launch_us)
    assert model.relative().launch_us == pytest.approx(model.launch_us, rel=0.05)


def test_where_launches_have_no_price_none_is_learned() -> None:
    model = CostModel(costs(200, 200))
    for _ in range(12):
        model.learn_draft(7, 1400 + 500, n_launches=2)
    assert model.launch_us == 0


def test_one_hiccup_is_no_price() -> None:
    model = CostModel(costs(400, 200))
    for took_us in [1600 + 140] * 11 + [1_000_000]:
        model.learn_draft(7, took_us, n_launches=2)
    assert model.launch_us < 300


def test_a_look_goes_where_it_spares_most() -> None:
    draft_us = (0, 400, 600, 800, 1000, 1200, 1400, 1600)
    rarely_deep = (0.5, 1.0, 1.0, 0.2, 0.9, 0.9, 0.9)
    assert best_look(rarely_deep, draft_us, 1, 7, 100) == 3
    assert best_look(rarely_deep, draft_us, 1, 7, 700) == 7
    assert best_look((1.0,) * 7, draft_us, 1, 7, 1) == 7


def test_a_look_at_a_whole_chain_spares_no_more_than_the_rows_behind_a_miss() -> None:
    sure, unsure = (1.0,) * 7, (0.5,) * 7
    assert rows_spared_us(sure, unsure, VERIFY, 7) == 0  # it would verify them all the same
    assert rows_spared_us(unsure, sure, VERIFY, 7) == 0
    assert 0 < rows_spared_us(unsure, unsure, VERIFY, 7) < VERIFY[7] - VERIFY[0]


def plan_and_report(policy: AdaptiveWidth, prob: float, n_hold: int) -> CyclePlan:
    """Run a cycle in which so many drafts of one probability hold."""
    plan = policy.plan(0, CycleContext(0, 100, 1000, 8, 1))
    width, n_drafted, more, n_launches = plan.width, plan.n_draft, plan.ask and plan.n_draft, 0
    while more:
        n_launches += 1
        width, more = policy.decide(0, (prob,) * n_drafted, (1,) * n_drafted)
        n_drafted += more
    n_accepted = min(n_hold, width - 1)
    draft_us = 200 + 200 * n_drafted + 500 * max(0, n_launches - 1) if n_drafted else 0
    done = CycleObservation(
        0, width, n_drafted, n_accepted, (prob,) * n_drafted, draft_us, int(VERIFY[width - 1]), 0, width,
        graph_built=False, draft_tokens=(1,) * n_drafted, tokens=(1,) * (n_accepted + 1),
    )  # fmt: skip
    policy.observe(0, done)
    return plan


def test_drafts_that_always_hold_are_not_asked_about_and_news_is_noticed() -> None:
    policy = AdaptiveWidth(costs(400, 200), clock=lambda: 0)
    policy.begin(1, 8)
    easy = [plan_and_report(policy, 0.99, 7) for _ in range(60)]
    assert easy[-1] == CyclePlan(8, 7, False)
    hard = [plan_and_report(policy, 0.1, 0) for _ in range(60)]
    assert any(plan.ask or plan.n_draft < 7 for plan in hard[:30])
    assert hard[-1].n_draft <= 1
