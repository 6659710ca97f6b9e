"""What a launch of drafts costs beyond its drafts, as on a GPU."""

import pytest

from pylucebox.width import AdaptiveWidth, CycleContext, CycleObservation, WidthCosts
from pylucebox.width.costs import CostModel

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
