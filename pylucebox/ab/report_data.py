"""What the reports show, taken from a session: sentences, tables of texts, and series of numbers. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pylucebox.ab import wording
from pylucebox.ab.environment import redact, redact_command
from pylucebox.ab.records import BLOCK_TOKENS, Arm, CycleRecord, Plan, RunRecord, Workload
from pylucebox.ab.results import ArmFigures, Pooled, Row, Summary, Verdict, WorkloadSummary
from pylucebox.ab.store import Session
from pylucebox.ab.validity import CODES
from pylucebox.ab.verdict import final_runs

__all__ = [
    "Block",
    "Sheet",
    "Step",
    "acceptance_sheet",
    "arms_sheet",
    "block_ratio_sheet",
    "block_times",
    "comparison_sheet",
    "environment_sheets",
    "headline",
    "invalid_sheet",
    "issues_sheet",
    "method_sheet",
    "model_name",
    "speed_sheet",
    "summary_of",
    "traced_run",
    "warnings_of",
    "width_steps",
    "workloads_sheet",
]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of texts.

    Attributes
    ----------
    title
        What it shows.
    columns
        Headings.
    rows
        Cells, one per column.
    n_labels
        How many of the first columns are labels; the others are aligned as numbers.
    is_wide
        Whether the last column is prose.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_labels: int = 1
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """Time of the tokens between two token indices, over the runs of an arm.

    Attributes
    ----------
    first, last
        Token indices; `last` is not included.
    low, median, high
        Milliseconds per token: smallest, median and largest run.
    """

    first: int
    last: int
    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Step:
    """One cycle of a sequence.

    Attributes
    ----------
    start_ms, end_ms
        Since the first token.
    width
        Rows verified.
    n_tokens
        Tokens gained.
    """

    start_ms: float
    end_ms: float
    width: int
    n_tokens: int


def summary_of(session: Session) -> Summary:
    """Return the summary of a session that has one.

    Raises
    ------
    ValueError
        It has none yet; `pylucebox.ab.verdict.summarise` makes it.
    """
    if session.summary is None:
        raise ValueError("the session has no summary")
    return session.summary


def model_name(plan: Plan) -> str:
    """Return the model's file name, without the folders above it."""
    return "built-in model" if plan.model is None else plan.model.replace("\\", "/").rpartition("/")[2]


def headline(session: Session) -> tuple[str, ...]:
    """Say in a sentence per arm how it did."""
    summary, plan = summary_of(session), session.plan
    return tuple(_arm_sentence(plan, summary, pooled) for pooled in summary.pooled)


def _arm_sentence(plan: Plan, summary: Summary, pooled: Pooled) -> str:
    rows = [row for each in summary.workloads for row in each.rows if row.arm == pooled.arm]
    counts = Counter(row.verdict for row in rows)
    parts = [f"{verdict.value} on {counts[verdict.value]}" for verdict in Verdict if counts[verdict.value]]
    text = f"{pooled.arm} against {plan.baseline}, {_plural(len(rows), 'workload')}: {', '.join(parts)}."
    if pooled.ratio is None or pooled.n_workloads < 2:
        return text
    what = "Over all" if pooled.n_workloads == len(rows) else f"Over the {pooled.n_workloads} with the same text"
    return (
        f"{text} {what} {wording.ratio_text(pooled.ratio, pooled.low, pooled.high)} times as fast"
        f" ({wording.interval_text(pooled.low, pooled.high)}): {pooled.verdict}."
    )


