"""What a session needs from outside: arms, clocks, the machine's state and a display."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from pylucebox.ab.outcome import Outcome
from pylucebox.ab.records import Arm, PlannedRun, Request, RunRecord
from pylucebox.ab.results import Row

__all__ = ["ArmProcess", "Clock", "Display", "Launcher", "Machine", "SystemClock"]


class ArmProcess(Protocol):
    """A started arm."""

    def run(self, requests: Sequence[Request], warmup: Request | None) -> Outcome:
        """Run `warmup`, throw its result away, and run `requests` together.

        Raises
        ------
        ArmError
            The arm failed.
        """


class Launcher(Protocol):
    """Starts arms."""

    def open(self, arm: Arm, *, n_ctx: int, n_seq: int) -> AbstractContextManager[ArmProcess]:
        """Start an arm for sequences of `n_ctx` tokens, `n_seq` of them together; stopped on leaving ``with``.

        Raises
        ------
        ArmError
            It cannot be started.
        """


class Clock(Protocol):
    """Two clocks that should agree, and patience."""

    def monotonic(self) -> float:
        """Seconds that cannot be set."""

    def wall(self) -> float:
        """Time of day in seconds since 1970."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        """Seconds that cannot be set."""
        return time.monotonic()

    def wall(self) -> float:
        """Time of day in seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Machine(Protocol):
    """Tells how the machine is doing."""

    def state(self) -> Mapping[str, Any]:
        """Return ``temperature_c``, ``cpu_limit_mhz``, ``energy_j`` and more, as far as they can be read."""


class Display(Protocol):
    """Shows how a session goes. It is called between runs only, and does nothing in between."""

    def started(self, run: PlannedRun, eta_s: float | None) -> None:
        """Show that a run starts; `eta_s` is the time that the rest will take."""

    def finished(self, record: RunRecord) -> None:
        """Show how it ended."""

    def rows(self, rows: Sequence[Row]) -> None:
        """Show the comparison so far."""

    def say(self, text: str) -> None:
        """Print a line."""
