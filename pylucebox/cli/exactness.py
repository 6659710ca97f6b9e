"""`lucebox exactness`: drafts must not change a token, nor a bit of the logits it is drawn from."""

from __future__ import annotations

import argparse

from pylucebox._build import DEMO_MODEL
from pylucebox._errors import ContextFullError
from pylucebox.cli import _exactness_report as reports
from pylucebox.cli._args import Parser, add_device, add_json, add_model, add_mtp, add_n_ctx, add_threads, whole
from pylucebox.cli._exactness_prompts import PROMPTS, SETTINGS, Setting, plan
from pylucebox.cli._exactness_run import Case, OpenBench, engine_options, run_case
from pylucebox.cli._exactness_verdict import WIDTHS
from pylucebox.cli._io import print_json, progress
from pylucebox.cli._ports import EngineFactory
from pylucebox.cli._table import print_table

SUMMARY = "check that drafts change no token and no bit"
DESCRIPTION = (
    "Run built-in prompts with several sampler settings at the verify widths 1 to 8 and adaptive, and token by token"
    " without drafts. Compares every token and every bit of the logits it was drawn from. Where runs differ, says where"
    " they begin to, how close the choice was, and whether numerics or rollback is at fault. Exit status 0 means that"
    " all is the same in every bit."
)


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_model(parser)
    add_mtp(parser, "auto|FILE", "'off' is refused, since there would be nothing to compare")
    parser.add_argument(
        "--prompts",
        type=whole(1, len(PROMPTS)),
        default=len(PROMPTS),
        metavar="N",
        help=f"how many of the built-in prompts to run, 1..{len(PROMPTS)}; the last one has some 2,300 tokens"
        f" (default: {len(PROMPTS)})",
    )
    parser.add_argument(
        "--tokens",
        type=whole(2, 4096),
        default=48,
        metavar="N",
        help="most tokens of each run, 2..4096; their logits are kept in memory (default: 48)",
    )
    parser.add_argument(
        "--every",
        action="store_true",
        help=f"run every prompt with each of the {len(SETTINGS)} sampler settings (default: greedily and with two that"
        " take turns)",
    )
    add_n_ctx(parser)
    add_threads(parser, "one per physical core that this process may use; 1 for the built-in model")
    add_device(parser)
    add_json(parser)


def run(args: argparse.Namespace, factory: EngineFactory) -> int:  # noqa: ARG001 - needs sessions, not engines
    """Run all requests.

    Returns
    -------
    int
        0 if everything is the same in tokens and bits, 1 if not.
    """
    built_in = args.model is None
    options = engine_options(
        DEMO_MODEL if built_in else args.model,
        mtp=args.mtp,
        n_ctx=args.n_ctx,
        n_threads=1 if built_in and args.threads is None else args.threads,
        device=args.device,
    )
    with OpenBench(options) as opened:
        cases, left_out = _fitting(opened, plan(args.prompts, every=args.every), args.tokens)
        with progress(len(cases) * (1 + len(WIDTHS)), "lucebox exactness") as advance:
            results = tuple(run_case(opened.bench, case, args.tokens, advance) for case in cases)
        facts = {"model": str(options.model), "spec": opened.spec, "sidecar": opened.sidecar.as_dict()}
    report = reports.Report(results, left_out)
    if args.json:
        print_json({"schema": reports.SCHEMA, **facts, **reports.document(report)})
    else:
        print_table(reports.table(report))
        print(*reports.sentences(report), sep="\n")
    return 0 if report.identical else 1


def _fitting(
    opened: OpenBench, planned: list[tuple[str, str, Setting]], max_tokens: int
) -> tuple[list[Case], tuple[str, ...]]:
    """Return the requests that fit the context, and sentences about what was left out.

    Raises
    ------
    ContextFullError
        Nothing fits.
    """
    found = list(opened.cases(planned))
    n_needed = {case.prompt: len(case.tokens) + max_tokens for case in found}
    cases = [case for case in found if n_needed[case.prompt] <= opened.n_ctx]
    if not cases:
        raise ContextFullError("no prompt fits", n_ctx=opened.n_ctx, n_needed=min(n_needed.values()))
    left_out = (
        f"Left out: the prompt {name!r} needs {needed} tokens, the context has {opened.n_ctx}."
        for name, needed in n_needed.items()
        if needed > opened.n_ctx
    )
    return cases, tuple(left_out)
