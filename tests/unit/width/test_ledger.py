"""What may be lost against plain decoding, and what exploration may spend."""

from __future__ import annotations

from pylucebox.width.exploration import Credits
from pylucebox.width.ledger import Ledger


def test_four_steps_may_be_lost_at_first_and_less_than_two_percent_later() -> None:
    ledger = Ledger()
    assert ledger.room_us(100.0) == 400.0
    for _ in range(100):
        ledger.plain(0.0, 1, 100.0)
    assert 500 < ledger.room_us(100.0) < 600


def test_losses_and_gains_are_entered() -> None:
    ledger = Ledger()
    ledger.drafted(350.0, 1, 100.0)
    assert ledger.lost_us == ledger.worst_us == 250.0
    assert 150 < ledger.room_us(100.0) < 152
    ledger.drafted(250.0, 5, 100.0)
    assert ledger.lost_us == 0.0
    assert ledger.worst_us == 250.0


def test_plain_cycles_cost_nothing_but_their_drafts() -> None:
    ledger = Ledger()
    for _ in range(1000):
        ledger.plain(0.0, 1, 99.0)  # a little below what they really take
    assert ledger.lost_us == 0.0
    ledger.plain(5.0, 1, 99.0)
    assert ledger.lost_us == 5.0


def test_gains_of_a_long_request_cannot_all_be_lost_again() -> None:
    ledger = Ledger()
    for _ in range(1000):
        ledger.drafted(100.0, 4, 100.0)
    assert ledger.room_us(1.0) < 40.0


def test_credits_are_earned_and_spent() -> None:
    saved = Credits()
    assert not saved.pay_floor(1.0)
    saved.earn(1000.0, 50.0)
    assert saved.pay_floor(6.0)
    assert not saved.pay_floor(1.0)
    assert saved.pay_floor(1.0, debt_us=2.0)
    assert saved.pay_value(3.0)
    assert not saved.pay_value(1.0)
    assert saved.spent_us == 10.0


def test_credits_do_not_pile_up() -> None:
    saved = Credits()
    for _ in range(10_000):
        saved.earn(1000.0, 50.0)
    assert saved.floor_us == saved.value_us == 50.0
