"""How often drafts hold."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pylucebox.width.acceptance import PRIOR, Acceptance, expected_tokens


def taught(*labels: tuple[int, bool], times: int = 1) -> Acceptance:
    acceptance = Acceptance()
    for _ in range(times):
        for depth, held in labels:
            acceptance.learn(depth, held)
    return acceptance


def test_expected_tokens_add_up_survival() -> None:
    assert expected_tokens([0.5, 0.5, 1.0]) == [1.0, 1.5, 1.75, 2.0]


def test_unknown_depth_is_guessed_from_the_one_before_it() -> None:
    rates = taught((0, True), times=60).rates()
    assert rates[0] > 0.95
    assert all(earlier > later for earlier, later in pairwise(rates))
    assert rates[6] > 0.75


def test_a_few_labels_override_the_guess() -> None:
    acceptance = taught((0, True), (1, True), (2, False), times=8)
    rates = acceptance.rates()
    assert rates[1] > 0.85
    assert rates[2] < 0.35


def test_short_memory_takes_over_when_the_text_changes() -> None:
    acceptance = taught((0, True), times=200)
    assert acceptance.short_share < 0.1
    for _ in range(8):
        acceptance.learn(0, False)
    assert acceptance.short_share > 0.5
    assert acceptance.rates()[0] < 0.65


def test_rates_stay_probabilities_whatever_was_seen() -> None:
    for held in (True, False):
        rates = taught(*[(depth, held) for depth in range(7)], times=500).rates()
        assert all(0.0 <= rate <= 1.0 for rate in rates)


@pytest.mark.parametrize("held", [False, True])
def test_successor_keeps_good_experience_only(held: bool) -> None:
    follows = taught(*[(depth, held) for depth in range(3)], times=100).successor().rates()
    if held:
        assert follows[0] > 0.9
    else:
        assert follows == Acceptance().rates()
    assert follows[0] >= PRIOR


def test_successor_weighs_little() -> None:
    follows = taught((0, True), times=500).successor()
    for _ in range(10):
        follows.learn(0, False)
    assert follows.rates()[0] < 0.6


def test_successor_of_a_text_that_had_just_changed_starts_afresh() -> None:
    acceptance = taught((0, False), times=100)
    for _ in range(12):
        acceptance.learn(0, True)
    assert acceptance.short_share > 0.5
    assert acceptance.successor().rates() == Acceptance().rates()
