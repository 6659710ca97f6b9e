"""The harness as a whole on a scripted clock: what it claims, how often, and what it refuses to claim."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from pylucebox.ab import stats
from pylucebox.ab.planner import Wishes
from pylucebox.ab.power_table import Case, as_markdown, cases, run_case
from pylucebox.ab.results import Row, Summary
from pylucebox.ab.simulate import Behaviour, Simulated, World, example_session, simulate

N_SESSIONS = 500


def summary_of(done: Simulated) -> Summary:
    assert done.session.summary is not None
    return done.session.summary


def rows_of(done: Simulated) -> dict[tuple[str, str], Row]:
    return {(row.workload, row.arm): row for workload in summary_of(done).workloads for row in workload.rows}


@pytest.mark.parametrize(
    "name",
    [
        "no effect, 1 row",
        "the same without a sentinel",
        "no effect, first run takes twice the time",
        "no effect, 5 % of runs take 1.5 times the time",
        "+2 %, 1 row",
    ],
)
def test_claims_and_promises_are_kept_in_500_sessions(name: str) -> None:
    case = next(case for case in cases() if case.name == name)
    result = run_case(case, N_SESSIONS, n_resamples=300)
    assert result.wrong <= 0.05
    assert result.holds


def test_a_wrong_statistic_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits bite: without test, noise floor and interval, no effect is claimed to be one far too often."""
    monkeypatch.setattr(stats, "sign_flip_p", Mock(return_value=0.0))
    monkeypatch.setattr(stats, "noise_floor", Mock(return_value=0.0))
    monkeypatch.setattr(stats.Interval, "excludes", Mock(return_value=True))
    case = Case(name="no effect", world=World(sigma=0.03))
    result = run_case(case, 50, n_resamples=300)
    assert not result.holds


def test_planned_effect_size_takes_more_pairs_for_a_smaller_effect() -> None:
    arms = {"a": Behaviour(), "b": Behaviour()}
    pairs = {
        effect: simulate(
            arms, seed=3, world=World(sigma=0.01), wishes=Wishes(detect=effect, n_resamples=200)
        ).session.plan.n_pairs
        for effect in (0.05, 0.01)
    }
    assert 6 <= pairs[0.05] < pairs[0.01]


def test_diverging_arm_is_caught_at_its_first_token() -> None:
    done = example_session("diverged")
    for (_, arm), row in rows_of(done).items():
        if arm == "k3":
            assert (row.verdict, row.diverged_at) == ("DIVERGED", 70)
            assert row.identity == "differs at token 70"
        else:
            assert row.verdict == "SLOWER"
    assert summary_of(done).exit_code == 2
    diverged = [run for run in done.session.runs if run.arm == "k3" and run.phase == "main"]
    same = [run for run in done.session.runs if run.arm == "k1" and run.phase == "main"]
    # The prefix hashes bound it too: the first 64 tokens agree, the first 128 do not.
    ours, theirs = diverged[0].sequences[0].prefix_sha256, same[0].sequences[0].prefix_sha256
    assert len(ours) == len(theirs) == 3
    assert (ours[0] == theirs[0], ours[1] == theirs[1]) == (True, False)


def test_divergence_of_the_last_token_and_of_the_first_are_both_found() -> None:
    for at in (0, 15):
        arms = {"base": Behaviour(), "other": Behaviour(diverges_at=at)}
        row = rows_of(simulate(arms, seed=1, n_tokens=16))["text-0", "other"]
        assert (row.verdict, row.diverged_at) == ("DIVERGED", at)


def test_cached_prompt_invalidates_every_run_of_the_arm() -> None:
    done = example_session("invalid")
    rows = rows_of(done)
    assert {row.verdict for (_, arm), row in rows.items() if arm == "k3"} == {"INVALID"}
    assert all("cached_prompt" in row.reason for (_, arm), row in rows.items() if arm == "k3")
    assert {row.verdict for (_, arm), row in rows.items() if arm == "k1"} == {"SLOWER"}
    assert summary_of(done).exit_code == 4


def test_same_arm_twice_is_equivalent_and_never_faster() -> None:
    rows = rows_of(example_session("aa"))
    assert {row.verdict for (_, arm), row in rows.items() if arm == "k3"} <= {"EQUIVALENT", "UNRESOLVED"}


def test_unsteady_machine_forbids_claims() -> None:
    arms = {"base": Behaviour(), "fast": Behaviour(effect=0.3)}
    done = simulate(arms, seed=2, world=World(drift=0.2), n_workloads=2)
    sentinel = summary_of(done).sentinel
    assert sentinel is not None
    assert not sentinel.ok
    assert {row.verdict for row in rows_of(done).values()} == {"UNRESOLVED"}
    assert all("else FASTER" in row.reason for row in rows_of(done).values())


def test_too_few_pairs_never_claim_whatever_they_show() -> None:
    arms = {"base": Behaviour(), "fast": Behaviour(effect=0.5)}
    for n_pairs in (1, 3, 5):
        row = rows_of(simulate(arms, seed=1, wishes=Wishes(n_pairs=n_pairs, n_resamples=200)))["text-0", "fast"]
        assert row.verdict == "UNRESOLVED"
        assert (row.t_low is None) == (n_pairs < 2)
    row = rows_of(simulate(arms, seed=1, wishes=Wishes(n_pairs=8, n_resamples=200)))["text-0", "fast"]
    assert (row.verdict, row.t_low) == ("FASTER", None)


def test_same_seed_gives_the_same_summary() -> None:
    arms = {"base": Behaviour(), "other": Behaviour(effect=0.01)}
    assert summary_of(simulate(arms, seed=5)) == summary_of(simulate(arms, seed=5))


def test_pooled_row_follows_its_rows() -> None:
    pooled = {row.arm: row for row in summary_of(example_session("faster")).pooled}
    assert pooled["k3"].verdict == "FASTER"
    assert pooled["k3"].n_workloads == 3
    assert pooled["k3"].ratio == pytest.approx(1.2, abs=0.01)
    assert pooled["k1"].verdict == "SLOWER"


def test_blocks_show_equal_gain_everywhere() -> None:
    row = rows_of(example_session("faster"))["text-0", "k3"]
    assert len(row.block_ratio) == 3
    assert all(ratio == pytest.approx(1.2, abs=0.02) for ratio in row.block_ratio)


def test_tables_name_every_case() -> None:
    results = [run_case(case, 2, n_resamples=50) for case in cases()[:2]]
    text = as_markdown(results, 2)
    assert cases()[0].name in text
    assert cases()[1].name in text
    assert "| 8 | 0.0078 |" in text
