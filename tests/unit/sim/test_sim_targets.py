"""The default policy on the recorded texts and all machines: what `lucebox sim --suite ci` asks of it."""

from __future__ import annotations

import pytest

from pylucebox.sim.costs import curves
from pylucebox.sim.library import recorded
from pylucebox.sim.machine import REALISTIC
from pylucebox.sim.results import Target, conclude
from pylucebox.sim.rules import rules
from pylucebox.sim.suite import Plan, run


@pytest.fixture(scope="module")
def targets() -> list[Target]:
    plan = Plan(
        name="ci",
        traces=recorded(),
        curves=curves(),
        rules=rules(("adaptive",)),
        noise=REALISTIC,
        seeds=(1,),
        sections=("single", "short"),
    )
    return list(conclude(plan, run(plan), []).targets)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_default_policy_reaches_its_target(targets: list[Target], number: int) -> None:
    target = targets[number]
    assert target.met, f"{target.what}: {target.value:.3f}, wanted {target.limit}"


# A policy that knew the probabilities before it drafts, the costs, and the best price of time would leave 0.53 of the
# best fixed width's regret, and reach 0.975 in its worst short request: the row "informed" of the table. So these two
# targets (0.5 and 0.97) are at or beyond what the probabilities can tell; what has been reached must not be lost.
def test_the_default_policy_keeps_what_it_reached(targets: list[Target]) -> None:
    regret, short = targets[3], targets[4]
    assert not regret.met, "take the target itself into the test above"
    assert regret.value <= 0.72
    assert not short.met, "take the target itself into the test above"
    assert short.value >= 0.85
