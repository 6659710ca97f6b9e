"""`lucebox demo`: MTP off against MTP on, on the built-in model."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from pylucebox._build import recorded_build
from pylucebox.cli import _demo_report as reports
from pylucebox.cli import _demo_text as words
from pylucebox.cli._args import MAX_WIDTH, Parser, UsageError, add_json, add_threads, whole
from pylucebox.cli._chart import render_svg
from pylucebox.cli._demo_prompts import PROMPTS
from pylucebox.cli._demo_run import DemoPlan, measure
from pylucebox.cli._io import note, print_json, progress
from pylucebox.cli._measure import Noise
from pylucebox.cli._ports import EngineFactory, EngineLike
from pylucebox.cli._table import print_table

SUMMARY = "compare MTP off and on with the built-in model"
DESCRIPTION = (
    "Run the same prompts with MTP off and on, with the model that comes with the package. Checks that both give the"
    " same tokens, measures both speeds in interleaved pairs, and draws the ratios and the acceptance as a chart."
    " Exit status 0 means that all texts are the same, whatever the speed."
)
DEFAULT_CHART = "lucebox-demo.svg"
MAX_NOISE_ROUNDS = 4  # the noise is pooled over the prompts, so it needs fewer rounds than each prompt's ratio


def _width(text: str) -> int:
    width = whole(0, MAX_WIDTH)(text)
    if width == 1:
        raise argparse.ArgumentTypeError("1 means MTP off, which is what the other side of the comparison is")
    return width


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "--prompts",
        type=whole(1, len(PROMPTS)),
        default=len(PROMPTS),
        metavar="N",
        help=f"how many of the built-in prompts to run, 1..{len(PROMPTS)} (default: {len(PROMPTS)})",
    )
    parser.add_argument(
        "--tokens",
        type=whole(2, 1024),
        default=96,
        metavar="N",
        help="most tokens of each run, 2..1024 (default: 96)",
    )
    parser.add_argument(
        "--width",
        type=_width,
        default=0,
        metavar="W",
        help="rows of a verify step with MTP on: 0 lets the engine choose, 2..8 means W-1 drafts (default: 0)",
    )
    parser.add_argument(
        "--repeats",
        type=whole(1, 1000),
        default=10,
        metavar="N",
        help="pairs of runs per prompt, 1..1000; below 6 there is no verdict (default: 10)",
    )
    parser.add_argument(
        "--chart",
        default=DEFAULT_CHART,
        metavar="FILE|none",
        help=f"where to write the chart, an SVG file; 'none' writes none (default: {DEFAULT_CHART})",
    )
    add_threads(parser, "1, since the model is too small for more")
    add_json(parser)


def run(args: argparse.Namespace, factory: EngineFactory) -> int:
    """Run the demo.

    Returns
    -------
    int
        0 if all texts are the same, 1 if not.
    """
    chart_path = None if args.chart == "none" else Path(args.chart)
    if chart_path is not None and not chart_path.absolute().parent.is_dir():
        raise UsageError(f"--chart: the directory {str(chart_path.absolute().parent)!r} does not exist")
    build = recorded_build()  # first, so that a copy that was never built fails before it measures
    plan = DemoPlan(
        prompts=PROMPTS[: args.prompts],
        max_tokens=args.tokens,
        width=args.width,
        n_rounds=args.repeats,
        n_noise_rounds=min(args.repeats, MAX_NOISE_ROUNDS),
        n_threads=args.threads or 1,
    )
    opened: dict[str, object] = {}
    with progress(plan.n_runs, "lucebox demo") as advance:

        def announce(engine: EngineLike, noise: Noise) -> None:
            name = engine.info.name or Path(engine.info.path).stem
            opened.update(model=name, spec=engine.spec, sidecar=engine.sidecar)
            if not args.json:
                lines = [f"MTP on: {engine.spec.reason}", words.noise_sentence(noise)]
                advance.say("\n".join([*_wrapped(lines), ""]))

        report = reports.report_on(measure(plan, factory, progress=advance, announce=announce))
    sentences = [words.identity_sentence(report), *words.summary_sentences(report)]
    written = _write_chart(chart_path, render_svg(reports.chart(report, str(opened["model"]), sentences)))
    if args.json:
        facts = {"schema": reports.SCHEMA, "build": build, **opened}
        print_json({**facts, **reports.document(report), "summary": sentences, "chart": written})
    else:
        for table in words.tables(report):
            print_table(table)
        print(*_wrapped(sentences), sep="\n")
        if written:
            print(f"chart: {written}")
    return 0 if report.runs.identical else 1


def _wrapped(sentences: Sequence[str]) -> list[str]:
    """Break sentences between words on a terminal; elsewhere each stays one line."""
    if not sys.stdout.isatty():
        return list(sentences)
    columns = shutil.get_terminal_size().columns
    return [line for sentence in sentences for line in textwrap.wrap(sentence, columns)]


def _write_chart(path: Path | None, svg: str) -> str | None:
    """Write the chart and return its path; a chart that cannot be written must not cost the measurements."""
    if path is None:
        return None
    try:
        path.write_text(svg, encoding="utf-8")
    except OSError as error:
        note(
            f"lucebox: the chart was not written to {str(path)!r}: {error.strerror}. Use --chart FILE or --chart none."
        )
        return None
    return str(path)
