"""`lucebox ab`: paired comparisons of configurations, with the text checked."""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from pylucebox.cli import _ab_args
from pylucebox.cli._args import Parser, UsageError, add_json, whole
from pylucebox.cli._io import note, print_json
from pylucebox.cli._ports import EngineFactory
from pylucebox.cli._table import Table, print_table

if TYPE_CHECKING:
    from pylucebox.ab.ports import Display
    from pylucebox.ab.records import Plan
    from pylucebox.ab.results import Summary
    from pylucebox.ab.session import Asked
    from pylucebox.ab.store import Session

SUMMARY = "compare configurations, builds and servers in interleaved pairs"
DESCRIPTION = (
    "Run the same texts on two or more arms in interleaved pairs, each run in a fresh process, check that the tokens"
    " are the same, and say with an exact test what is faster. The first arm is the baseline. Everything is written to"
    " a directory: runs, plan, environment, summary, a report in Markdown and one in HTML. Exit status: 0 nothing is"
    " wrong, 1 an arm is slower, 2 an arm's text differs, 3 something is unresolved, 4 something could not be measured."
)


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    _ab_args.add_session(parser)
    parser.add_argument(
        "--series",
        metavar="COMMAND",
        help="measure each patch of a series at the one setting of --arms: COMMAND builds all prefixes and prints a"
        ' line {"prefix": NAME, "site": DIR} for each (default: no series)',
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions on sessions that were run")
    compare = actions.add_parser("compare", help="compare two sessions", allow_abbrev=False)
    compare.add_argument("old", type=Path, metavar="OLD", help="directory of a session")
    compare.add_argument("new", type=Path, metavar="NEW", help="directory of another one")
    add_json(compare)
    report = actions.add_parser("report", help="conclude again and rewrite the reports", allow_abbrev=False)
    report.add_argument("session", type=Path, metavar="DIR", help="directory of a session")
    add_json(report)
    power = actions.add_parser("power", help="simulate sessions: power and false claims", allow_abbrev=False)
    power.add_argument(
        "--sessions",
        type=whole(10, 100_000),
        default=500,
        metavar="N",
        help="simulated sessions per case (default: 500)",
    )
    add_json(power)


def run(args: argparse.Namespace, factory: EngineFactory) -> int:  # noqa: ARG001 - arms run in processes of their own
    """Run the command.

    Returns
    -------
    int
        See `DESCRIPTION`; 0 for the other actions.
    """
    actions = {"compare": _compare, "report": _report, "power": _power}
    if args.action is not None:
        return actions[args.action](args)
    if args.series is not None:
        return _series(args)
    asked = _ab_args.asked(args)
    session = _session(asked, _directory(args), resume=args.resume is not None)
    return _show(session, as_json=args.json)


def _directory(args: argparse.Namespace) -> Path:
    from pylucebox.ab.session import default_directory  # noqa: PLC0415 - brings numpy

    if args.resume is not None and args.out is not None:
        raise UsageError("--resume and --out exclude each other: a session goes on where it is")
    if args.resume is not None or args.out is not None:
        return Path(args.resume or args.out)
    return default_directory(datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S"))


def _session(asked: Asked, directory: Path, *, resume: bool) -> Session:
    from pylucebox.ab.session import run_new, run_resumed  # noqa: PLC0415 - brings numpy

    note("lucebox ab: preparing workloads, hashing the model")

    def open_display(plan: Plan) -> AbstractContextManager[Display]:
        note(f"lucebox ab: {len(plan.runs)} runs planned; writing to {str(directory)!r}")
        return _open_display(plan)

    start = run_resumed if resume else run_new
    return start(asked, directory, open_display)


def _open_display(plan: Plan) -> AbstractContextManager[Display]:
    from pylucebox.ab.live import open_display  # noqa: PLC0415 - brings rich

    return open_display(plan, tty=sys.stderr.isatty())


def _show(session: Session, *, as_json: bool) -> int:
    summary = session.summary
    if summary is None:
        raise RuntimeError("a concluded session has a summary")
    if as_json:
        print_json({"directory": str(session.directory), **summary.as_dict()})
        return summary.exit_code
    print_table(_table(summary, session.plan.baseline))
    for workload in summary.workloads:
        for row in workload.rows:
            if row.verdict in ("INVALID", "DIVERGED"):
                print(f"{row.workload}, {row.arm}: {row.verdict}: {row.reason}")
    for line in _sentences(summary):
        print(line)
    print(f"report: {session.directory}/report.html and report.md; data: summary.json, runs.jsonl, plan.json, env.json")
    return summary.exit_code


def _table(summary: Summary, baseline: str) -> Table:
    rows = []
    for workload in summary.workloads:
        speeds = {figures.arm: figures.median_tok_s for figures in workload.figures}
        for row in workload.rows:
            p = "-" if row.p_holm is None else f"{row.p_holm:.3f}"
            cells = (_number(speeds[baseline]), _number(speeds[row.arm]), _ratio(row.ratio), _range(row.low, row.high))
            mde = "-" if row.mde is None else f"{row.mde:.1%}"
            rows.append((row.workload, row.arm, *cells, p, mde, row.identity.partition(":")[0], row.verdict))
    for pooled in summary.pooled:
        p = "-" if pooled.p_holm is None else f"{pooled.p_holm:.3f}"
        cells = ("", "", _ratio(pooled.ratio), _range(pooled.low, pooled.high))
        rows.append(("all", pooled.arm, *cells, p, "", "", pooled.verdict))
    columns = ("workload", "arm", f"tok/s {baseline}", "tok/s", "ratio", "95 %", "p", "finds", "text", "verdict")
    return Table(f"Against {baseline}, decode speed:", columns, tuple(rows))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _range(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def _sentences(summary: Summary) -> list[str]:
    lines = []
    if summary.stopped is not None:
        lines.append(f"STOPPED EARLY: {summary.stopped}")
    if summary.noise is not None:
        noise = summary.noise
        lines.append(
            f"noise: the baseline against itself, {noise.n_pairs} pairs: {noise.ratio:.3f}; a run scatters by"
            f" {noise.sigma_run:.2%}, and the median of a row stays within {noise.floor:.2%} by chance"
        )
    if summary.sentinel is not None:
        sentinel = summary.sentinel
        state = "steady" if sentinel.ok else "NOT STEADY, so nothing is claimed"
        lines.append(f"sentinel: moved by {sentinel.spread:.1%}, {sentinel.limit:.1%} is allowed: {state}")
    return [*lines, *(f"note: {text}" for text in summary.notes)]


def _compare(args: argparse.Namespace) -> int:
    from pylucebox.ab import compare  # noqa: PLC0415 - brings numpy
    from pylucebox.ab.store import load_session  # noqa: PLC0415

    found = compare.compare(load_session(args.old), load_session(args.new))
    if args.json:
        print_json(found)
    else:
        print(compare.render(found), end="")
    return 0


def _report(args: argparse.Namespace) -> int:
    from pylucebox.ab.session import conclude  # noqa: PLC0415 - brings numpy
    from pylucebox.ab.store import DirectoryStore, load_session  # noqa: PLC0415

    found = load_session(args.session)
    store = DirectoryStore(args.session)
    with store.locked():
        n_done = len({record.index for record in found.runs})
        stopped = None if n_done == len(found.plan.runs) else f"{n_done} of {len(found.plan.runs)} runs were made"
        if found.summary is not None and found.summary.stopped is not None and stopped is not None:
            stopped = found.summary.stopped
        return _show(conclude(found, store, stopped=stopped), as_json=args.json)


def _power(args: argparse.Namespace) -> int:
    from pylucebox.ab.power_table import as_markdown, run_cases  # noqa: PLC0415 - brings numpy

    results = run_cases(args.sessions, progress=note)
    if args.json:
        print_json({"schema": 1, "sessions": args.sessions, "cases": results})
    else:
        print(as_markdown(results, args.sessions), end="")
    return 0


def _series(args: argparse.Namespace) -> int:
    from pylucebox.ab import series  # noqa: PLC0415 - brings numpy

    if args.arms is None or args.arm or "," in args.arms:
        raise UsageError("--series needs one setting of the engine: --arms k3")
    asked = _ab_args.asked(args)
    directory = _directory(args)
    builds = series.find_builds(shlex.split(args.series))

    def run_one(asked_one: Asked, place: Path) -> Session:
        return _session(asked_one, place, resume=(place / "plan.json").is_file())

    results = series.measure_series(asked, builds, directory, run_one, note)
    if args.json:
        print_json({"directory": str(directory), **series.series_document(results)})
    else:
        columns = ("patch", "ratio", "95 %", "verdict", "header says")
        print_table(
            Table(f"Each patch at {args.arms}, with against without:", columns, tuple(series.series_rows(results)))
        )
        print(f"data: {directory}/series.json")
    return max((result.exit_code for result in results), default=0)
