"""Two sessions side by side."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pylucebox import EnvironmentMismatchError
from pylucebox.ab import compare as subject
from pylucebox.ab.compare import Change, Comparison, compare, render
from pylucebox.ab.records import Arm
from pylucebox.ab.store import Session

from ._report_sessions import ARMS, ENV, WORKLOADS, Effect, session, workload

WORKS = WORKLOADS[:2]
COUNT, JSON = (work.name for work in WORKS)


def made(seed: int, *, env: dict[str, Any] | None = None, count: float = 1.4, **effects: Effect) -> Session:
    """Make a session of two workloads and one arm; `effects` name another effect of the JSON workload's arm."""
    both = {(COUNT, "k3"): Effect(count), (JSON, "k3"): effects.get("json", Effect(1.2))}
    done, _ = session(both, workloads=WORKS, arms=ARMS[:2], seed=seed)
    return replace(done, env=env or ENV)


def changed(field: str, value: object, group: str = "comparable") -> dict[str, Any]:
    env = json.loads(json.dumps(ENV))
    env.setdefault(group, {})[field] = value
    return env


def by_workload(comparison: Comparison) -> dict[str, Change]:
    return {change.workload: change for change in comparison.changes}


def test_sessions_of_the_same_thing_show_no_change() -> None:
    found = compare(made(1), made(2))
    assert [change.verdict for change in found.changes] == ["UNRESOLVED", "UNRESOLVED"]
    assert all(change.change == pytest.approx(1.0, abs=0.01) for change in found.changes)
    assert any("same builds" in caution for caution in found.cautions)


def test_ratio_that_rose_is_found_and_the_other_is_not() -> None:
    found = by_workload(compare(made(1), made(2, count=1.5)))
    assert found[COUNT].verdict == "ROSE"
    assert found[COUNT].change == pytest.approx(1.5 / 1.4, rel=0.01)
    assert found[COUNT].low is not None
    assert found[COUNT].low > 1.0
    assert found[JSON].verdict == "UNRESOLVED"
    assert by_workload(compare(made(2, count=1.5), made(1)))[COUNT].verdict == "FELL"


def test_faster_machine_changes_speeds_but_no_verdict() -> None:
    new = made(2)
    quick = tuple(
        replace(run, decode_tok_s=(run.decode_tok_s or 0) * 1.3, client_tok_s=(run.client_tok_s or 0) * 1.3)
        for run in new.runs
    )
    found = compare(made(1), replace(new, runs=quick, summary=None))
    assert {change.verdict for change in found.changes} == {"UNRESOLVED"}
    assert found.sentinel_change == pytest.approx(0.3, abs=0.02)
    assert any("+30" in caution or "+29" in caution for caution in found.cautions)


@pytest.mark.parametrize(
    ("field", "value"),
    [("cpu", "another"), ("governor", None), ("devices", ["CPU", "GPU"]), ("files", [{"sha256": "x"}])],
)
def test_unlike_environments_are_refused_by_field(field: str, value: object) -> None:
    with pytest.raises(EnvironmentMismatchError, match=field) as caught:
        compare(made(1), made(2, env=changed(field, value)))
    assert [name for name, _, _ in caught.value.differences] == [field]


def test_nested_field_is_named_with_its_path() -> None:
    with pytest.raises(EnvironmentMismatchError) as caught:
        compare(made(1), made(2, env=changed("package", {"version": "0.1.0", "series": "other"})))
    assert caught.value.differences == (("package.series", "cd160f", "other"),)


def test_other_baseline_is_refused() -> None:
    new, _ = session({}, workloads=WORKS, arms=(replace(ARMS[0], name="none"), ARMS[1]))
    with pytest.raises(EnvironmentMismatchError) as caught:
        compare(made(1), new)
    assert ("baseline", "off", "none") in caught.value.differences


def test_other_build_is_compared_and_named() -> None:
    found = compare(
        made(1, env=changed("series_hash", "a", "build")), made(2, env=changed("series_hash", "b", "build"))
    )
    assert found.build_differences == (("series_hash", "a", "b"),)
    assert any("which of them moved" in caution for caution in found.cautions)


