"""`lucebox generate`: continue a prompt."""

from __future__ import annotations

import argparse
import sys

from pylucebox.cli._args import Parser, add_engine, add_json, add_model, add_sampling
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
    with factory(engine_options(args)) as engine:
        stream = engine.stream(prompt, max_tokens=args.max_tokens, stop=args.stop, sampling=sampling)
        if args.json:
            completion = follow(stream, lambda _: None)
            print_json(document(args, engine, completion))
        else:
            with LiveText(sys.stdout) as out:
                completion = follow(stream, lambda step: out.write(step.text))
        note(stats_line(completion))
    return 0
