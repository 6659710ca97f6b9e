"""Argument types and the flags that several commands share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NoReturn

MAX_WIDTH = 8
MAX_TOKENS = 1_000_000
SAMPLER_RNGS = ("mt19937", "gumbel")


class UsageError(Exception):
    """The command line cannot be used.

    Attributes
    ----------
    message
        What is wrong and what is allowed.
    usage
        Usage lines of the command, or an empty string.
    """

    def __init__(self, message: str, usage: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.usage = usage


class Parser(argparse.ArgumentParser):
    """Parser that raises `UsageError` where argparse would print and exit, so that `--json` can be honoured."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError`."""
        raise UsageError(message, self.format_usage())

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse takes no notice of output that cannot be written
        (file or sys.stderr).write(message)


def whole(low: int, high: int) -> Callable[[str], int]:
    """Argument type: a whole number from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            msg = f"{text!r} is not a whole number from {low} to {high}"
            raise argparse.ArgumentTypeError(msg)
        return value

    return parse


def real(low: float, high: float) -> Callable[[str], float]:
    """Argument type: a finite number from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:  # also false for nan
            msg = f"{text!r} is not a number from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(msg)
        return value

    return parse


def add_json(parser: Parser) -> None:
    """Add `--json`."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print exactly one JSON document on standard output, also on errors (default: text)",
    )


def add_model(parser: Parser) -> None:
    """Add `--model` and `--demo`, which exclude each other; without either `args.model` is None, too."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "-m", "--model", metavar="FILE", help="GGUF model, or its first split (default: the built-in one)"
    )
    group.add_argument(
        "--demo", dest="model", action="store_const", const=None, help="use the built-in model, which is the default"
    )


def add_threads(parser: Parser, default: str) -> None:
    """Add `--threads`; `default` says in words what applies without it."""
    parser.add_argument(
        "--threads",
        type=whole(1, 512),
        metavar="N",
        help=f"threads of prefill and decode, 1..512 (default: {default})",
    )


def add_mtp(parser: Parser, choices: str = "auto|off|FILE", off: str = "'off' decodes without drafts") -> None:
    """Add `--mtp`; `off` says in words what that choice means."""
    parser.add_argument(
        "--mtp",
        default="auto",
        metavar=choices,
        help="where the MTP block comes from: 'auto' looks inside the model, then for mtp-*.gguf beside it and in"
        f" MTP/; {off}; FILE names the MTP file (default: auto)",
    )


def add_n_ctx(parser: Parser) -> None:
    """Add `--n-ctx`."""
    parser.add_argument(
        "--n-ctx",
        type=whole(16, 2**31 - 1),
        metavar="N",
        help="context size in tokens, from 16 to the model's training context"
        " (default: the training context, at most 8192)",
    )


def add_device(parser: Parser) -> None:
    """Add `--device`."""
    parser.add_argument(
        "--device",
        default="auto",
        metavar="auto|cpu|NAME",
        help="device that runs the model; 'lucebox doctor' lists the names (default: auto)",
    )


def draft_vocab(text: str) -> int | str:
    """Argument type: a number of tokens, or what is none: ``off`` or a path."""
    return int(text) if text.isascii() and text.isdecimal() else text


def add_draft_vocab(parser: Parser) -> None:
    """Add `--draft-vocab`."""
    parser.add_argument(
        "--draft-vocab",
        type=draft_vocab,
        default=64_000,
        metavar="N|off|FILE",
        help="tokens that can be drafted: N takes the special ones and then the lowest ids; FILE lists ids; 'off' means"
        " all. Fewer make drafts cheaper and never change the text (default: 64000)",
    )


def add_engine(parser: Parser) -> None:
    """Add the flags that open an engine on any model."""
    add_mtp(parser)
    parser.add_argument(
        "--verify-width",
        type=whole(0, MAX_WIDTH),
        default=0,
        metavar="W",
        help="rows of a verify step: 0 lets the engine choose, 1 means no drafts, 2..8 means W-1 drafts (default: 0)",
    )
    parser.add_argument(
        "--spec",
        choices=("auto", "require"),
        default="auto",
        help="'auto' decodes without drafts when they cannot be had and says why; 'require' makes that an error"
        " (default: auto)",
    )
    add_draft_vocab(parser)
    add_n_ctx(parser)
    add_threads(
        parser, "one per physical core that this process may use; 1 for the built-in model, which is too small for more"
    )
    add_device(parser)


def add_sampling(parser: Parser, max_tokens: int) -> None:
    """Add the flags of a request."""
    add_sampler(parser, max_tokens, str(max_tokens))
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end when TEXT would appear, without printing it; may be given several times (default: none)",
    )


def add_sampler(
    parser: Parser,
    max_tokens: int | None,
    default: str,
    *,
    temperature: float | None = 0.0,
    seed: str = "random, and reported",
) -> None:
    """Add the flags that say how many tokens are wanted and how they are chosen.

    `default` and `seed` say in words what applies without `--max-tokens` and `--seed`.
    """
    parser.add_argument(
        "--max-tokens",
        type=whole(1, MAX_TOKENS),
        default=max_tokens,
        metavar="N",
        help=f"most tokens to produce, 1..{MAX_TOKENS} (default: {default})",
    )
    parser.add_argument(
        "--temperature",
        type=real(0.0, 100.0),
        default=temperature,
        metavar="T",
        help="0 always takes the likeliest token; above 0 samples, 0..100 (default: 0)",
    )
    parser.add_argument(
        "--top-k",
        type=whole(0, 2**31 - 1),
        metavar="K",
        help="sample among the K likeliest tokens, 0 or more; 0 means all (default: 40)",
    )
    parser.add_argument(
        "--top-p",
        type=real(0.0, 1.0),
        metavar="P",
        help="sample among the fewest tokens that hold probability P together, 0..1; 1 means all (default: 0.95)",
    )
    parser.add_argument(
        "--min-p",
        type=real(0.0, 1.0),
        metavar="P",
        help="drop tokens less likely than P times the likeliest, 0..1; 0 drops none (default: 0.05)",
    )
    parser.add_argument(
        "--seed",
        type=whole(0, 2**32 - 2),
        metavar="S",
        help=f"start of the random stream, 0..4294967294 (default: {seed})",
    )
    parser.add_argument(
        "--sampler-rng",
        choices=SAMPLER_RNGS,
        help="random numbers of the draws: 'gumbel' is noise by seed, position and token, which drafts foresee;"
        " 'mt19937' is llama.cpp's stream (default: gumbel)",
    )
