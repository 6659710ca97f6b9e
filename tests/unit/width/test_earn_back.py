"""When MTP has paid for what it adds to a prompt."""

from __future__ import annotations

import pytest

from pylucebox.width.breakeven import tokens_to_earn_back


def test_tokens_are_those_whose_savings_make_up_for_the_prompt() -> None:
    assert tokens_to_earn_back(100, 2.0, 50.0, 1 / 40.0) == pytest.approx(20.0)


def test_speed_of_plain_decoding_never_pays_whatever_rounding_says() -> None:
    speeds = [10.0 + 0.37 * i for i in range(2000)]
    assert any(plain_us - 1.0 / (1.0 / plain_us) > 0.0 for plain_us in speeds)
    assert all(tokens_to_earn_back(100, 2.0, plain_us, 1.0 / plain_us) is None for plain_us in speeds)
