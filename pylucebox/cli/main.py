"""Entry point of the `lucebox` command.

Nothing that takes time is imported before `main` runs, so that Ctrl-C gets an answer instead of a traceback from the
first moment on.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pylucebox.cli._args import Parser
    from pylucebox.cli._ports import EngineFactory

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

_EPILOG = """exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted; `lucebox ab` says more with it.
`lucebox COMMAND --help` lists the flags of a command with their defaults and ranges."""


def build_parser() -> Parser:
    """Return the parser of all commands."""
    import argparse  # noqa: PLC0415

    from pylucebox._version import __version__  # noqa: PLC0415
    from pylucebox.cli import (  # noqa: PLC0415
        ab,
        chat,
        demo,
        doctor,
        exactness,
        generate,
        quantize,
        sidecar,
        sim,
        trace,
    )
    from pylucebox.cli._args import Parser  # noqa: PLC0415

    parser = Parser(
        prog="lucebox",
        description="Run GGUF models with multi-token prediction (MTP): drafts are checked by the model itself,"
        " so the text is the one it gives without them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lucebox {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (demo, generate, chat, doctor, ab, sim, trace, exactness, quantize, sidecar):
        name = module.__name__.rpartition(".")[2]
        command = commands.add_parser(name, help=module.SUMMARY, description=module.DESCRIPTION, allow_abbrev=False)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None, *, factory: EngineFactory | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv
        Arguments after the program's name; None takes those of the process.
    factory
        Opens engines; None opens real ones.

    Returns
    -------
    int
        Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 when the reader of the output went away.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _run(arguments, factory)
        except KeyboardInterrupt as error:
            return _interrupted(error, as_json="--json" in arguments)
    except BrokenPipeError:
        _abandon_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:  # a full disk, for example; errors of files that were named are LuceboxErrors
        _abandon_output()
        print(f"lucebox: cannot write the output: {error}", file=sys.stderr)
        return EXIT_FAILED


def _run(arguments: list[str], factory: EngineFactory | None) -> int:
    from pylucebox._errors import InvalidArgumentError, LuceboxError  # noqa: PLC0415
    from pylucebox.cli._args import UsageError  # noqa: PLC0415
    from pylucebox.cli._io import note, use_tolerant_streams  # noqa: PLC0415
    from pylucebox.cli._ports import open_engine  # noqa: PLC0415

    use_tolerant_streams()
    as_json = "--json" in arguments
    try:
        args = build_parser().parse_args(arguments)
        status: int = args.run(args, factory or open_engine)
    except UsageError as error:
        note(f"{error.usage}lucebox: {error.message}")
        return _failed(error, EXIT_USAGE, as_json=as_json)
    except LuceboxError as error:
        note(f"lucebox: {error}")
        status = EXIT_USAGE if isinstance(error, InvalidArgumentError) else EXIT_FAILED
        return _failed(error, status, as_json=as_json)
    finally:
        sys.stdout.flush()  # also what --help printed, which leaves as an exception
    return status


def _interrupted(error: KeyboardInterrupt, *, as_json: bool) -> int:
    from pylucebox.cli._io import note  # noqa: PLC0415

    note("lucebox: interrupted")
    return _failed(error, EXIT_INTERRUPTED, as_json=as_json)


def _failed(error: BaseException, status: int, *, as_json: bool) -> int:
    if as_json:
        from pylucebox.cli._io import error_document, print_json  # noqa: PLC0415

        print_json(error_document(error, message=str(error) or "interrupted"))
    return status


def _abandon_output() -> None:
    """Stop writing to streams that nobody reads, so that the interpreter's last flush is quiet too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
