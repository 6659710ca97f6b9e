"""What a policy may think: a share of the cycles' time, and no more than some microseconds of each."""

from __future__ import annotations

import pytest

from pylucebox.width.thrift import Thrift

N_CYCLES = 20_000


def spent_us(cycle_us: float, full_us: float, light_us: float) -> float:
    """Return what a policy takes of each cycle that costs so much when it thinks, and so much when it does not."""
    thrift, total = Thrift(), 0.0
    for _ in range(N_CYCLES):
        thrift.next_cycle()
        took_us = light_us if thrift.light else full_us
        thrift.spend(int(1000 * took_us))
        thrift.earn(cycle_us)
        total += took_us
    return total / N_CYCLES


@pytest.mark.parametrize("cycle_us", [1_000.0, 3_000.0])
def test_short_cycles_pay_a_hundredth(cycle_us: float) -> None:
    assert spent_us(cycle_us, full_us=80, light_us=5) == pytest.approx(cycle_us / 100, rel=0.02)


@pytest.mark.parametrize("full_us", [200, 800])
def test_long_cycles_pay_no_more_than_a_limit(full_us: float) -> None:
    """However many sequences there are to think about."""
    assert spent_us(1e6, full_us=full_us, light_us=5) == pytest.approx(32, rel=0.02)


def test_who_cannot_afford_any_thought_thinks_now_and_then() -> None:
    """Or what was thought last would hold for ever."""
    thrift = Thrift()
    thoughts = []
    for _ in range(N_CYCLES):
        thrift.next_cycle()
        thoughts.append(not thrift.light)
        thrift.spend(60_000)
        thrift.earn(1_000)
    assert sum(thoughts[1000:]) == pytest.approx(len(thoughts[1000:]) / 33, abs=2)


def test_who_thinks_fast_thinks_in_every_cycle() -> None:
    assert spent_us(20_000, full_us=30, light_us=5) == 30


def test_what_is_dear_is_done_at_the_start_and_now_and_then() -> None:
    thrift = Thrift()
    dear = []
    for _ in range(256):
        thrift.next_cycle()
        dear.append(thrift.generous)
        thrift.spend(1000)
        thrift.earn(20_000)
    assert all(dear[:64])
    assert sum(dear[64:]) == pytest.approx(192 / 6, abs=1)
