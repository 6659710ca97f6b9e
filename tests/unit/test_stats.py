"""Statistics: what counts as a draft, per-depth figures, sums, and unknown figures."""

from __future__ import annotations

import json

import pytest

from pylucebox._stats import MAX_DRAFT, RequestStats, SpecStats, StatsAccumulator


def three_cycles() -> RequestStats:
    """Two cycles of three drafts (3 and 1 held) and one without drafts."""
    stats = StatsAccumulator()
    stats.add_prefill(n_tokens=10, wall_us=5_000)
    stats.add_cycle(n_tokens=4, n_drafted=3, n_accepted=3, wall_us=4_000, draft_us=1_000, verify_us=2_500)
    stats.add_cycle(n_tokens=2, n_drafted=3, n_accepted=1, wall_us=4_000, rollback_us=500, graph_built=True)
    stats.add_cycle(n_tokens=1, n_drafted=0, n_accepted=0, wall_us=2_000, sample_us=100)
    stats.add_delivered(8)
    return stats.snapshot()


def test_counts_of_a_request() -> None:
    stats = three_cycles()
    assert (stats.prompt_tokens, stats.completion_tokens, stats.decode_tokens) == (10, 8, 7)
    assert (stats.cycles, stats.num_drafts, stats.graphs_built) == (3, 2, 1)
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (6, 4)


def test_only_cycles_with_drafts_enter_the_acceptance_length() -> None:
    stats = three_cycles()
    assert stats.mean_acceptance_length == 1 + 4 / 2
    assert stats.acceptance_rate == 4 / 6


def test_figures_per_depth() -> None:
    stats = three_cycles()
    assert stats.num_draft_tokens_per_pos == (2, 2, 2, 0, 0, 0, 0)
    assert stats.num_accepted_tokens_per_pos == (2, 1, 1, 0, 0, 0, 0)
    assert stats.acceptance_per_pos == (1.0, 0.5, 0.5, None, None, None, None)


def test_speed_counts_the_tokens_that_cycles_made() -> None:
    stats = three_cycles()
    assert stats.decode_ms == 10
    assert stats.tokens_per_s == 700
    assert stats.prefill_tokens_per_s == 2000


def test_parts_of_the_time_are_in_milliseconds() -> None:
    stats = three_cycles()
    assert (stats.draft_ms, stats.verify_ms, stats.rollback_ms, stats.sample_ms) == (1, 2.5, 0.5, 0.1)


def test_figures_without_data_are_none_not_zero() -> None:
    stats = RequestStats()
    assert stats.mean_acceptance_length is None
    assert stats.acceptance_rate is None
    assert stats.tokens_per_s is None
    assert stats.acceptance_per_pos == (None,) * MAX_DRAFT


@pytest.mark.parametrize(
    ("n_tokens", "n_drafted", "n_accepted"), [(2, 1, 2), (1, 8, 0), (3, 1, 1), (0, 1, 0), (1, 1, -1)]
)
def test_impossible_cycles_are_refused_and_leave_no_trace(n_tokens: int, n_drafted: int, n_accepted: int) -> None:
    stats = StatsAccumulator()
    with pytest.raises(ValueError, match="impossible"):
        stats.add_cycle(n_tokens=n_tokens, n_drafted=n_drafted, n_accepted=n_accepted, wall_us=1)
    assert stats.snapshot() == RequestStats()


def test_cycle_cut_by_the_token_limit_is_possible() -> None:
    stats = StatsAccumulator()
    stats.add_cycle(n_tokens=2, n_drafted=3, n_accepted=3, wall_us=1)
    assert stats.snapshot().decode_tokens == 2


def test_snapshot_does_not_change_later() -> None:
    stats = StatsAccumulator()
    before = stats.snapshot()
    stats.add_cycle(n_tokens=1, n_drafted=1, n_accepted=0, wall_us=1)
    assert before == RequestStats()


def test_sums_of_requests_add_every_count() -> None:
    one = three_cycles()
    total = SpecStats().merge(one).merge(one)
    assert total.requests == 2
    assert total.num_accepted_tokens_per_pos == (4, 2, 2, 0, 0, 0, 0)
    assert total.decode_ms == 20
    assert total.tokens_per_s == one.tokens_per_s
    assert total.merge(total).requests == 4


def test_json_has_the_same_keys_with_and_without_data() -> None:
    empty, full = RequestStats().as_dict(), three_cycles().as_dict()
    assert empty.keys() == full.keys()
    assert json.loads(json.dumps(full)) == full
    assert empty["mean_acceptance_length"] is None
    assert full["acceptance_per_pos"][:2] == [1.0, 0.5]
    assert SpecStats().as_dict()["requests"] == 0


def test_conditional_acceptance_counts_only_depths_that_were_reached() -> None:
    stats = StatsAccumulator()
    for n_verified, n_accepted in ((3, 3), (3, 1), (3, 0), (1, 1), (0, 0)):
        stats.add_cycle(n_tokens=1, n_drafted=n_verified, n_accepted=n_accepted, wall_us=1)
    found = stats.snapshot()
    assert found.num_reached_per_pos == (4, 2, 1, 0, 0, 0, 0)
    assert found.conditional_acceptance_per_pos == (0.75, 0.5, 1.0, None, None, None, None)
    assert found.acceptance_per_pos == (0.75, 1 / 3, 1 / 3, None, None, None, None)
    assert found.verified_histogram == found.drafted_histogram == (1, 1, 0, 3, 0, 0, 0, 0)


def test_drafts_that_were_not_verified_are_no_rejections() -> None:
    stats = StatsAccumulator()
    stats.add_cycle(n_tokens=2, n_drafted=7, n_verified=1, n_accepted=1, wall_us=1)
    stats.add_cycle(n_tokens=1, n_drafted=4, n_verified=0, n_accepted=0, wall_us=1)
    found = stats.snapshot()
    assert (found.num_draft_tokens, found.num_shadow_draft_tokens, found.num_drafts) == (1, 10, 1)
    assert found.acceptance_rate == 1.0
    assert found.verified_histogram == (1, 1, 0, 0, 0, 0, 0, 0)
    assert found.drafted_histogram == (0, 0, 0, 0, 1, 0, 0, 1)
    with pytest.raises(ValueError, match="impossible"):
        stats.add_cycle(n_tokens=1, n_drafted=2, n_verified=3, n_accepted=0, wall_us=1)
