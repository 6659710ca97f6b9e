"""What a policy may think: a share of the cycles' time, and no more than some microseconds of each."""

from __future__ import annotations

import pytest

from pylucebox.width.thrift import Thrift

N_CYCLES = 20_000


def spent_us(cycle_us: float, full_us: float, light_us: float, n_active: int = 1) -> float:
    """Return what a policy takes of each cycle that costs so much when it thinks, and so much when it does not."""
    thrift, total = Thrift(), 0.0
    for _ in range(N_CYCLES):
        thrift.next_cycle()
        took_us = light_us if thrift.light else full_us
        thrift.spend(int(1000 * took_us))
        thrift.earn(cycle_us, n_active)
        total += took_us
    return total / N_CYCLES


@pytest.mark.parametrize("cycle_us", [1_000.0, 3_000.0])
def test_short_cycles_pay_a_hundredth(cycle_us: float) -> None:
    assert spent_us(cycle_us, full_us=80, light_us=5) == pytest.approx(cycle_us / 100, rel=0.02)


@pytest.mark.parametrize("n_active", [1, 4])
def test_long_cycles_pay_no_more_than_a_limit(n_active: int) -> None:
    spent = spent_us(1e6, full_us=200 * n_active, light_us=5, n_active=n_active)
    assert spent == pytest.approx(35 * n_active, rel=0.02)


def test_who_thinks_fast_thinks_in_every_cycle() -> None:
    assert spent_us(20_000, full_us=30, light_us=5) == 30


def test_what_is_dear_is_done_at_the_start_and_now_and_then() -> None:
    thrift = Thrift()
    dear = []
    for _ in range(256):
        thrift.next_cycle()
        dear.append(thrift.generous)
        thrift.spend(1000)
        thrift.earn(20_000, 1)
    assert all(dear[:64])
    assert sum(dear[64:]) == pytest.approx(192 / 6, abs=1)
