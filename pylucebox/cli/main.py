"""Entry point of the `lucebox` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pylucebox._errors import InvalidArgumentError, LuceboxError
from pylucebox._version import __version__
from pylucebox.cli import ab, chat, demo, doctor, generate
from pylucebox.cli._args import Parser, UsageError
from pylucebox.cli._io import abandon_stdout, error_document, note, print_json, use_tolerant_streams
from pylucebox.cli._ports import EngineFactory, open_engine

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

_EPILOG = """exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted; `lucebox ab` says more with it.
`lucebox COMMAND --help` lists the flags of a command with their defaults and ranges."""


def build_parser() -> Parser:
    """Return the parser of all commands."""
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
    for module in (demo, generate, chat, doctor, ab):
        name = module.__name__.rpartition(".")[2]
        command = commands.add_parser(name, help=module.SUMMARY, description=module.DESCRIPTION, allow_abbrev=False)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None, *, factory: EngineFactory = open_engine) -> int:
    """Run one command.

    Parameters
    ----------
    argv
        Arguments after the program's name; None takes those of the process.
    factory
        Opens engines.

    Returns
    -------
    int
        Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 when the reader of the output went away.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    use_tolerant_streams()
    as_json = "--json" in arguments
    try:
        args = build_parser().parse_args(arguments)
        status: int = args.run(args, factory)
        sys.stdout.flush()
    except UsageError as error:
        note(f"{error.usage}lucebox: {error.message}")
        return _failed(error, EXIT_USAGE, as_json=as_json)
    except LuceboxError as error:
        note(f"lucebox: {error}")
        status = EXIT_USAGE if isinstance(error, InvalidArgumentError) else EXIT_FAILED
        return _failed(error, status, as_json=as_json)
    except KeyboardInterrupt as error:
        note("lucebox: interrupted")
        return _failed(error, EXIT_INTERRUPTED, as_json=as_json)
    except BrokenPipeError:
        abandon_stdout()
        return EXIT_BROKEN_PIPE
    return status


def _failed(error: BaseException, status: int, *, as_json: bool) -> int:
    if as_json:
        print_json(error_document(error, message=str(error) or "interrupted"))
    return status
