"""Waiting between runs until the machine is as cool as it was."""

from __future__ import annotations

import re
from typing import Final

from pylucebox._errors import InvalidArgumentError
from pylucebox.ab.ports import Clock, Machine
from pylucebox.ab.records import Issue

__all__ = ["Cooldown", "check_cooldown"]

MAX_WAIT_S: Final = 600.0
"""Longest wait for a temperature."""

_POLL_S: Final = 2.0
_FORM: Final = re.compile(r"(?:none|(?P<seconds>\d+(?:\.\d+)?)|temp:\+(?P<degrees>\d+(?:\.\d+)?)C?)")


def check_cooldown(text: str) -> str:
    """Return `text` if it is a cool-down.

    Raises
    ------
    InvalidArgumentError
        It is not.
    """
    if not _FORM.fullmatch(text):
        allowed = "none, a number of seconds, or temp:+2C for at most two degrees above the start"
        raise InvalidArgumentError(argument="cooldown", value=text, allowed=allowed)
    return text


class Cooldown:
    """Waits before each run.

    Parameters
    ----------
    text
        As `check_cooldown` takes it.
    machine, clock
        The outside.
    """

    def __init__(self, text: str, machine: Machine, clock: Clock) -> None:
        form = _FORM.fullmatch(check_cooldown(text))
        seconds, degrees = (form["seconds"], form["degrees"]) if form else (None, None)
        self._seconds = float(seconds or 0.0)
        self._degrees = None if degrees is None else float(degrees)
        self._machine = machine
        self._clock = clock
        self._start_c: float | None = None

    def begin(self) -> None:
        """Take the present temperature as that of the start.

        Raises
        ------
        InvalidArgumentError
            A temperature is to be kept and cannot be read.
        """
        if self._degrees is None:
            return
        self._start_c = self._machine.state().get("temperature_c")
        if self._start_c is None:
            allowed = "none or a number of seconds here, because no temperature can be read"
            raise InvalidArgumentError(argument="cooldown", value=f"temp:+{self._degrees:g}C", allowed=allowed)

    def wait(self) -> list[Issue]:
        """Wait; return an issue when the machine stayed too hot."""
        if self._seconds:
            self._clock.sleep(self._seconds)
        if self._degrees is None or self._start_c is None:
            return []
        limit = self._start_c + self._degrees
        until = self._clock.monotonic() + MAX_WAIT_S
        while True:
            now = self._machine.state().get("temperature_c")
            if now is not None and now <= limit:
                return []
            if self._clock.monotonic() >= until:
                return [Issue(code="too_hot", detail=f"{now} degrees after {MAX_WAIT_S:g} s, {limit:g} allowed")]
            self._clock.sleep(_POLL_S)
