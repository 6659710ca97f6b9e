"""Two sessions of `lucebox ab` side by side, and what cannot be concluded from that.

Within a session an arm is compared with the baseline of the same minutes. Across sessions only these ratios can be
compared; absolute speeds are shown and not judged, because nothing that was measured tells the software's part in their
difference from that of clocks, temperature and other load.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from pylucebox.ab import stats, wording
from pylucebox.ab.codec import Record
from pylucebox.ab.environment import differences
from pylucebox.ab.errors import EnvironmentMismatchError
from pylucebox.ab.power import ALPHA
from pylucebox.ab.records import RunRecord
from pylucebox.ab.results import SCHEMA, ArmFigures, Row, Summary, Verdict
from pylucebox.ab.store import Session
from pylucebox.ab.validity import same_text
from pylucebox.ab.verdict import final_runs, summarise
from pylucebox.cli._table import Table, plain_lines

__all__ = ["Change", "Comparison", "compare", "render"]

ROSE, FELL, UNRESOLVED, NOT_COMPARED = "ROSE", "FELL", "UNRESOLVED", "NOT COMPARED"

_MOST_SPLITS: Final = 20_000
"""Splits of the pairs that are tried one by one; of more, as many are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Record):
    """One arm on one workload in both sessions.

    Attributes
    ----------
    workload, arm
        Names.
    verdict
        ``"ROSE"`` or ``"FELL"``: the arm's ratio to the baseline did; ``"UNRESOLVED"``; ``"NOT COMPARED"``.
    reason
        Why, in one sentence.
    old_ratio, new_ratio
        Of the arm to the baseline, in each session.
    change, low, high
        New over old ratio with its 95 % interval.
    p, p_holm
        Two-sided permutation test, raw and after Holm over the table.
    old_tok_s, new_tok_s
        Median speeds of the arm; not judged.
    """

    workload: str
    arm: str
    verdict: str
    reason: str
    old_ratio: float | None = None
    new_ratio: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    old_tok_s: float | None = None
    new_tok_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Record):
    """Two sessions side by side.

    Attributes
    ----------
    baseline
        Arm that both sessions compare with.
    changes
        Workloads and arms that both sessions have.
    only_old, only_new
        Workloads that one session lacks.
    build_differences
        What is not the same about the software: field, old and new value.
    sentinel_change
        Speed of the sentinel in the new session over that in the old one, less 1; None when one had none.
    cautions
        What cannot be concluded, one sentence each.
    """

    baseline: str
    changes: tuple[Change, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    build_differences: tuple[tuple[str, str, str], ...]
    sentinel_change: float | None
    cautions: tuple[str, ...]
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two sessions."""

    session: Session
    summary: Summary
    runs: tuple[RunRecord, ...]

    def row(self, workload: str, arm: str) -> Row:
        return next(
            row for each in self.summary.workloads for row in each.rows if (row.workload, row.arm) == (workload, arm)
        )

    def figures(self, workload: str, arm: str) -> ArmFigures:
        each = next(each for each in self.summary.workloads if each.workload == workload)
        return next(figures for figures in each.figures if figures.arm == arm)

    def valid(self, workload: str, arm: str) -> dict[int, RunRecord]:
        """Return the valid runs of the main phase by block."""
        return {
            run.block: run
            for run in self.runs
            if (run.phase, run.workload, run.arm) == ("main", workload, arm) and run.valid
        }

    def responses(self, workload: str, arm: str, clock: str) -> list[float]:
        """Return ln(speed of the arm / speed of the baseline) of each pair."""
        base, test = self.valid(workload, self.session.plan.baseline), self.valid(workload, arm)
        pairs = [
            (_speed(base[block], clock), _speed(test[block], clock)) for block in sorted(base.keys() & test.keys())
        ]
        return [math.log(second / first) for first, second in pairs if first and second]


def _speed(run: RunRecord, clock: str) -> float | None:
    return run.decode_tok_s if clock == "engine" else run.client_tok_s


def _side(session: Session) -> _Side:
    summary = session.summary or summarise(session.plan, session.env, session.runs, complete=False)
    return _Side(session, summary, tuple(final_runs(session.runs)))


def compare(old: Session, new: Session) -> Comparison:
    """Compare two sessions.

    Parameters
    ----------
    old, new
        Sessions, concluded or not.

    Raises
    ------
    EnvironmentMismatchError
        They were not measured under the same conditions, a workload of the same name is another text, or they compare
        with different baselines. `differences` names each field.
    """
    _require_alike(old, new)
    before, after = _side(old), _side(new)
    old_names, new_names = ([each.name for each in one.plan.suite.workloads] for one in (old, new))
    shared = [row for row in new.plan.rows if row in set(old.plan.rows)]
    changes = _judged([_change(before, after, workload, arm) for workload, arm in shared], before, after)
    builds = tuple(
        (field, str(was), str(now))
        for field, was, now in differences(old.env.get("build") or {}, new.env.get("build") or {})
    )
    sentinel_change = _sentinel_change(before, after)
    return Comparison(
        baseline=new.plan.baseline,
        changes=changes,
        only_old=tuple(name for name in old_names if name not in new_names),
        only_new=tuple(name for name in new_names if name not in old_names),
        build_differences=builds,
        sentinel_change=sentinel_change,
        cautions=_cautions(before, after, is_same_build=not builds, sentinel_change=sentinel_change),
    )


def _require_alike(old: Session, new: Session) -> None:
    was, now = (_conditions(session) for session in (old, new))
    found = differences(was, now)
    if found:
        raise EnvironmentMismatchError(
            "the sessions cannot be compared",
            differences=found,
            advice="Measure both under the same conditions, best as two arms of one session.",
        )


def _conditions(session: Session) -> dict[str, Any]:
    """Return what must agree. Workloads are looked at one by one, since a session may have more than the other."""
    comparable = session.env.get("comparable")
    fields = dict(comparable) if isinstance(comparable, Mapping) else {}
    fields.pop("suite", None)
    fields.pop("workloads", None)
    return {**fields, "baseline": session.plan.baseline, "isolation": session.plan.isolation}


def _change(before: _Side, after: _Side, workload: str, arm: str) -> Change:
    blank = Change(
        workload=workload,
        arm=arm,
        verdict=NOT_COMPARED,
        reason="",
        old_ratio=before.row(workload, arm).ratio,
        new_ratio=after.row(workload, arm).ratio,
        old_tok_s=before.figures(workload, arm).median_tok_s,
        new_tok_s=after.figures(workload, arm).median_tok_s,
    )
    reason = _incomparable(before, after, workload, arm)
    if reason:
        return replace(blank, reason=reason)
    clock = after.row(workload, arm).clock
    was, now = before.responses(workload, arm, clock), after.responses(workload, arm, clock)
    rng = np.random.default_rng([before.session.plan.seed, after.session.plan.seed, *workload.encode(), *arm.encode()])
    n_resamples = after.session.plan.n_resamples
    drawn = [rng.permutation(stats.bootstrap_medians(each, n_resamples, rng)) for each in (was, now)]
    interval = stats.percentile_interval(np.sort(drawn[1] - drawn[0]), 0.95)
    return replace(
        blank,
        change=math.exp(statistics.median(now) - statistics.median(was)),
        low=math.exp(interval.low),
        high=math.exp(interval.high),
        p=_permutation_p(was, now, rng),
    )


def _incomparable(before: _Side, after: _Side, workload: str, arm: str) -> str | None:
    """Say why a row cannot be compared; None when it can."""
    texts = (before.session.plan.workload(workload), after.session.plan.workload(workload))
    if texts[0].sha256 != texts[1].sha256:
        return "the workload of this name is another text in each session"
    for name, side in (("old", before), ("new", after)):
        row = side.row(workload, arm)
        if row.verdict in (Verdict.DIVERGED.value, Verdict.INVALID.value):
            return f"{row.verdict} in the {name} session: {row.reason}"
        if not side.responses(workload, arm, row.clock):
            return f"no valid pair in the {name} session"
    if before.row(workload, arm).clock != after.row(workload, arm).clock:
        return "one session has the engine's own times, the other only those of the client"
    samples = [next(iter(side.valid(workload, arm).values())) for side in (before, after)]
    if not same_text(*samples):
        return "the sessions produced different texts, so they did different work"
    return None


def _permutation_p(was: Sequence[float], now: Sequence[float], rng: np.random.Generator) -> float:
    """Return how often a random split of all pairs into two sessions makes their means differ at least so much."""
    pooled = np.asarray([*was, *now])
    n_old, n_all = len(was), len(was) + len(now)
    n_splits = math.comb(n_all, n_old)
    if n_splits <= _MOST_SPLITS:
        chosen = np.asarray(list(itertools.combinations(range(n_all), n_old)))
    else:
        chosen = np.argsort(rng.random((_MOST_SPLITS, n_all)), axis=1)[:, :n_old]
    sums = pooled[chosen].sum(axis=1)
    gaps = np.abs(sums / n_old - (pooled.sum() - sums) / (n_all - n_old))
    seen = abs(statistics.fmean(was) - statistics.fmean(now))
    n_extreme = int(np.count_nonzero(gaps >= seen - 1e-12))
    if n_splits <= _MOST_SPLITS:
        return n_extreme / n_splits
    return (n_extreme + 1) / (_MOST_SPLITS + 1)  # the split that was seen is one of those that could have been drawn


def _judged(changes: Sequence[Change], before: _Side, after: _Side) -> tuple[Change, ...]:
    tested = [change for change in changes if change.p is not None]
    adjusted = iter(stats.holm([change.p for change in tested if change.p is not None]))
    floor = _joint_floor(before, after)
    steady = all(side.summary.sentinel is None or side.summary.sentinel.ok for side in (before, after))
    return tuple(
        change if change.p is None else _verdict(replace(change, p_holm=next(adjusted)), floor, steady=steady)
        for change in changes
    )


def _joint_floor(before: _Side, after: _Side) -> float | None:
    """Return the log ratio that the noise of both sessions explains; None when one is not known."""
    floors = [side.summary.noise.floor for side in (before, after) if side.summary.noise is not None]
    return math.hypot(*(math.log1p(floor) for floor in floors)) if len(floors) == 2 else None


def _verdict(change: Change, floor: float | None, *, steady: bool) -> Change:
    if change.change is None or change.p_holm is None or change.low is None or change.high is None:
        raise ValueError("a change that was tested has figures")
    if not steady:
        return replace(change, verdict=UNRESOLVED, reason="the machine was not steady in one of the sessions")
    if floor is None:
        return replace(change, verdict=UNRESOLVED, reason="the noise of one session is not known")
    if change.p_holm > ALPHA:
        reason = f"p is {change.p_holm:.3f} after Holm's correction"
    elif abs(math.log(change.change)) <= floor:
        reason = f"the change is within the noise floors of both sessions, {math.expm1(floor):.2%}"
    elif change.low <= 1.0 <= change.high:
        reason = "the 95 % interval includes no change"
    else:
        verdict = ROSE if change.change > 1.0 else FELL
        return replace(change, verdict=verdict, reason=f"p is {change.p_holm:.4f} after Holm's correction")
    return replace(change, verdict=UNRESOLVED, reason=reason)


def _sentinel_change(before: _Side, after: _Side) -> float | None:
    sentinels = (before.summary.sentinel, after.summary.sentinel)
    medians = [statistics.median(each.values) for each in sentinels if each is not None and each.values]
    return medians[1] / medians[0] - 1.0 if len(medians) == 2 else None


def _cautions(before: _Side, after: _Side, *, is_same_build: bool, sentinel_change: float | None) -> tuple[str, ...]:
    baseline = after.session.plan.baseline
    out = [
        "Absolute speeds of two sessions are not judged: clocks, temperature and other load may have changed between"
        " them, and nothing measured here tells that from a change of the software."
    ]
    if sentinel_change is not None:
        out.append(
            f"The sentinel, a short run of {baseline}, changed by {100 * sentinel_change:+.1f} % between the sessions;"
            " absolute speeds can differ by as much for that reason alone."
        )
    if is_same_build:
        out.append("Both sessions measured the same builds: a ratio that changed points to the machine.")
    else:
        out.append(
            f"The builds differ, and {baseline} is part of the build: a ratio that changed says that an arm and"
            f" {baseline} moved apart, not which of them moved. Run both builds as arms of one session to know."
        )
    old_arms = {arm.name: arm for arm in before.session.plan.arms}
    changed = [
        arm.name for arm in after.session.plan.arms if arm.name in old_arms and not arm.same_setting(old_arms[arm.name])
    ]
    if changed:
        out.append(f"Arms of the same name have other settings in each session: {', '.join(changed)}.")
    out += [
        f"The {name} session is not complete: {side.summary.stopped or 'it was not concluded'}."
        for name, side in (("old", before), ("new", after))
        if not side.summary.complete
    ]
    return tuple(out)


def render(comparison: Comparison) -> str:
    """Return the comparison as plain text."""
    rows = tuple(_cells(change) for change in comparison.changes)
    columns = (
        "workload",
        "arm",
        "old ratio",
        "new ratio",
        "new/old",
        "95 %",
        "p Holm",
        "old tok/s",
        "new tok/s",
        "verdict",
    )
    title = f"Speed against {comparison.baseline}, in each session, and the change of that ratio:"
    lines = plain_lines(Table(title, columns, rows)) if rows else ["The sessions have no workload and arm in common."]
    untold = [change for change in comparison.changes if change.verdict == NOT_COMPARED]
    lines += (
        ["", *(f"{change.workload}, {change.arm}: not compared: {change.reason}" for change in untold)]
        if untold
        else []
    )
    for which, names in (("old", comparison.only_old), ("new", comparison.only_new)):
        if names:
            lines.append(f"only in the {which} session: {', '.join(names)}")
    if comparison.build_differences:
        lines += ["", "What differs between the builds:"]
        lines += [f"  {field}: {old} -> {new}" for field, old, new in comparison.build_differences]
    lines += ["", "What this cannot tell:", *(f"- {caution}" for caution in comparison.cautions)]
    return "\n".join(_printable(line) for line in lines) + "\n"


def _cells(change: Change) -> tuple[str, ...]:
    return (
        change.workload,
        change.arm,
        wording.ratio_text(change.old_ratio),
        wording.ratio_text(change.new_ratio),
        wording.ratio_text(change.change),
        wording.interval_text(change.low, change.high),
        wording.p_text(change.p_holm),
        wording.speed_text(change.old_tok_s),
        wording.speed_text(change.new_tok_s),
        change.verdict,
    )


def _printable(line: str) -> str:
    """Return a line without characters that could move the cursor."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)
