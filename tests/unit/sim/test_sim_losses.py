"""Where a rule loses time against the clairvoyant."""

from __future__ import annotations

import pytest
from _traces import COSTS, trace_of

from pylucebox.sim.bounds import clairvoyant_us
from pylucebox.sim.library import recorded
from pylucebox.sim.losses import Losses, losses_of, mean_losses
from pylucebox.sim.machine import Machine
from pylucebox.sim.replay import Replay, ReplayCycle, replay
from pylucebox.sim.rules.stopping import p_min
from pylucebox.sim.trace import Trace
from pylucebox.width import FixedWidth, WidthPolicy


def done(*cycles: ReplayCycle) -> Replay:
    return Replay(n_tokens=1, decode_us=0.0, prefill_us=0.0, cycles=cycles)


def test_each_part_is_what_it_says() -> None:
    # a plain step takes 100, each row and each draft 10 more, a rejection 5
    idle = losses_of(done(ReplayCycle(0, 3, 1, 1, 2)), COSTS, 100.0)
    assert idle.unverified == pytest.approx(0.2)
    assert idle.rejected == 0.0
    failed = losses_of(done(ReplayCycle(0, 4, 4, 1, 2)), COSTS, 100.0)
    assert failed.unverified == 0.0
    assert failed.rejected == pytest.approx(0.65)
    halves = losses_of(done(ReplayCycle(0, 1, 1, 1, 2), ReplayCycle(2, 1, 1, 1, 2)), COSTS, 160.0)
    assert (halves.unverified, halves.rejected) == (0.0, 0.0)
    assert halves.short == pytest.approx(240.0 / 160.0 - 1.0)


@pytest.mark.parametrize("policy", [FixedWidth(1), FixedWidth(4), p_min(0.7, 6)])
@pytest.mark.parametrize("trace", [recorded()[0].cut(128), trace_of((3, 2, 1, 0) * 20)])
def test_the_parts_add_up_to_the_time_beyond_the_clairvoyant(policy: WidthPolicy, trace: Trace) -> None:
    replayed = replay(trace, policy, Machine(COSTS))
    least_us = clairvoyant_us(trace, COSTS)
    found = losses_of(replayed, COSTS, least_us)
    assert found.total == pytest.approx(replayed.decode_us / least_us - 1.0)
    assert min(found.unverified, found.rejected) >= 0.0
    assert found.short >= -1e-12


def test_means_are_over_requests() -> None:
    assert mean_losses([]) is None
    assert mean_losses([Losses(0.0, 0.2, 0.4), Losses(0.2, 0.0, 0.0)]) == Losses(0.1, 0.1, 0.2)
