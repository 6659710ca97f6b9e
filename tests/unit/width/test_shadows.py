"""Labels for drafts that were never verified."""

from __future__ import annotations

from typing import Any

import pytest

from pylucebox.width import CycleObservation
from pylucebox.width.calibration import Calibrator, log_odds
from pylucebox.width.sequence import SequenceState


def seen(k: int, held: int, drafts: tuple[int, ...], tokens: tuple[int, ...], **other: Any) -> CycleObservation:
    probs = tuple(0.1 * (depth + 1) for depth in range(len(drafts)))
    return CycleObservation(
        0, k + 1, len(drafts), held, probs, 1, 1, 0, k + 1, False, draft_tokens=drafts, tokens=tokens, **other
    )


def labels(state: SequenceState, observation: CycleObservation) -> list[tuple[int, bool]]:
    return [(label.depth, label.held) for label in state.labels(observation)]


def test_verified_drafts_are_labelled_up_to_the_first_that_fails() -> None:
    assert labels(SequenceState(), seen(4, 2, (1, 2, 9, 9), (1, 2, 3))) == [(0, True), (1, True), (2, False)]


def test_all_hold() -> None:
    assert labels(SequenceState(), seen(2, 2, (1, 2), (1, 2, 3))) == [(0, True), (1, True)]


def test_first_shadow_draft_is_labelled_by_the_cycle_itself_and_the_others_by_later_ones() -> None:
    state = SequenceState()
    assert labels(state, seen(1, 1, (1, 2, 3, 4, 9), (1, 2))) == [(0, True), (1, True)]
    assert labels(state, seen(0, 0, (), (3,))) == [(2, True)]
    assert labels(state, seen(1, 1, (4,), (4, 5))) == [(3, True), (4, False), (0, True)]
    assert not state.shadows


def test_shadow_drafts_behind_one_that_failed_have_no_label() -> None:
    state = SequenceState()
    assert labels(state, seen(1, 0, (9, 2, 3), (1,))) == [(0, False)]
    assert not state.shadows
    assert labels(state, seen(0, 0, (9, 3, 4), (2,))) == [(0, False)]
    assert not state.shadows


def test_several_chains_wait_side_by_side() -> None:
    state = SequenceState()
    assert labels(state, seen(0, 0, (1, 2, 3), (1,))) == [(0, True)]
    assert labels(state, seen(0, 0, (2, 9, 9), (2,))) == [(1, True), (0, True)]
    assert sorted(labels(state, seen(0, 0, (), (3,)))) == [(1, False), (2, True)]


def test_what_spoke_for_a_draft_stays_with_it() -> None:
    state = SequenceState()
    state.look(Calibrator(), (0.1, 0.2), (1, 2))
    list(state.labels(seen(0, 0, (1, 2), (1,))))
    state.plan(1, 7)
    (label,) = state.labels(seen(0, 0, (), (2,)))
    assert label.signs is not None
    assert label.signs.odds == pytest.approx(log_odds(0.2))


def test_nothing_is_learned_behind_an_end_token() -> None:
    # Two drafts held, the second is the end of the text: the third was neither right nor wrong.
    assert labels(SequenceState(), seen(3, 2, (1, 2, 3), (1, 2))) == [(0, True), (1, True)]


def test_engine_that_does_not_tell_tokens_gives_verified_labels_only() -> None:
    state = SequenceState()
    assert labels(state, seen(2, 1, (1, 9, 3), ())) == [(0, True), (1, False)]
    assert labels(state, seen(1, 1, (), ())) == [(0, True)]
    assert not state.shadows
