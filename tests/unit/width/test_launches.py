"""What a launch of drafts costs beyond its drafts, as on a GPU."""

import pytest

from pylucebox.width import WidthCosts
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
