"""Printing: JSON documents, notes, errors and progress."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress(Protocol):
    """Shows how far a long piece of work has come."""

    def __call__(self, what: str) -> None:
        """Count one unit of work; `what` says what it was."""

    def say(self, text: str) -> None:
        """Print a line on standard output without disturbing the display."""


def plain(value: object) -> object:
    """Turn a value into what `json.dumps` takes.

    Dataclasses become objects, enums their values, paths strings, sets and tuples arrays. A number that JSON does not
    have (nan, infinity) becomes null.
    """
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple, set, frozenset)) else str(value)


def print_json(document: object) -> None:
    """Print one JSON document and a newline on standard output."""
    print(json.dumps(plain(document), indent=2, ensure_ascii=False), flush=True)


def note(text: str) -> None:
    """Print one line on standard error, where it does not mix with the command's output."""
    sys.stdout.flush()  # keeps the two streams in order on a terminal
    print(text, file=sys.stderr, flush=True)


def error_document(error: BaseException, *, message: str | None = None) -> dict[str, object]:
    """Describe an error as data.

    Returns
    -------
    dict
        ``{"error": {"type", "message", ...}}`` with the error's own attributes beside them.
    """
    attributes = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    return {"error": {**attributes, "type": type(error).__name__, "message": message or str(error)}}


def use_tolerant_streams() -> None:
    """Let standard output and error show every character somehow, whatever their encoding.

    A model may produce any character; one that the terminal's encoding lacks must not end the program.
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def progress(total: int, label: str, unit: str = "runs") -> AbstractContextManager[Progress]:
    """Show progress on standard error: a bar on a terminal, a line per tenth of the work elsewhere.

    Parameters
    ----------
    total
        Units of work.
    label
        What is being done.
    unit
        What the units are, for the lines.

    Returns
    -------
    context manager
        Gives a `Progress`.
    """
    return _progress_bar(total, label) if sys.stderr.isatty() else _progress_lines(total, label, unit)


@contextmanager
def _progress_lines(total: int, label: str, unit: str) -> Iterator[Progress]:
    yield _Lines(total, label, unit)


class _Lines:
    def __init__(self, total: int, label: str, unit: str) -> None:
        self._total = total
        self._label = label
        self._unit = unit
        self._done = 0

    def __call__(self, what: str) -> None:
        before, self._done = self._done, self._done + 1
        if self._done * 10 // self._total > before * 10 // self._total:
            note(f"{self._label}: {self._done} of {self._total} {self._unit} ({what})")

    def say(self, text: str) -> None:
        print(text, flush=True)


@contextmanager
def _progress_bar(total: int, label: str) -> Iterator[Progress]:
    from rich.console import Console  # noqa: PLC0415 - rich takes longer to import than most commands run
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress  # noqa: PLC0415

    shown = RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}", style="dim"),
        console=Console(stderr=True),
        transient=True,
        # Drawn only between runs: a thread of its own would take time from the runs that are measured.
        auto_refresh=False,
        # rich would send standard output to the bar's console, that is, to standard error.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with shown:
        yield _Bar(shown, shown.add_task(label, total=total, what=""))


class _Bar:
    def __init__(self, shown: RichProgress, task: TaskID) -> None:
        self._shown = shown
        self._task = task

    def __call__(self, what: str) -> None:
        self._shown.update(self._task, advance=1, what=what, refresh=True)

    def say(self, text: str) -> None:
        self._shown.stop()  # takes the bar off the screen
        print(text, flush=True)
        self._shown.start()
