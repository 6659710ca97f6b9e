"""`lucebox calibrate`: what verify steps and drafts cost on this machine, at several context lengths."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pylucebox._errors import BackendError, WriteError
from pylucebox._version import __version__
from pylucebox.cli._args import Parser, UsageError, add_device, add_json, add_model, add_mtp, add_n_ctx, add_threads
from pylucebox.cli._bars import bar, is_drawable
from pylucebox.cli._io import note, print_json, progress
from pylucebox.cli._ports import EngineFactory, EngineOptions
from pylucebox.cli._table import Table, print_table
from pylucebox.width import MAX_WIDTH, WidthCosts

SUMMARY = "measure what drafts and verify steps cost"
DESCRIPTION = (
    "Time verify steps of 1 to 8 rows, chains of 1 to 7 drafts, rejections, and what MTP adds to a prompt, at several"
    " context lengths. Shows how many tokens a cycle of each width must bring to beat decoding without drafts. Engines"
    " do this by themselves, once and at one length; here the table can be read and kept."
)
DEFAULT_N_PAST = (128, 1024, 4096)
SCHEMA = 1
_BAR = 40


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    add_model(parser)
    add_mtp(parser, "auto|FILE", "'off' is refused, since there would be nothing to measure")
    parser.add_argument(
        "--n-past",
        default=",".join(map(str, DEFAULT_N_PAST)),
        metavar="N[,N...]",
        help="context lengths in tokens, from 4; they are cut to what fits into the context"
        f" (default: {','.join(map(str, DEFAULT_N_PAST))})",
    )
    add_n_ctx(parser)
    add_threads(parser, "one per physical core that this process may use; 1 for the built-in model")
    add_device(parser)
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="write the JSON document to this file, too (default: no file)"
    )
    add_json(parser)


def run(args: argparse.Namespace, factory: EngineFactory) -> int:
    """Measure.

    Returns
    -------
    int
        0.

    Raises
    ------
    BackendError
        Nothing could be measured because steps take seconds here.
    """
    lengths = _lengths(args.n_past)
    n_threads = 1 if args.threads is None and args.model is None else args.threads
    options = EngineOptions(
        model=args.model,
        mtp=args.mtp,
        spec="require",
        n_ctx=args.n_ctx,
        n_threads=n_threads,
        device=args.device,
        width_costs=None,
    )
    with factory(options) as engine:
        found: dict[int, WidthCosts] = {}
        with progress(len(lengths), "calibrate", "context lengths") as count:
            for n_past in lengths:
                costs = engine.measure_widths(n_past)
                if costs is not None and costs.n_past not in found:
                    found[costs.n_past] = costs
                count(f"{n_past} tokens")
        path = engine.info.path
    if not found:
        raise BackendError(
            "cannot measure what widths cost",
            seen="a pass over all widths takes more than half a minute",
            advice="Use a device that is made for models of this size, or --n-past with smaller numbers.",
        )
    document = _document(path, list(found.values()))
    if args.output is not None:
        _write(args.output, document)
    if args.json:
        print_json(document)
        return 0
    print_table(_table(list(found.values())))
    for costs in found.values():
        print(*chart_lines(costs, drawn=is_drawable(sys.stdout)), "", sep="\n")
    if args.output is not None:
        note(f"written to {args.output}")
    return 0


def _lengths(text: str) -> list[int]:
    try:
        lengths = sorted({int(part) for part in text.split(",")})
    except ValueError:
        lengths = [0]
    if lengths[0] < 4:
        raise UsageError(f"--n-past: {text!r} is not a list of whole numbers from 4, such as 128,1024")
    return lengths


def _document(path: str, found: Sequence[WidthCosts]) -> dict[str, Any]:
    return {"schema": SCHEMA, "version": __version__, "model": path, "costs": [costs.as_dict() for costs in found]}


def _write(path: Path, document: dict[str, Any]) -> None:
    import json  # noqa: PLC0415 - as for the line below

    from pylucebox.calibration.store import write_whole  # noqa: PLC0415 - only those who keep the table need it

    try:
        write_whole(path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise WriteError(path=path, seen=str(error)) from error


def _table(found: Sequence[WidthCosts]) -> Table:
    rows = [
        (
            f"{costs.n_past} tokens",
            *(f"{time_us / 1000:.2f}" for time_us in costs.verify_us),
            *(f"{costs.draft_us[n - 1] / 1000:.2f}" for n in (1, 3, 7)),
            f"{costs.reject_us / 1000:.2f}",
            f"{costs.mtp_prefill_us_per_token:.0f}",
        )
        for costs in found
    ]
    columns = (
        "context",
        *(f"{width} row{'s' if width > 1 else ''}" for width in range(1, MAX_WIDTH + 1)),
        *("1 draft", "3 drafts", "7 drafts", "reject", "prompt +us/token"),
    )
    return Table(
        title="Milliseconds of a verify step, a chain of drafts, a rejection", columns=columns, rows=tuple(rows)
    )


def chart_lines(costs: WidthCosts, *, drawn: bool) -> list[str]:
    """Draw what a cycle of each width costs, in steps without drafts; so many tokens it must bring to pay.

    Parameters
    ----------
    costs
        What was measured.
    drawn
        Whether block characters can be shown.
    """
    plain_us = costs.verify_us[0]
    cycles = [verify + draft for verify, draft in zip(costs.verify_us, (0.0, *costs.draft_us), strict=True)]
    longest = max(cycles)
    lines = [f"Cycle by width at {costs.n_past} tokens, and the tokens it must bring to beat decoding without drafts"]
    for index, cycle_us in enumerate(cycles):
        mark = bar(cycle_us / longest, _BAR, drawn=drawn)
        lines.append(f"  {index + 1}  {mark:<{_BAR}}  {cycle_us / 1000:9.2f} ms  {cycle_us / plain_us:5.2f} tokens")
    return lines
