"""Entry point of the `lucebox-serve` command."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Final

from pylucebox._errors import InvalidArgumentError, LuceboxError
from pylucebox.serve.flags import HELP, parse_flags
from pylucebox.serve.notify import Notifier

__all__ = ["main"]

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it


def main(argv: Sequence[str] | None = None) -> int:
    """Serve.

    Parameters
    ----------
    argv
        Arguments after the program's name; None takes those of the process.

    Returns
    -------
    int
        0 after a signal, 2 for wrong usage, the server's own code when it cannot be kept running, else 1.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="lucebox-serve: %(message)s", stream=sys.stderr)
    if any(word in ("-h", "--help") for word in arguments):
        print(HELP, end="")
        return 0
    try:
        return _run(arguments)
    except InvalidArgumentError as error:
        print(f"lucebox-serve: {error}", file=sys.stderr)
        return EXIT_USAGE
    except LuceboxError as error:
        print(f"lucebox-serve: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:  # before the supervisor takes signals over
        return EXIT_INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    if "--version" in arguments:
        from pylucebox._build import recorded_build  # noqa: PLC0415 - reads a file

        print(f"lucebox-serve {recorded_build()}")
        return 0
    if "--usage" in arguments:
        from pylucebox._server_host import host_server  # noqa: PLC0415 - loads the native library

        return host_server(["--usage"])
    flags = parse_flags(arguments, os.environ)
    if flags.tui and not sys.stderr.isatty():
        raise InvalidArgumentError(
            argument="--tui", value="yes", reason="standard error is no terminal", advice="Leave it out."
        )
    from pylucebox.serve.supervisor import supervise  # noqa: PLC0415 - so that wrong usage is told at once

    return supervise(flags, Notifier())


if __name__ == "__main__":
    sys.exit(main())