def _plural(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def warnings_of(session: Session) -> tuple[str, ...]:
    """Return what a reader must know before the figures."""
    summary, plan = summary_of(session), session.plan
    out = []
    if not summary.complete:
        out.append(f"The session is not complete: {summary.stopped or 'it was stopped'}.")
    if summary.isolation == "request":
        out.append(
            "The runs shared processes (isolation by request). This is a quick look: what an engine learns in one run"
            " can help or harm the next."
        )
    if summary.sentinel is not None and not summary.sentinel.ok:
        out.append(
            f"The machine was not steady: the sentinel moved by {wording.percent(summary.sentinel.spread)},"
            f" {wording.percent(summary.sentinel.limit)} are allowed. No verdict stands."
        )
    if summary.noise is None:
        out.append("The noise is not known, since there is no valid run of the baseline against itself.")
    if 0 < plan.n_pairs < 6:
        out.append(f"With {_plural(plan.n_pairs, 'pair')} no difference can reach p 0.05; it takes at least 6.")
    return (*out, *summary.notes)


def comparison_sheet(plan: Plan, workloads: Sequence[WorkloadSummary]) -> Sheet:
    """Return the table of verdicts."""
    columns = ("workload", "arm", "verdict", "ratio", "95 % interval", "90 %", "p", "p Holm", "MDE", "pairs", "text")
    rows = [_comparison(row) for each in workloads for row in each.rows]
    return Sheet(f"Each arm against {plan.baseline}", columns, tuple(rows), n_labels=3, is_wide=True)


def _comparison(row: Row) -> tuple[str, ...]:
    return (
        row.workload,
        row.arm,
        row.verdict,
        wording.ratio_text(row.ratio, row.low, row.high),
        wording.interval_text(row.low, row.high),
        wording.interval_text(row.low90, row.high90),
        wording.p_text(row.p),
        wording.p_text(row.p_holm),
        wording.percent(row.mde),
        str(row.n_pairs),
        row.identity,
    )


def speed_sheet(each: WorkloadSummary) -> Sheet:
    """Return the descriptive figures of the arms on one workload."""
    columns = (
        "arm", "runs", "median tok/s", "min", "max", "median of 3", "prefill tok/s", "TTFT ms", "tokens/cycle",
        "drafts held", "peak memory",
    )  # fmt: skip
    return Sheet("Speeds, over the valid runs", columns, tuple(_speeds(figures) for figures in each.figures))


def _speeds(figures: ArmFigures) -> tuple[str, ...]:
    invalid = f" + {figures.n_invalid} invalid" if figures.n_invalid else ""
    held = f"{figures.accepted:,} of {figures.drafted:,}" if figures.drafted else wording.UNKNOWN
    return (
        figures.arm,
        f"{figures.n_valid}{invalid}",
        wording.speed_text(figures.median_tok_s),
        wording.speed_text(figures.min_tok_s),
        wording.speed_text(figures.max_tok_s),
        wording.speed_text(figures.median3_tok_s),
        wording.speed_text(figures.prefill_tok_s),
        wording.ms_text(figures.ttft_ms),
        wording.count_text(figures.tokens_per_cycle, 2),
        held,
        wording.bytes_text(figures.peak_rss_bytes),
    )


def acceptance_sheet(each: WorkloadSummary, *, conditional: bool = False) -> Sheet | None:
    """Return acceptance by depth in per cent of the arms that drafted; None when none did.

    Parameters
    ----------
    each
        Workload.
    conditional
        How often a draft held when those before it did, instead of how often it and all before it held.
    """
    arms = [figures for figures in each.figures if figures.drafted]
    shares = {figures.arm: figures.conditional if conditional else figures.survival for figures in arms}
    depth = max(
        (number for row in shares.values() for number, share in enumerate(row, 1) if share is not None), default=0
    )
    if not depth:
        return None
    rows = tuple(
        (arm, *(wording.share_text(share) for share in (*row, *[None] * depth)[:depth])) for arm, row in shares.items()
    )
    what = "each draft when those before it held" if conditional else "each draft together with all before it"
    return Sheet(f"Acceptance by depth: {what}, %", ("arm", *map(str, range(1, depth + 1))), rows)


def block_times(session: Session, workload: str) -> dict[str, tuple[Block, ...]]:
    """Return time per token by token index, for each arm that has valid runs.

    Only the first request of a run is looked at. All arms produce the same tokens, so equal indices are equal work.
    """
    out = {}
    for arm in session.plan.arms:
        blocks = _blocks(_main_runs(session, workload, arm.name))
        if blocks:
            out[arm.name] = blocks
    return out


def _main_runs(session: Session, workload: str, arm: str) -> list[RunRecord]:
    runs = final_runs(session.runs)
    return [run for run in runs if run.phase == "main" and run.workload == workload and run.arm == arm and run.valid]


def _blocks(runs: Sequence[RunRecord]) -> tuple[Block, ...]:
    ends = [run.sequences[0].block_ms for run in runs if run.sequences]
    depth = min((len(each) for each in ends), default=0)
    out = []
    for at in range(depth):
        # The first token comes from the prompt, so the first block has one token less to decode.
        n_tokens = BLOCK_TOKENS - 1 if at == 0 else BLOCK_TOKENS
        times = [(each[at] - (each[at - 1] if at else 0.0)) / n_tokens for each in ends]
        first = at * BLOCK_TOKENS
        out.append(Block(first, first + BLOCK_TOKENS, min(times), statistics.median(times), max(times)))
    return tuple(out)


def block_ratio_sheet(each: WorkloadSummary) -> Sheet | None:
    """Return speed ratios by token index; None when there are no blocks."""
    n_blocks = max((len(row.block_ratio) for row in each.rows), default=0)
    if not n_blocks:
        return None
    heads = (f"to {BLOCK_TOKENS * (number + 1)}" for number in range(n_blocks))
    rows = tuple(
        (row.arm, *(wording.ratio_text(ratio) for ratio in (*row.block_ratio, *[None] * n_blocks)[:n_blocks]))
        for row in each.rows
    )
    return Sheet("Speed ratio by token index", ("arm", *heads), rows)


def traced_run(session: Session, workload: str, arm: str) -> RunRecord | None:
    """Return the valid run of median speed; None when there is none."""
    runs = [run for run in _main_runs(session, workload, arm) if run.decode_tok_s or run.client_tok_s]
    runs.sort(key=lambda run: run.decode_tok_s or run.client_tok_s or 0.0)
    return runs[(len(runs) - 1) // 2] if runs else None


def width_steps(cycles: Iterable[CycleRecord]) -> tuple[Step, ...]:
    """Return the cycles of the first sequence in order."""
    out: list[Step] = []
    for cycle in sorted((cycle for cycle in cycles if cycle.seq == 0), key=lambda cycle: cycle.t_ms):
        start_ms = out[-1].end_ms if out else 0.0
        out.append(Step(start_ms, max(start_ms, cycle.t_ms), cycle.width, cycle.n_tokens))
    return tuple(out)


def arms_sheet(plan: Plan) -> Sheet:
    """Return what the arms are."""
    rows = tuple(
        (arm.name + (" (baseline)" if arm.name == plan.baseline else ""), redact(arm.label), _settings(arm))
        for arm in plan.arms
    )
    return Sheet("Arms", ("arm", "what", "settings"), rows, n_labels=3)


def _settings(arm: Arm) -> str:
    if arm.command:
        return " ".join(_file_name(word) for word in redact_command(arm.command))
    options = (
        f"{name}={_file_name(value) if isinstance(value, str) else value}"
        for name, value in sorted(arm.options.items())
    )
    return ", ".join(options) or wording.UNKNOWN


def _file_name(word: str) -> str:
    """Return a path without its folders, which may tell more than their owner wants; other words as they are."""
    return redact(word).rpartition("/")[2] if word.startswith(("/", "~", "./", "../")) else redact(word)


def workloads_sheet(plan: Plan) -> Sheet:
    """Return what the workloads are, with their hashes."""
    rows = tuple(_workload(each) for each in plan.suite.workloads)
    columns = ("workload", "what", "sampling", "sequences", "prompt tokens", "output tokens", "SHA-256")
    return Sheet("Workloads", columns, rows, n_labels=3)


def _workload(each: Workload) -> tuple[str, ...]:
    first = each.requests[0]
    prompts = _spread([request.n_prompt for request in each.requests])
    sampling = f"temperature {first.temperature:g}, seed {first.seed}" if first.temperature else "greedy"
    outputs = _spread([request.max_tokens for request in each.requests])
    return (each.name, each.title, sampling, str(len(each.requests)), prompts, outputs, each.sha256[:12])


def _spread(values: Sequence[int | None]) -> str:
    known = sorted({value for value in values if value is not None})
    if not known:
        return wording.UNKNOWN
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"


def method_sheet(session: Session) -> Sheet:
    """Return how the session was measured."""
    summary, plan = summary_of(session), session.plan
    noise, sentinel = summary.noise, summary.sentinel
    rows = [
        ("model", model_name(plan)),
        ("package", f"pylucebox {summary.version}"),
        ("suite", f"{plan.suite.name}, {_plural(len(plan.suite.workloads), 'workload')}, corpus {plan.suite.corpus}"),
        ("order", f"{plan.order}, seed {plan.seed}, isolation by {plan.isolation}, cool-down {plan.cooldown}"),
        ("pairs per row", f"{plan.n_pairs}, and {plan.n_aa} of the baseline against itself per workload"),
        ("effect planned for", wording.percent(plan.detect) if plan.detect else "none: the number of pairs was given"),
        ("equivalence margin", wording.percent(plan.equivalence)),
        ("runs", f"{summary.n_runs}, {summary.n_invalid} of them invalid, {summary.wall_hours:.2f} hours"),
    ]
    if noise is not None:
        rows += [
            (
                "baseline against itself",
                f"{wording.ratio_text(noise.ratio, noise.low, noise.high)}"
                f" ({wording.interval_text(noise.low, noise.high)}) in {_plural(noise.n_pairs, 'pair')}",
            ),
            (
                "noise floor",
                f"{wording.percent(noise.floor, 2)}; one run scatters by {wording.percent(noise.sigma_run, 2)}",
            ),
        ]
    if sentinel is not None:
        state = "steady" if sentinel.ok else "not steady"
        rows.append(
            (
                "sentinel",
                f"{state}: {_plural(sentinel.n, 'run')}, moved by {wording.percent(sentinel.spread, 2)} of"
                f" {wording.percent(sentinel.limit, 2)} allowed",
            )
        )
    rows += [
        ("plan SHA-256", summary.plan_sha256),
        ("environment SHA-256", summary.environment_sha256 or wording.UNKNOWN),
        ("corpus SHA-256", plan.suite.corpus_sha256),
    ]
    return Sheet("How it was measured", ("what", "value"), tuple(rows), n_labels=2)


def issues_sheet(session: Session) -> Sheet:
    """Return the rules that runs broke, most frequent first."""
    counts = Counter(issue.code for run in session.runs for issue in run.issues)
    rows = tuple((str(n), code, CODES.get(code, wording.UNKNOWN)) for code, n in counts.most_common())
    return Sheet("Rules that runs broke", ("times", "rule", "what it means"), rows, n_labels=3)


def invalid_sheet(session: Session) -> Sheet:
    """Return every run that does not count."""
    rows = tuple(
        (
            f"{run.index}" + (f" (try {run.attempt + 1})" if run.attempt else ""),
            run.phase,
            run.workload,
            run.arm,
            str(run.block),
            "; ".join(f"{issue.code}: {redact(issue.detail)}" for issue in run.issues),
        )
        for run in session.runs
        if not run.valid
    )
    return Sheet("Invalid runs", ("run", "phase", "workload", "arm", "block", "why"), rows, n_labels=6)


def environment_sheets(env: Mapping[str, Any]) -> tuple[Sheet, ...]:
    """Return the environment: what must be the same for two sessions to be compared, the software, and the rest."""
    titles = {
        "comparable": "Must agree for a comparison with another session",
        "build": "What was measured",
        "informative": "For information",
    }
    return tuple(
        Sheet(title, ("field", "value"), tuple(_flat(env.get(part) or {})), n_labels=2)
        for part, title in titles.items()
    )


_YES = frozenset({"1", "True"})


def _flat(value: object, name: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        if all(str(item) in _YES for item in value.values()):
            return [(name, ", ".join(map(str, value)))]  # features that are there, as a list
        pairs = [_flat(item, f"{name}.{key}" if name else str(key)) for key, item in value.items()]
        return [pair for group in pairs for pair in group]
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, (Mapping, list, tuple)) for item in value):
            groups = [_flat(item, f"{name}[{number}]") for number, item in enumerate(value)]
            return [pair for group in groups for pair in group]
        return [(name, ", ".join(map(str, value)) or wording.UNKNOWN)]
    if isinstance(value, Mapping) or value is None or value == "":
        return [(name, wording.UNKNOWN)] if name else []
    return [(name, str(value))]
