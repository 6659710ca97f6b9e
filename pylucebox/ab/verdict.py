"""From the records of a session to its summary. Pure, and the same records always give the same summary.

The rules, for one row (an arm against the baseline on one workload):

* ``INVALID``: there are no valid pairs, or the baseline itself does not repeat its text.
* ``DIVERGED``: a valid run of the arm gave another text. Its speed is reported and claims nothing.
* ``EQUIVALENT``: both 90 % intervals, bootstrap of the median and t of the mean, lie inside the margin.
* ``FASTER`` or ``SLOWER``: p <= 0.05 after Holm over the table, the median is larger than the noise floor, and its 95 %
  interval leaves out 1.
* ``UNRESOLVED``: everything else, and everything when the sentinel says that the machine was not steady. Workloads
  that are compared by their text only are never more than this, and do not count for the exit code.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from pylucebox._version import __version__
from pylucebox.ab import power, stats
from pylucebox.ab.figures import block_ratios, figures_of, median_ratio
from pylucebox.ab.records import Plan, RunRecord
from pylucebox.ab.results import Noise, Pooled, Row, Sentinel, Summary, Verdict, WorkloadSummary
from pylucebox.ab.validity import same_text

__all__ = ["EXIT_CODES", "SENTINEL_FACTOR", "noise_of", "rows_of", "summarise"]

EXIT_CODES: Final = {
    Verdict.INVALID: 4,
    Verdict.DIVERGED: 2,
    Verdict.SLOWER: 1,
    Verdict.UNRESOLVED: 3,
}
"""Exit code by the worst verdict, worst first; 0 when there is none of these."""

EDGES: Final = "edges"
"""Kind of the workloads that are compared by their text only."""

SENTINEL_FACTOR: Final = 1.5
"""Sentinel spread allowed, in units of what A/A runs give by chance."""

_FEW_PAIRS = 8


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Valid pairs of one row: baseline and arm of each block, and their responses."""

    runs: tuple[tuple[RunRecord, RunRecord], ...]
    responses: tuple[float, ...]
    blocks: tuple[int, ...]
    clock: str


