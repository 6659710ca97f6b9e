"""`lucebox sim`: replay width policies on recorded texts and the costs of several machines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pylucebox._errors import WriteError
from pylucebox.cli._args import Parser, UsageError, add_json, whole
from pylucebox.cli._io import plain, print_json, progress
from pylucebox.cli._ports import EngineFactory
from pylucebox.cli._table import Table, print_table

if TYPE_CHECKING:
    from pylucebox.sim.costs import CostCurve
    from pylucebox.sim.results import Result
    from pylucebox.sim.suite import Plan
    from pylucebox.sim.trace import Trace

SUMMARY = "replay width policies on recorded texts, without a model"
DESCRIPTION = (
    "Replay rules that choose how many drafts to make and verify, cycle by cycle, on recorded texts and the costs of"
    " several machines, and compare each with the best fixed width of every request in hindsight, with no MTP, and with"
    " a bound that no rule can beat. Needs no model and no GPU. Texts come from `lucebox trace`, costs from `lucebox"
    " calibrate`; both also come with the package."
)
SUITES = ("ci", "full")


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "--suite",
        choices=SUITES,
        default="ci",
        help="'ci': the recorded texts, whole, cut to 128 tokens, and in a row; 'full': also texts made from published"
        " acceptance, a machine that others use, too, several texts at once, short answers after long prompts, and"
        " three seeds of noise (default: ci)",
    )
    parser.add_argument(
        "--trace",
        action="append",
        default=[],
        metavar="FILE",
        help="text to replay, from `lucebox trace`; may be given several times (default: those of the suite)",
    )
    parser.add_argument(
        "--machine",
        action="append",
        default=[],
        metavar="NAME|FILE",
        help="costs to replay on: a name, as the table has them, or a file from `lucebox calibrate`; may be given"
        " several times (default: all that come with the package)",
    )
    parser.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="NAME",
        help="rule to replay, by its name in the table; may be given several times (default: all)",
    )
    parser.add_argument(
        "--seed", type=whole(0, 2**31 - 1), default=1, metavar="S", help="start of the noise in times (default: 1)"
    )
    parser.add_argument(
        "--reliability",
        action="store_true",
        help="replay nothing; show how far the drafts' probabilities in the texts can be trusted (default: replay)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="end with status 1 if the first rule misses one of the targets (default: status 0)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="folder to write sim.json, sim.html and pictures (SVG) to (default: nothing is written)",
    )
    add_json(parser)


def run(args: argparse.Namespace, factory: EngineFactory) -> int:  # noqa: ARG001 - nothing native takes part
    """Replay and show.

    Returns
    -------
    int
        0; 1 with ``--check`` when a target was missed.
    """
    if args.reliability:
        if args.rule or args.machine or args.check:
            raise UsageError("--reliability replays nothing, so it goes with neither --rule, --machine nor --check")
        return _reliability(args)
    return _suite(args)


def _suite(args: argparse.Namespace) -> int:
    from pylucebox.sim.page import render  # noqa: PLC0415 - brings numpy
    from pylucebox.sim.picture import reliability_svg, rules_svg  # noqa: PLC0415
    from pylucebox.sim.reliability import reliability  # noqa: PLC0415
    from pylucebox.sim.results import conclude, document  # noqa: PLC0415
    from pylucebox.sim.suite import run as run_plan  # noqa: PLC0415

    plan = _plan(args)
    with progress(len(plan.curves) * len(plan.rules), "lucebox sim", "pairs of rule and machine") as advance:
        cells = run_plan(plan, advance)
    result = conclude(plan, cells, reliability(plan.traces))
    found = document(result)
    if args.output is not None:
        pictures = {"sim.svg": rules_svg(result), "reliability.svg": reliability_svg(result.reliability)}
        _write(Path(args.output), found, {"sim.html": render(result), **pictures})
    if args.json:
        print_json(found)
    else:
        for table in _tables(result):
            print_table(table)
        for line in _sentences(result, args.output):
            print(line)
    return int(args.check and not all(each.met for each in result.targets))


def _plan(args: argparse.Namespace) -> Plan:
    from pylucebox.sim.machine import REALISTIC  # noqa: PLC0415
    from pylucebox.sim.rules import rules  # noqa: PLC0415
    from pylucebox.sim.suite import Plan  # noqa: PLC0415

    is_full = args.suite == "full"
    return Plan(
        name=args.suite,
        traces=_traces(args),
        curves=_curves(args.machine),
        rules=rules(tuple(args.rule)),
        noise=REALISTIC,
        seeds=tuple(args.seed + number for number in range(3 if is_full else 1)),
        sections=("single", "short", "sequence", *(("rough", "batch", "prefill") if is_full else ())),
    )


def _curves(names: Sequence[str]) -> tuple[CostCurve, ...]:
    from pylucebox.sim.costs import curve, curves, read_curves  # noqa: PLC0415

    known = {each.name for each in curves()}
    found: list[CostCurve] = []
    for name in names:
        found += [curve(name)] if name in known or not Path(name).exists() else read_curves(name)
    _check_names([each.name for each in found], "machines")
    return tuple(found) or curves()


def _check_names(names: Sequence[str], what: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two {what} are called {twice!r}, and a table could not tell them apart")


def _traces(args: argparse.Namespace) -> tuple[Trace, ...]:
    from pylucebox.sim.latent import texts  # noqa: PLC0415
    from pylucebox.sim.library import recorded  # noqa: PLC0415
    from pylucebox.sim.trace_file import read_trace  # noqa: PLC0415

    if not args.trace:
        return (*recorded(), *(texts() if args.suite == "full" and not args.reliability else ()))
    found = tuple(map(read_trace, args.trace))
    _check_names([trace.name for trace in found], "traces")
    return found


def _tables(result: Result) -> list[Table]:
    from pylucebox.sim.page import HEADINGS  # noqa: PLC0415

    sections = result.sections
    columns = ["rule"]
    for section in sections:
        columns += [section, "worst"]
    columns += ["worst to off", "regret"]
    rows = []
    for rule in result.plan.rules:
        cells = [rule.name]
        for section in sections:
            found = result.of(section, rule.name)
            cells += ["-", "-"] if found is None else [f"{found.mean:.3f}", f"{found.worst:.3f}"]
        first = result.of(sections[0], rule.name)
        cells.append("-" if first is None else f"{first.worst_off:.3f}")
        cells.append("-" if first is None or first.regret is None else f"{first.regret:.3f}")
        rows.append(tuple(cells))
    first = result.of(sections[0], result.plan.rules[0].name)
    best_regret = "-" if first is None or first.best_regret is None else f"{first.best_regret:.3f}"
    rows.append(("best fixed", *("1.000",) * (2 * len(sections)), "-", best_regret))
    rows += _bound_rows(result)
    meaning = "; ".join(f"{section}: {HEADINGS[section][0].lower()}{HEADINGS[section][1:]}" for section in sections)
    title = f"Speed in units of the best fixed width of each request, geometric means ({meaning}):"
    return [Table(title, tuple(columns), tuple(rows)), *_by_machine(result), *_losses(result)]


def _bound_rows(result: Result) -> list[tuple[str, ...]]:
    from pylucebox.sim.results import bounds  # noqa: PLC0415

    limits = {section: bounds(result.cells, section) for section in result.sections}
    rows = []
    for number, each in enumerate(limits[result.sections[0]]):
        cells = [each.name]
        for found in limits.values():
            cells += [f"{found[number].mean:.3f}", f"{found[number].worst:.3f}"] if found else ["-", "-"]
        rows.append((*cells, "-", f"{each.regret:.3f}"))
    return rows


def _by_machine(result: Result) -> list[Table]:
    names = [each.name for each in result.plan.curves]
    rows = []
    for rule in result.plan.rules:
        found = result.of(result.sections[0], rule.name)
        means = {} if found is None else found.by_curve
        rows.append((rule.name, *(f"{means[name]:.3f}" if name in means else "-" for name in names)))
    return [Table("The same by machine, whole texts:", ("rule", *names), tuple(rows))]


def _losses(result: Result) -> list[Table]:
    rows = []
    for rule in result.plan.rules:
        found = result.of(result.sections[0], rule.name)
        if found is not None and found.losses is not None:
            lost = found.losses
            parts = (lost.unverified, lost.rejected, lost.short, lost.total)
            rows.append((rule.name, *(f"{part:.3f}" for part in parts)))
    title = "Time lost against the clairvoyant, in units of its time, whole texts, means:"
    columns = ("rule", "drafts not verified", "verified, did not hold", "stopped too early", "together")
    return [Table(title, columns, tuple(rows))] if rows else []


def _sentences(result: Result, output: str | None) -> list[str]:
    lines = [f"{rule.name}: {rule.title}" for rule in result.plan.rules]
    lines.append("")
    lines += [
        f"{'reached' if each.met else 'MISSED'}: {each.what}: {each.value:.3f},"
        f" wanted {each.limit:g} or {'more' if each.at_least else 'less'}"
        for each in result.targets
    ]
    if output is not None:
        lines.append(_written(output))
    return lines


def _written(output: str) -> str:
    return f"report: {output}/sim.html; data: {output}/sim.json; pictures: {output}/*.svg"


def _reliability(args: argparse.Namespace) -> int:
    from pylucebox.sim.page import reliability_page  # noqa: PLC0415
    from pylucebox.sim.picture import reliability_svg  # noqa: PLC0415
    from pylucebox.sim.reliability import reliability  # noqa: PLC0415
    from pylucebox.sim.results import (  # noqa: PLC0415
        RELIABILITY_COLUMNS,
        SCHEMA,
        reliability_document,
        reliability_row,
    )

    traces = _traces(args)
    found = reliability(traces)
    shown: dict[str, Any] = {
        "schema": SCHEMA,
        "texts": [trace.name for trace in traces],
        "reliability": [reliability_document(each) for each in found],
    }
    if args.output is not None:
        files = {"sim.html": reliability_page(found, traces), "reliability.svg": reliability_svg(found)}
        _write(Path(args.output), shown, files)
    if args.json:
        print_json(shown)
        return 0
    print_table(
        Table("What the drafts' probabilities are worth:", RELIABILITY_COLUMNS, tuple(map(reliability_row, found)))
    )
    if args.output is not None:
        print(_written(args.output))
    return 0


def _write(folder: Path, found: dict[str, Any], files: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(plain(found), indent=1, ensure_ascii=False)
        for name, content in {"sim.json": f"{text}\n", **files}.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise WriteError(path=folder, seen=error.strerror or str(error), advice="Choose another folder.") from error
