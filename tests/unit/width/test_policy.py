"""What engines and policies tell each other, and the costs of a machine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pylucebox._errors import InvalidArgumentError
from pylucebox.width import AdaptiveWidth, CycleObservation, DraftPolicy, FixedWidth, WidthCosts, WidthPolicy

from ._drive import STEEP


def test_observation_of_an_engine_without_shadow_drafts_verified_all() -> None:
    seen = CycleObservation(0, 4, 3, 2, (0.9, 0.8, 0.7), 1, 2, 3, 4, False)
    assert (seen.n_verified, seen.tokens, seen.draft_tokens, seen.n_active) == (3, (), (), 1)
    assert seen._replace(n_drafted=5).n_verified == 3


def test_fixed_width_only_chooses_and_the_adaptive_one_plans() -> None:
    assert isinstance(FixedWidth(2), WidthPolicy)
    assert not isinstance(FixedWidth(2), DraftPolicy)
    assert isinstance(AdaptiveWidth(), DraftPolicy)


def test_costs_survive_json() -> None:
    assert WidthCosts.from_dict(json.loads(json.dumps(STEEP.as_dict()))) == STEEP


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("verify_us", (1.0,) * 7),
        ("verify_us", (1.0,) * 7 + (0.0,)),
        ("verify_us", (1.0,) * 7 + (float("nan"),)),
        ("draft_us", (1.0,) * 6 + ("2",)),
        ("draft_us", (1.0,) * 6 + (True,)),
        ("reject_us", -1.0),
        ("mtp_prefill_us_per_token", float("inf")),
        ("n_past", None),
    ],
)
def test_costs_that_are_none_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        replace(STEEP, **{name: value})
    assert caught.value.argument == name


@pytest.mark.parametrize("stored", [{}, {"verify_us": 3}, {**STEEP.as_dict(), "draft_us": None}])
def test_stored_costs_that_are_none_are_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        WidthCosts.from_dict(stored)
