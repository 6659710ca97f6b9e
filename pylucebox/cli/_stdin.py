"""Standard input, which may be missing or hold anything."""

from __future__ import annotations

import sys
from typing import TextIO

from pylucebox.cli._args import UsageError


def stdin() -> TextIO:
    """Return standard input.

    Raises
    ------
    UsageError
        The program was started without one.
    """
    # The type says that it is always there, but it is None when the descriptor was closed before the start.
    stream: TextIO | None = sys.stdin
    if stream is None:
        raise UsageError("standard input is closed")
    return stream


def read_stdin() -> str:
    """Return all of standard input.

    Raises
    ------
    UsageError
        There is none, or it is not UTF-8.
    """
    try:
        return stdin().buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8: {error.reason} at byte {error.start}") from error