def test_workloads_of_one_session_only_are_listed() -> None:
    more, _ = session({}, workloads=(*WORKS, workload("extra")), arms=ARMS[:2], seed=3)
    found = compare(made(1), more)
    assert found.only_new == ("extra",)
    assert found.only_old == ()
    assert {change.workload for change in found.changes} == {COUNT, JSON}
    assert "only in the new session: extra" in render(found)


def test_workload_of_another_text_is_not_compared() -> None:
    new = made(2)
    works = tuple(replace(work, n_ctx=1024) if work.name == JSON else work for work in new.plan.suite.workloads)
    plan = replace(new.plan, suite=replace(new.plan.suite, workloads=works))
    found = by_workload(compare(made(1), replace(new, plan=plan)))
    assert found[JSON].verdict == "NOT COMPARED"
    assert "another text" in found[JSON].reason
    assert found[COUNT].verdict == "UNRESOLVED"


def test_output_that_differs_between_sessions_is_not_compared() -> None:
    new = made(2)
    other = tuple(
        replace(run, sequences=tuple(replace(each, token_sha256="f" * 64) for each in run.sequences))
        for run in new.runs
    )
    found = compare(made(1), replace(new, runs=other, summary=None))
    assert {change.verdict for change in found.changes} == {"NOT COMPARED"}
    assert "different texts" in found.changes[0].reason


def test_row_that_diverged_or_is_invalid_is_not_compared() -> None:
    found = by_workload(compare(made(1), made(2, json=Effect(1.2, diverged_at=17))))
    assert found[JSON].reason.startswith("DIVERGED in the new session")
    found = by_workload(compare(made(1, json=Effect(1.2, issue="died")), made(2)))
    assert found[JSON].reason.startswith("INVALID in the old session")


def test_settings_that_changed_under_the_same_name_are_told() -> None:
    arms = (ARMS[0], Arm(name="k3", kind="engine", widths=(3,), options={"verify_width": 3}))
    new, _ = session({}, workloads=WORKS, arms=arms, seed=2)
    assert any("other settings" in caution and "k3" in caution for caution in compare(made(1), new).cautions)


def test_unfinished_session_is_told() -> None:
    new, _ = session({}, workloads=WORKS, arms=ARMS[:2], seed=2, complete=False, stopped="the disk is full")
    assert any("the disk is full" in caution for caution in compare(made(1), new).cautions)


def test_text_has_every_row_and_says_what_it_cannot_tell() -> None:
    text = render(compare(made(1), made(2, count=1.5)))
    for expected in (COUNT, JSON, "ROSE", "UNRESOLVED", "What this cannot tell:", "not judged"):
        assert expected in text
    assert all(line.isprintable() for line in text.splitlines())


def test_hostile_names_cannot_move_the_cursor() -> None:
    arms = (ARMS[0], replace(ARMS[1], name="k3\x1b[2J"))
    sessions = [session({}, workloads=WORKS, arms=arms, seed=seed)[0] for seed in (1, 2)]
    text = render(compare(*sessions))
    assert "\x1b" not in text


def test_comparison_survives_json() -> None:
    found = compare(made(1), made(2))
    assert Comparison.from_dict(json.loads(json.dumps(found.as_dict(), allow_nan=False))) == found


def test_permutation_test_counts_all_splits_of_few_pairs() -> None:
    rng = np.random.default_rng(1)
    # Of the 20 ways to split six values three by three, two are as extreme as the one that separates them.
    assert subject._permutation_p([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], rng) == pytest.approx(0.1)
    assert subject._permutation_p([1.0, 1.0], [1.0, 1.0], rng) == 1.0


def test_permutation_test_keeps_its_level() -> None:
    draws, rng = random.Random(7), np.random.default_rng(7)
    p_values = [
        subject._permutation_p([draws.gauss(0, 1) for _ in range(9)], [draws.gauss(0, 1) for _ in range(9)], rng)
        for _ in range(150)
    ]
    # 150 draws at 5 % give more than 15 in less than one of 500 tries.
    assert sum(p <= 0.05 for p in p_values) <= 15
    assert all(0 < p <= 1 and math.isfinite(p) for p in p_values)
