"""`lucebox trace`: record what the MTP block drafts at every position of a text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pylucebox._build import DEMO_MODEL
from pylucebox._errors import InvalidArgumentError, LoadError
from pylucebox._sampling import SamplingParams
from pylucebox.cli._args import (
    Parser,
    UsageError,
    add_device,
    add_json,
    add_model,
    add_mtp,
    add_n_ctx,
    add_sampler,
    add_threads,
)
from pylucebox.cli._io import print_json, progress
from pylucebox.cli._ports import EngineFactory
from pylucebox.cli._request import sampling_of
from pylucebox.cli._table import Table, print_table
from pylucebox.sim.trace import SUFFIX

if TYPE_CHECKING:
    from pylucebox.sim.record import OpenRecorder
    from pylucebox.sim.trace import Trace

SUMMARY = "record what is drafted at every position of a text, for `lucebox sim`"
DESCRIPTION = (
    "Generate a text without drafts, or follow one, and at each position of it make seven drafts, note them with their"
    " probabilities and forget them. What a width policy would have done with this text can then be replayed exactly:"
    " `lucebox sim --trace FILE`. Takes about as long as decoding the text with seven drafts that are never accepted."
)
SCHEMA = "lucebox-trace/1"
DEFAULT_MAX_TOKENS = 512
DEFAULT_SEED = 1
_MAX_TEXT_BYTES = 16_000_000


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_model(parser)
    add_mtp(parser, "auto|FILE", "'off' is refused, since there would be nothing to record")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="text to continue (default: none; one of the three is needed)")
    source.add_argument("--prompt-file", metavar="FILE", help="file with the text to continue, UTF-8 (default: none)")
    source.add_argument(
        "--workload",
        metavar="NAME",
        help="workload of `lucebox ab` to take the prompt, the length and the sampling from; it must be a single"
        " request. Flags given beside it take precedence (default: none)",
    )
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="file with a text to follow after the prompt in place of generating one, UTF-8 (default: generate)",
    )
    add_sampler(
        parser,
        None,
        f"{DEFAULT_MAX_TOKENS}, or that of the workload",
        temperature=None,
        seed=f"{DEFAULT_SEED}, or that of the workload",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="what tables call the text (default: the workload, or the name of the file written)",
    )
    parser.add_argument(
        "--kind", metavar="KIND", help="what sort of text it is (default: the workload's kind, or 'text')"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=f"file to write (default: the name and {SUFFIX}, in the current folder)"
    )
    add_n_ctx(parser)
    add_threads(parser, "one per physical core that this process may use; 1 for the built-in model")
    add_device(parser)
    add_json(parser)


class _Source(NamedTuple):
    """What to record."""

    name: str
    kind: str
    prompt: str
    max_tokens: int
    sampling: SamplingParams


def run(args: argparse.Namespace, factory: EngineFactory) -> int:  # noqa: ARG001 - needs a session, not an engine
    """Record one trace.

    Returns
    -------
    int
        0.
    """
    from pylucebox.sim.record import OpenRecorder  # noqa: PLC0415 - brings numpy and the native library
    from pylucebox.sim.trace_file import write_trace  # noqa: PLC0415

    built_in = args.model is None
    with OpenRecorder(
        DEMO_MODEL if built_in else args.model,
        mtp=args.mtp,
        n_ctx=args.n_ctx,
        n_threads=1 if built_in and args.threads is None else args.threads,
        device=args.device,
    ) as recorder:
        trace = _record(args, recorder)
    path = args.output or f"{trace.name}{SUFFIX}"
    write_trace(path, trace)
    _show(trace, path, as_json=args.json)
    return 0


def _record(args: argparse.Namespace, recorder: OpenRecorder) -> Trace:
    from pylucebox.sim.record import TextSource, record  # noqa: PLC0415

    found = _workload(args, recorder) if args.workload is not None else _prompt(args)
    forced = recorder.tokenize(_read(args.text), add_special=False) if args.text is not None else []
    if args.text is not None and not forced:
        raise InvalidArgumentError(argument="text", value=args.text, allowed="a file with a text of a token or more")
    forced = forced[: found.max_tokens]
    source = TextSource(
        name=found.name,
        kind=found.kind,
        prompt=recorder.tokenize(found.prompt),
        max_tokens=len(forced) or found.max_tokens,
        sampling=found.sampling,
        forced=forced,
    )
    with progress(source.max_tokens, "lucebox trace", "tokens") as advance:
        return record(recorder.session, source, recorder.facts, lambda _: advance(source.name))


def _prompt(args: argparse.Namespace) -> _Source:
    prompt = args.prompt if args.prompt is not None else _read(args.prompt_file)
    if not prompt:
        raise InvalidArgumentError(argument="prompt", value=prompt, allowed="a text that is not empty")
    return _Source(
        name=args.name or _stem(args.output),
        kind=args.kind or "text",
        prompt=prompt,
        max_tokens=args.max_tokens or DEFAULT_MAX_TOKENS,
        sampling=_sampling(args, 0.0, {}),
    )


def _workload(args: argparse.Namespace, recorder: OpenRecorder) -> _Source:
    from pylucebox.ab import workloads  # noqa: PLC0415 - brings the corpus

    n_ctx = min(args.n_ctx or recorder.n_ctx_train, recorder.session.n_ctx)
    suite = workloads.build_suite("full", only=[args.workload], tokenize=recorder.tokenize, n_ctx=n_ctx)
    (workload,) = suite.workloads
    if len(workload.requests) > 1:
        allowed = "a workload of a single request"
        raise InvalidArgumentError(argument="workload", value=args.workload, allowed=allowed)
    request = workload.requests[0]
    settings: dict[str, Any] = {"seed": request.seed, "top_k": request.top_k, "top_p": request.top_p}
    given = {name: value for name, value in settings.items() if value is not None}
    return _Source(
        name=args.name or workload.name,
        kind=args.kind or workload.kind,
        prompt=request.prompt,
        max_tokens=args.max_tokens or request.max_tokens,
        sampling=_sampling(
            args, request.temperature, {key: value for key, value in given.items() if value is not None}
        ),
    )


def _sampling(args: argparse.Namespace, temperature: float, given: dict[str, Any]) -> SamplingParams:
    """Return the sampling that flags ask for, and what was given where they do not. A trace always has a seed."""
    if args.temperature is None:
        args.temperature = temperature
    asked = sampling_of(args)
    if asked is None:
        return SamplingParams(temperature=0.0, seed=0)
    flags = {name: getattr(args, name) for name in ("top_k", "top_p", "min_p", "seed", "sampler_rng")}
    settings = {"seed": DEFAULT_SEED, **given, **{name: value for name, value in flags.items() if value is not None}}
    return SamplingParams(temperature=asked.temperature, **settings)


def _read(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            raw = file.read(_MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise LoadError(f"cannot read {name!r}", path=name, seen=error.strerror or str(error)) from error
    if len(raw) > _MAX_TEXT_BYTES:
        raise LoadError(f"cannot read {name!r}", path=name, seen="it is too large for a prompt", advice="Shorten it.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        seen = f"it is not UTF-8: {error.reason} at byte {error.start}"
        raise UsageError(f"cannot read {name!r}: {seen}") from error


def _stem(path: str | None) -> str:
    return Path(path or "").name.partition(".")[0] or "text"


def _show(trace: Trace, path: str, *, as_json: bool) -> None:
    from pylucebox.sim.reliability import reliability  # noqa: PLC0415
    from pylucebox.sim.results import RELIABILITY_COLUMNS, reliability_document, reliability_row  # noqa: PLC0415

    found = reliability([trace])
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "path": path,
                "name": trace.name,
                "kind": trace.kind,
                "n_prompt": trace.n_prompt,
                "n_tokens": len(trace.tokens),
                "sampler_rng": trace.sampler_rng,
                "digest": trace.digest,
                "facts": dict(trace.facts),
                "reliability": [reliability_document(each) for each in found],
            }
        )
        return
    title = f"{trace.name}: {len(trace.tokens)} tokens; each draft given those before it:"
    print_table(Table(title, RELIABILITY_COLUMNS, tuple(map(reliability_row, found))))
    print(f"trace: {path}; replay it with: lucebox sim --trace {path}")
