"""Printing: JSON documents, notes, errors and progress."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

Progress = Callable[[str], None]
"""Called after each unit of work, with a word on what it was."""


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


def abandon_stdout() -> None:
    """Stop writing to a standard output that nobody reads, so that the interpreter's last flush is quiet too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def progress(total: int, label: str) -> AbstractContextManager[Progress]:
    """Show progress on standard error: a bar on a terminal, a line per tenth of the work elsewhere.

    Parameters
    ----------
    total
        Units of work.
    label
        What is being done.

    Returns
    -------
    context manager
        Gives a `Progress`.
    """
    return _progress_bar(total, label) if sys.stderr.isatty() else _progress_lines(total, label)


@contextmanager
def _progress_lines(total: int, label: str) -> Iterator[Progress]:
    done = 0

    def advance(what: str) -> None:
        nonlocal done
        before, done = done, done + 1
        if done * 10 // total > before * 10 // total:
            note(f"{label}: {done} of {total} runs ({what})")

    yield advance


@contextmanager
def _progress_bar(total: int, label: str) -> Iterator[Progress]:
    from rich.console import Console  # noqa: PLC0415 - rich takes longer to import than most commands run
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}", style="dim"),
    )
    # Drawn only between runs: rich's own refresh thread would take time from the runs being measured.
    with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(label, total=total, what="")

        def advance(what: str) -> None:
            bar.update(task, advance=1, what=what, refresh=True)

        yield advance
