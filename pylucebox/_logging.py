"""Keep the last lines of the native log and pass every line on to `logging`.

The native library calls back from any thread, so everything here is thread-safe. Lines go to the logger
``pylucebox.native``. No handler is installed: without a logging set-up Python prints warnings and errors to stderr and
drops the rest, which is what a native program would do; a NullHandler would hide the reasons of a failed load.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from typing import Final, NamedTuple

__all__ = ["NATIVE_LOGGER", "LogLine", "NativeLog"]

NATIVE_LOGGER: Final = "pylucebox.native"

# Levels of lucebox_log_callback -> levels of `logging`; unknown ones count as information.
_LEVELS: Final = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}


class LogLine(NamedTuple):
    """One line of the native log; `number` counts from 1, `level` is one of `logging`."""

    number: int
    level: int
    text: str

    def __str__(self) -> str:
        """Return the line as error messages show it."""
        return f"{logging.getLevelName(self.level)[0]} {self.text}"


class NativeLog:
    """Ring buffer of the last native log lines.

    Parameters
    ----------
    capacity
        Lines to keep; the oldest are dropped.
    """

    def __init__(self, capacity: int = 256) -> None:
        self._lines: deque[LogLine] = deque(maxlen=capacity)
        self._count = 0
        # Reentrant, because a destructor that runs while the lock is held may log as well.
        self._lock = threading.RLock()
        self._logger = logging.getLogger(NATIVE_LOGGER)

    def record(self, level: int, text: str) -> None:
        """Take one line from the native library.

        Parameters
        ----------
        level
            Its native level: 1 debug, 2 information, 3 warning, 4 error.
        text
            The line; trailing white space is dropped and empty lines are ignored.
        """
        text = text.rstrip()
        if not text:
            return
        py_level = _LEVELS.get(level, logging.INFO)
        with self._lock:
            self._count += 1
            self._lines.append(LogLine(self._count, py_level, text))
        # Outside the lock: handlers are foreign code and may block. The caller is C, which cannot take an exception,
        # and a broken log filter is no reason to lose a generation.
        with contextlib.suppress(Exception):
            self._logger.log(py_level, "%s", text)

    def mark(self) -> int:
        """Return the number of the last line, to be passed to `tail` as `after`."""
        with self._lock:
            return self._count

    def tail(self, n: int = 8, *, min_level: int = logging.WARNING, after: int = 0) -> tuple[str, ...]:
        """Return the last lines that matter, oldest first.

        Parameters
        ----------
        n
            At most so many.
        min_level
            Lowest level of `logging` to include.
        after
            Only lines later than this mark, so that an error does not quote an earlier call.
        """
        with self._lock:
            lines = list(self._lines)
        wanted = [str(line) for line in lines if line.number > after and line.level >= min_level]
        return tuple(wanted[max(0, len(wanted) - n) :])
