"""Flags of `lucebox ab`, and what they ask for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pylucebox.ab import arms as forms
from pylucebox.ab.records import Arm
from pylucebox.cli._args import Parser, UsageError, add_json, add_model, add_threads, real, whole

if TYPE_CHECKING:
    from pylucebox.ab.session import Asked

DEFAULT_ARMS = "off,k3,adaptive"
SUITES = ("quick", "ci", "seed", "full")


def percent(text: str) -> float:
    """Argument type: a percentage such as ``1%`` or ``0.5``, above 0 and at most 50, as a fraction."""
    try:
        value = float(text.strip().removesuffix("%")) / 100.0
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 0.5:
        msg = f"{text!r} is not a percentage above 0 and at most 50, such as 1%"
        raise argparse.ArgumentTypeError(msg)
    return value


def every(text: str) -> int:
    """Argument type: ``every:8``, or ``off`` for none."""
    if text == "off":
        return 0
    return whole(1, 1000)(text.removeprefix("every:"))


def add_session(parser: Parser) -> None:
    """Add the flags of a session."""
    add_model(parser)
    parser.add_argument(
        "--mtp", metavar="FILE", help="MTP file for the arms with drafts (default: found inside or beside the model)"
    )
    parser.add_argument(
        "--arms",
        metavar="NAME,...",
        help=f"settings of the engine to compare: {', '.join(forms.NAMED)}"
        f" (default: {DEFAULT_ARMS}, or none with --arm)",
    )
    parser.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="NAME=ARGS",
        help="another arm; may be given several times. 'NAME=k3 --threads 4 --env KEY=VALUE' is a setting of the"
        " engine, with --python FILE or --site DIR of another installed build; 'NAME=server COMMAND ... {port}'"
        " starts a server for each run, with {model}, {sidecar}, {n_ctx} and {n_seq} filled in; 'NAME=url URL' uses"
        " one that runs (default: none)",
    )
    parser.add_argument("--baseline", metavar="NAME", help="arm that the others are compared with (default: the first)")
    what = parser.add_argument_group("workloads")
    what.add_argument(
        "--suite",
        choices=SUITES,
        default="quick",
        help="workloads to run; 'quick' takes under 5 minutes with the built-in model (default: quick)",
    )
    what.add_argument(
        "--workload",
        action="append",
        default=[],
        metavar="NAME,...",
        help="these workloads (default: those of the suite)",
    )
    what.add_argument(
        "--n-ctx",
        type=whole(256, 2**31 - 1),
        metavar="N",
        help="most tokens that a sequence may have; longer workloads are scaled down (default: the training context)",
    )
    _add_design(parser.add_argument_group("design"))
    add_threads(parser, "as for the other commands; 1 for the built-in model")
    parser.add_argument(
        "--device", default=None, metavar="NAME", help="device of all engine arms (default: the engine's choice)"
    )
    parser.add_argument(
        "--health-timeout",
        type=real(1.0, 86400.0),
        default=600.0,
        metavar="S",
        help="longest wait for a server to be ready, seconds (default: 600)",
    )
    parser.add_argument(
        "--timeout",
        type=real(1.0, 86400.0),
        default=3600.0,
        metavar="S",
        help="longest wait for any answer, seconds (default: 3600)",
    )
    parser.add_argument("--out", metavar="DIR", help="where to write (default: lucebox-ab-TIME)")
    parser.add_argument(
        "--resume", metavar="DIR", help="go on with the session in DIR; its plan holds (default: a new session)"
    )
    add_json(parser)


def _add_design(group: Any) -> None:
    pairs = group.add_mutually_exclusive_group()
    pairs.add_argument(
        "--pairs",
        type=whole(1, 40),
        metavar="N",
        help="pairs per workload, 1..40 (default: 8, or as many as a claim in the whole table needs)",
    )
    pairs.add_argument(
        "--detect",
        type=percent,
        metavar="X%",
        help="take as many pairs as find an effect of this size in 80 %% of sessions, by the noise measured first"
        " (default: --pairs)",
    )
    group.add_argument(
        "--aa",
        type=whole(1, 20),
        metavar="N",
        help="pairs of the baseline with itself per workload (default: 2, or as many as make 12 in all)",
    )
    group.add_argument(
        "--order",
        choices=("abba", "random", "williams"),
        default="abba",
        help="order of the arms; with three or more 'abba' is 'williams' (default: abba)",
    )
    group.add_argument(
        "--isolation",
        choices=("process", "request"),
        default="process",
        help="a fresh process for every run, or one for all workloads of an arm in a block (default: process)",
    )
    group.add_argument("--seed", type=whole(0, 2**32 - 1), default=1, metavar="S", help="of the order (default: 1)")
    group.add_argument(
        "--equiv", type=percent, default=0.01, metavar="X%", help="difference that does not matter (default: 1%%)"
    )
    group.add_argument(
        "--sentinel",
        type=every,
        default=8,
        metavar="every:N",
        help="repeat a short run after every N runs to see whether the machine is steady; 'off' (default: every:8)",
    )
    group.add_argument(
        "--cooldown",
        default="none",
        metavar="S|temp:+2C",
        help="wait before each run: seconds, or until at most so much hotter than at the start (default: none)",
    )
    group.add_argument(
        "--max-hours", type=real(0.001, 10000.0), metavar="H", help="start no run after so many hours (default: none)"
    )
    group.add_argument(
        "--no-digest-control",
        action="store_true",
        help="do not check that the digest can tell texts apart (default: check)",
    )


def asked(args: argparse.Namespace) -> Asked:
    """Return what the flags ask for.

    Raises
    ------
    InvalidArgumentError, UsageError
        They cannot be used.
    """
    # numpy and more come with these; a command line that is refused should not wait for them.
    from pylucebox.ab.cooldown import check_cooldown  # noqa: PLC0415
    from pylucebox.ab.planner import Wishes  # noqa: PLC0415
    from pylucebox.ab.session import Asked, command_line  # noqa: PLC0415

    common = common_options(args)
    arms: list[Arm] = []
    if args.arms is not None or not args.arm:
        arms += forms.parse_names(args.arms or DEFAULT_ARMS, common)
    arms += [forms.parse_arm(text, common) for text in args.arm]
    if len(arms) < 2 and args.resume is None and args.series is None:
        raise UsageError("two arms or more are needed: --arms off,k3 or --arm NAME=ARGS")
    only = tuple(name.strip() for text in args.workload for name in text.split(",") if name.strip())
    return Asked(
        arms=tuple(arms),
        baseline=args.baseline,
        wishes=Wishes(
            n_pairs=args.pairs,
            detect=args.detect,
            n_aa=args.aa,
            order=args.order,
            isolation=args.isolation,
            sentinel_every=args.sentinel,
            cooldown=check_cooldown(args.cooldown),
            equivalence=args.equiv,
            max_hours=args.max_hours,
            seed=args.seed,
            control=not args.no_digest_control,
        ),
        suite=args.suite,
        only=only,
        model=args.model,
        sidecar=args.mtp,
        n_ctx=args.n_ctx,
        common=common,
        command=command_line(),
        health_timeout_s=args.health_timeout,
        timeout_s=args.timeout,
    )


def common_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `pylucebox.Engine` that all engine arms share."""
    options: dict[str, Any] = {}
    if args.device is not None:
        options["device"] = args.device
    n_threads = 1 if args.threads is None and args.model is None else args.threads
    if n_threads is not None:
        options["n_threads"] = n_threads
    return options