def final_runs(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the last attempt of each planned run, in the order of the plan."""
    last: dict[int, RunRecord] = {}
    for record in runs:
        if record.index not in last or record.attempt >= last[record.index].attempt:
            last[record.index] = record
    return [last[index] for index in sorted(last)]


def _speed(record: RunRecord, clock: str) -> float | None:
    return record.decode_tok_s if clock == "engine" else record.client_tok_s


def _responses(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> tuple[str, list[float]]:
    """Return the clock that both sides of all pairs have, and ln(second / first) of each pair."""
    for clock in ("engine", "client"):
        speeds = [(_speed(first, clock), _speed(second, clock)) for first, second in pairs]
        if all(first and second for first, second in speeds):
            return clock, [math.log(second / first) for first, second in speeds if first and second]
    return "client", []


def _pairs_of(runs: Sequence[RunRecord], workload: str, baseline: str, arm: str) -> _Pairs:
    mine = [run for run in runs if run.phase == "main" and run.workload == workload and run.valid]
    base = {run.block: run for run in mine if run.arm == baseline}
    test = {run.block: run for run in mine if run.arm == arm}
    blocks = sorted(base.keys() & test.keys())
    pairs = [(base[block], test[block]) for block in blocks]
    clock, responses = _responses(pairs)
    return _Pairs(tuple(pairs), tuple(responses), tuple(blocks), clock)


def _same_pairs(plan: Plan, runs: Sequence[RunRecord], *, of_sentinel: bool = False) -> list[float]:
    """Return the responses of the baseline, or of the sentinel, against itself."""
    name = None if plan.sentinel is None else plan.sentinel.name
    sides: dict[tuple[str, int], dict[int, RunRecord]] = {}
    for run in runs:
        if run.phase == "aa" and run.valid and (run.workload == name) == of_sentinel:
            sides.setdefault((run.workload, run.block), {})[run.side] = run
    return _responses([(pair[0], pair[1]) for pair in sides.values() if len(pair) == 2])[1]


def noise_of(plan: Plan, runs: Sequence[RunRecord]) -> Noise | None:
    """Return what the baseline against itself shows; None without A/A pairs.

    Parameters
    ----------
    plan, runs
        The session so far.
    """
    same = _same_pairs(plan, final_runs(runs))
    if not same:
        return None
    rng = np.random.default_rng([plan.seed, 0])
    interval = stats.percentile_interval(stats.bootstrap_medians(same, plan.n_resamples, rng), 0.95)
    floor = stats.noise_floor(same, max(1, plan.n_pairs), plan.n_resamples, rng)
    return Noise(
        n_pairs=len(same),
        ratio=math.exp(statistics.median(same)),
        low=math.exp(interval.low),
        high=math.exp(interval.high),
        floor=math.expm1(floor),
        # Both sides of a pair scatter, around a difference that is known to be zero.
        sigma_run=math.sqrt(statistics.fmean(value * value for value in same) / 2.0),
    )


def _sentinel_of(plan: Plan, runs: Sequence[RunRecord]) -> Sentinel | None:
    samples = [same for of_sentinel in (False, True) if (same := _same_pairs(plan, runs, of_sentinel=of_sentinel))]
    values = [run.client_tok_s for run in runs if run.phase == "sentinel" and run.valid]
    speeds = [value for value in values if value is not None]
    if len(speeds) < 2 or not samples:
        return None
    spread = float(stats.running_median_range(np.log(np.asarray(speeds))))
    limit = SENTINEL_FACTOR * max(
        stats.spread_limit(sample, len(speeds), plan.n_resamples, np.random.default_rng([plan.seed, 1]))
        for sample in samples
    )
    return Sentinel(
        n=len(speeds), spread=math.expm1(spread), limit=math.expm1(limit), ok=spread <= limit, values=tuple(speeds)
    )


def _identity(pairs: _Pairs, control: str) -> tuple[str, bool]:
    """Describe whether the texts are the same, and tell whether they are known to differ."""
    for base, test in pairs.runs:
        if not same_text(base, test):
            where = "differs"
            if test.diverged_at is not None:
                where += f" at token {test.diverged_at}"
            if test.diverged_seq and len(test.sequences) > 1:
                where += f" of sequence {test.diverged_seq}"
            return where, True
    if control.startswith("INCONCLUSIVE"):
        return "inconclusive: the control did not change the digest either", False
    told = all(sequence.token_sha256 for pair in pairs.runs for run in pair for sequence in run.sequences)
    return ("same tokens" if told else "same text"), False


def _control_of(runs: Sequence[RunRecord], workload: str) -> str:
    mine = [run for run in runs if run.workload == workload and run.valid]
    controls = [run for run in mine if run.phase == "control"]
    reference = next((run for run in mine if run.phase == "aa"), None)
    if not controls or reference is None:
        return "not run"
    changed = replace(reference, sequences=reference.sequences[:1])
    if same_text(changed, controls[0]):
        return "INCONCLUSIVE: another prompt or seed gave the same digest"
    return "digest changes"


def rows_of(plan: Plan, runs: Sequence[RunRecord]) -> tuple[list[Row], list[_Pairs], Noise | None, Sentinel | None]:
    """Compare every arm with the baseline on every workload, with the runs there are.

    Parameters
    ----------
    plan
        The plan.
    runs
        Records in any order.

    Returns
    -------
    tuple
        Rows in the order of `Plan.rows`, their pairs, the noise and the sentinel.
    """
    runs = final_runs(runs)
    noise, sentinel = noise_of(plan, runs), _sentinel_of(plan, runs)
    pairs = [_pairs_of(runs, workload, plan.baseline, arm) for workload, arm in plan.rows]
    timed = [number for number, (workload, _) in enumerate(plan.rows) if _is_timed(plan, workload)]
    p_values = [stats.sign_flip_p(pairs[number].responses) if pairs[number].responses else 1.0 for number in timed]
    p_by_row = dict(zip(timed, zip(p_values, stats.holm(p_values), strict=True), strict=True))
    rows = []
    for number, ((workload, arm), row) in enumerate(zip(plan.rows, pairs, strict=True)):
        identity, differs = _identity(row, _control_of(runs, workload))
        blank = Row(workload=workload, arm=arm, verdict=Verdict.INVALID.value, reason="", identity=identity)
        unusable = _unusable(plan, runs, workload, arm, row)
        if unusable is not None:
            rows.append(replace(blank, reason=unusable, identity=identity if row.runs else "not compared"))
        elif number not in p_by_row:
            rows.append(_judged_by_text(blank, row, differs=differs))
        else:
            measured = _measured(plan, blank, row, p_by_row[number], np.random.default_rng([plan.seed, 2, number]))
            rows.append(_judged(plan, measured, row, noise, sentinel, differs=differs))
    return rows, pairs, noise, sentinel


def _unusable(plan: Plan, runs: Sequence[RunRecord], workload: str, arm: str, pairs: _Pairs) -> str | None:
    """Say why a row has no result; None when it has one."""
    mine = [run for run in runs if run.workload == workload and run.phase in ("aa", "main")]
    base = [run for run in mine if run.arm == plan.baseline and run.valid]
    odd = next((run for run in base if not same_text(run, base[0])), None)
    if odd is not None:
        where = "" if odd.diverged_at is None else f" at token {odd.diverged_at}"
        return f"the baseline does not repeat its own text: block {odd.block} differs{where}"
    if pairs.responses or (pairs.runs and not _is_timed(plan, workload)):
        return None
    left_out = next((i.detail for run in runs if run.arm == arm for i in run.issues if i.code == "dropped"), None)
    if left_out is not None:
        return f"the arm was left out: {left_out}"
    involved = [run for run in mine if run.arm in (arm, plan.baseline)]
    codes = Counter(issue.code for run in involved for issue in run.issues)
    codes = codes or Counter(issue.code for run in runs if run.arm == arm for issue in run.issues)
    if codes:
        return "no valid pair: " + ", ".join(f"{code} ({count})" for code, count in codes.most_common(3))
    return "no valid pair: not run" if not pairs.runs else "no valid pair: no decode time was reported"


def _is_timed(plan: Plan, workload: str) -> bool:
    """Tell whether a workload is there for its speed; the edges are there for their text only."""
    return plan.workload(workload).kind != EDGES


def _judged_by_text(blank: Row, pairs: _Pairs, *, differs: bool) -> Row:
    row = replace(
        blank,
        n_pairs=len(pairs.runs),
        diverged_at=next((test.diverged_at for _, test in pairs.runs if test.diverged_at is not None), None),
    )
    if differs:
        return replace(row, verdict=Verdict.DIVERGED.value, reason=f"the text {row.identity}")
    return replace(row, verdict=Verdict.UNRESOLVED.value, reason="compared by its text only: too short for a speed")


def _measured(plan: Plan, blank: Row, pairs: _Pairs, p_values: tuple[float, float], rng: np.random.Generator) -> Row:
    y = pairs.responses
    medians = stats.bootstrap_medians(y, plan.n_resamples, rng)
    wide, narrow = stats.percentile_interval(medians, 0.95), stats.percentile_interval(medians, 0.90)
    t95 = stats.t_interval(y, 0.95) if len(y) < _FEW_PAIRS else None
    t90 = stats.t_interval(y, 0.90)
    if t90 is not None:  # one number may not say more than the other: EQUIVALENT rests on the wider of both
        narrow = stats.Interval(min(narrow.low, t90.low), max(narrow.high, t90.high))
    sigma_run = statistics.stdev(y) / math.sqrt(2.0) if len(y) > 1 else None
    alpha = power.ALPHA / len(plan.rows)
    return replace(
        blank,
        ratio=math.exp(statistics.median(y)),
        low=math.exp(wide.low),
        high=math.exp(wide.high),
        low90=math.exp(narrow.low),
        high90=math.exp(narrow.high),
        t_low=None if t95 is None else math.exp(t95.low),
        t_high=None if t95 is None else math.exp(t95.high),
        p=p_values[0],
        p_holm=p_values[1],
        n_pairs=len(y),
        mde=None if sigma_run is None else power.detectable(len(y), alpha, sigma_run, plan.equivalence),
        diverged_at=next((test.diverged_at for _, test in pairs.runs if test.diverged_at is not None), None),
        clock=pairs.clock,
        block_ratio=block_ratios(pairs.runs),
        prefill_ratio=median_ratio([(test.prefill_tok_s, base.prefill_tok_s) for base, test in pairs.runs]),
        ttft_ratio=median_ratio([(base.ttft_ms, test.ttft_ms) for base, test in pairs.runs]),
    )


def _judged(
    plan: Plan, row: Row, pairs: _Pairs, noise: Noise | None, sentinel: Sentinel | None, *, differs: bool
) -> Row:
    if differs:
        return replace(
            row, verdict=Verdict.DIVERGED.value, reason=f"the text {row.identity}: other work, no comparison"
        )
    verdict, reason = _speed_verdict(
        statistics.median(pairs.responses),
        interval=stats.Interval(math.log(row.low or 1.0), math.log(row.high or 1.0)),
        narrow=stats.Interval(math.log(row.low90 or 1.0), math.log(row.high90 or 1.0)) if row.n_pairs > 1 else None,
        p_holm=1.0 if row.p_holm is None else row.p_holm,
        floor=None if noise is None else noise.floor,
        margin=plan.equivalence,
    )
    if sentinel is not None and not sentinel.ok and verdict is not Verdict.UNRESOLVED:
        reason = f"the sentinel moved by {sentinel.spread:.1%}, {sentinel.limit:.1%} is allowed; else {verdict.value}"
        verdict = Verdict.UNRESOLVED
    return replace(row, verdict=verdict.value, reason=reason)


def _speed_verdict(
    effect: float,
    *,
    interval: stats.Interval,
    narrow: stats.Interval | None,
    p_holm: float,
    floor: float | None,
    margin: float,
) -> tuple[Verdict, str]:
    """Judge a median log ratio.

    Parameters
    ----------
    effect
        Median response.
    interval, narrow
        Intervals for the claim of a difference and of equivalence; `narrow` None makes the latter impossible.
    p_holm
        Adjusted p.
    floor
        Noise floor as a fraction; None when there was no A/A comparison, and then no difference is claimed.
    margin
        Equivalence margin as a fraction.
    """
    if narrow is not None and narrow.inside(math.log1p(-margin), math.log1p(margin)):
        return Verdict.EQUIVALENT, f"the 90 % interval lies within {margin:.1%}"
    if floor is None:
        return Verdict.UNRESOLVED, "the noise is not known: no valid A/A pair"
    if p_holm > power.ALPHA:
        return Verdict.UNRESOLVED, f"p is {p_holm:.3f} after Holm's correction"
    if abs(effect) <= math.log1p(floor):
        return Verdict.UNRESOLVED, f"the effect is within the noise floor of {floor:.2%}"
    if not interval.excludes(0.0):
        return Verdict.UNRESOLVED, "the 95 % interval includes no difference"
    verdict = Verdict.FASTER if effect > 0 else Verdict.SLOWER
    return verdict, f"p is {p_holm:.4f} after Holm's correction, and the effect is above the noise floor of {floor:.2%}"


def _pooled(
    plan: Plan, rows: Sequence[Row], pairs: Sequence[_Pairs], noise: Noise | None, sentinel: Sentinel | None
) -> tuple[Pooled, ...]:
    """Pool each arm over the workloads on which its text is the same."""
    fine = (Verdict.FASTER, Verdict.SLOWER, Verdict.EQUIVALENT, Verdict.UNRESOLVED)
    arms = [arm.name for arm in plan.arms if arm.name != plan.baseline]
    usable = {
        arm: [
            row_pairs
            for row, row_pairs in zip(rows, pairs, strict=True)
            if row.arm == arm and row.verdict in fine and _is_timed(plan, row.workload)
        ]
        for arm in arms
    }
    by_block = {arm: _block_means(group) for arm, group in usable.items()}
    p_values = [stats.sign_flip_p(by_block[arm]) if by_block[arm] else 1.0 for arm in arms]
    out = []
    for number, (arm, p, p_holm) in enumerate(zip(arms, p_values, stats.holm(p_values), strict=True)):
        group = usable[arm]
        if not by_block[arm]:
            reason = "no workload can be compared"
            out.append(Pooled(arm=arm, verdict=Verdict.INVALID.value, reason=reason))
            continue
        rng = np.random.default_rng([plan.seed, 3, number])
        means = stats.hierarchical_means([row.responses for row in group], plan.n_resamples, rng)
        wide, narrow = stats.percentile_interval(means, 0.95), stats.percentile_interval(means, 0.90)
        effect = statistics.fmean(statistics.median(row.responses) for row in group)
        verdict, reason = _speed_verdict(
            effect,
            interval=wide,
            narrow=narrow if len(by_block[arm]) > 1 else None,
            p_holm=p_holm,
            floor=None if noise is None else noise.floor,
            margin=plan.equivalence,
        )
        if sentinel is not None and not sentinel.ok and verdict is not Verdict.UNRESOLVED:
            verdict, reason = Verdict.UNRESOLVED, "the sentinel moved"
        out.append(
            Pooled(
                arm=arm,
                verdict=verdict.value,
                reason=reason,
                ratio=math.exp(effect),
                low=math.exp(wide.low),
                high=math.exp(wide.high),
                p=p,
                p_holm=p_holm,
                n_workloads=len(group),
                n_pairs=sum(len(row.responses) for row in group),
            )
        )
    return tuple(out)


def _block_means(group: Sequence[_Pairs]) -> list[float]:
    """Return the mean response of each block over the workloads that have it."""
    by_block: dict[int, list[float]] = {}
    for pairs in group:
        for block, response in zip(pairs.blocks, pairs.responses, strict=True):
            by_block.setdefault(block, []).append(response)
    full = [values for values in by_block.values() if len(values) == len(group)]
    return [statistics.fmean(values) for values in full]


def summarise(
    plan: Plan,
    env: Mapping[str, Any],
    runs: Sequence[RunRecord],
    *,
    complete: bool = True,
    stopped: str | None = None,
    notes: Sequence[str] = (),
) -> Summary:
    """Conclude a session.

    Parameters
    ----------
    plan, env, runs
        The session.
    complete, stopped
        Whether the schedule was run to its end, and if not, why.
    notes
        Sentences to carry along.

    Returns
    -------
    Summary
        Its exit code is that of the worst verdict; 4 also for a session that was stopped.
    """
    rows, pairs, noise, sentinel = rows_of(plan, runs)
    last = final_runs(runs)
    workloads = tuple(
        WorkloadSummary(
            workload=workload.name,
            title=workload.title,
            kind=workload.kind,
            figures=tuple(figures_of(arm.name, workload.name, last) for arm in plan.arms),
            rows=tuple(row for row in rows if row.workload == workload.name),
            control=_control_of(last, workload.name),
        )
        for workload in plan.suite.workloads
    )
    counts = Counter(row.verdict for row in rows)
    by_text = sum(row.verdict == Verdict.UNRESOLVED and not _is_timed(plan, row.workload) for row in rows)
    open_rows = {**counts, Verdict.UNRESOLVED.value: counts[Verdict.UNRESOLVED.value] - by_text}
    worst = next((code for verdict, code in EXIT_CODES.items() if open_rows.get(verdict.value)), 0)
    return Summary(
        version=__version__,
        plan_sha256=plan.sha256,
        environment_sha256=str(env.get("sha256", "")),
        complete=complete,
        stopped=stopped,
        isolation=plan.isolation,
        n_runs=len(runs),
        n_invalid=sum(not run.valid for run in runs),
        wall_hours=sum(run.wall_s for run in runs) / 3600.0,
        noise=noise,
        sentinel=sentinel,
        workloads=workloads,
        pooled=_pooled(plan, rows, pairs, noise, sentinel),
        verdict_counts={verdict.value: counts[verdict.value] for verdict in Verdict},
        exit_code=worst if complete else 4,
        notes=tuple(notes),
    )
