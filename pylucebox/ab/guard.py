"""Runs a command and ends it when the program that started this one goes away, however that comes about.

Started by its path with the command as arguments. The starter holds the other end of standard input; when it closes,
the command is told to end, and killed if it does not. The command's exit status is passed on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_S = 10.0
"""Seconds between asking the command to end and killing it."""


def main() -> int:
    """Run the command given as arguments."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_end_with_starter, args=(child,), daemon=True).start()
    return child.wait()


def _end_with_starter(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    _signal(child, signal.SIGTERM)
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        _signal(child, signal.SIGKILL)


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the command and what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    sys.exit(main())
