"""`lucebox generate`: continue a prompt."""

from __future__ import annotations

import argparse
import sys

from pylucebox._result import Step
from pylucebox.cli._args import Parser, add_engine, add_json, add_model, add_sampling
from pylucebox.cli._bars import is_drawable
from pylucebox.cli._explain import CycleSeen, cycle_of, explain_lines
from pylucebox.cli._io import note, print_json
from pylucebox.cli._ports import EngineFactory
from pylucebox.cli._request import LiveText, document, engine_options, follow, sampling_of, stats_line
from pylucebox.cli._stdin import read_stdin

SUMMARY = "continue a prompt"
DESCRIPTION = (
    "Continue a prompt and print the text as it comes. The last line, on standard error, tells the speed, how many"
    " drafts held, and whether MTP is on and why."
)
DEFAULT_MAX_TOKENS = 256


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    parser.add_argument("prompt", metavar="PROMPT", help="text to continue; '-' reads it from standard input")
    add_model(parser)
    add_sampling(parser, DEFAULT_MAX_TOKENS)
    add_engine(parser)
    parser.add_argument(
        "--explain",
        action="store_true",
        help="show on standard error how wide each cycle was, how drafts fared by depth, and why the engine chose so;"
        " with --json the cycles are part of the document (default: one line)",
    )
    add_json(parser)


def run(args: argparse.Namespace, factory: EngineFactory) -> int:
    """Generate once.

    Returns
    -------
    int
        0.
    """
    prompt = read_stdin() if args.prompt == "-" else args.prompt
    sampling = sampling_of(args)
    cycles: list[CycleSeen] = []

    def see(step: Step) -> None:
        cycle = cycle_of(step) if args.explain else None
        if cycle is not None:
            cycles.append(cycle)

    with factory(engine_options(args)) as engine:
        stream = engine.stream(prompt, max_tokens=args.max_tokens, stop=args.stop, sampling=sampling)
        if args.json:
            completion = follow(stream, see)
            explained = {"cycles": [cycle.as_dict() for cycle in cycles]} if args.explain else {}
            print_json({**document(args, engine, completion), **explained})
        else:
            with LiveText(sys.stdout) as out:

                def show(step: Step) -> None:
                    out.write(step.text)
                    see(step)

                completion = follow(stream, show)
            if args.explain:
                note("\n".join(["", *explain_lines(completion, cycles, drawn=is_drawable(sys.stderr)), ""]))
        note(stats_line(completion))
    return 0
