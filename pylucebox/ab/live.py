"""The display while a session runs: a table on a terminal, plain lines elsewhere; both on standard error.

It draws only when it is called, between two runs: a display that refreshes itself would take time from what is being
measured.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TextIO

from pylucebox.ab import wording
from pylucebox.ab.ports import Display
from pylucebox.ab.records import Plan, PlannedRun, RunRecord
from pylucebox.ab.results import Row, Verdict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

__all__ = ["open_display"]

_PHASES: Final = {
    "settle": "first starts, discarded",
    "sentinel": "sentinel",
    "aa": "baseline against itself",
    "control": "positive control of the text check",
    "main": "comparison",
}
_STYLES: Final = {
    Verdict.FASTER.value: "bold green",
    Verdict.SLOWER.value: "bold red",
    Verdict.EQUIVALENT.value: "bold cyan",
    Verdict.UNRESOLVED.value: "dim",
    Verdict.DIVERGED.value: "bold magenta",
    Verdict.INVALID.value: "bold yellow",
}
_CHROME_LINES: Final = 7  # lines of the display that are not rows of the table
_FEWEST_LINES: Final = 4
_NARROW: Final = 88  # columns of a terminal below which the intervals are left out


def open_display(plan: Plan, *, tty: bool, out: TextIO | None = None) -> AbstractContextManager[Display]:
    """Show a session that follows a plan.

    Parameters
    ----------
    plan
        The plan. A session that finds out how many pairs it needs may become longer.
    tty
        Whether `out` is a terminal.
    out
        Where to write; None is standard error.

    Returns
    -------
    context manager
        Gives a `Display`. On leaving, the table goes and what was said stays.
    """
    stream = sys.stderr if out is None else out
    return _table(plan, stream) if tty else _lines(plan, stream)


@dataclass
class _Progress:
    """What both displays count.

    Attributes
    ----------
    plan
        What was planned when the session began.
    """

    plan: Plan
    n_done: int = 0
    n_invalid: int = 0
    phase: str = ""
    speeds: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)

    def of_total(self, n: int) -> str:
        """Return a number of runs, and of how many if that is known."""
        return str(n) if n > len(self.plan.runs) else f"{n} of {len(self.plan.runs)}"

    def count(self, record: RunRecord) -> None:
        """Take in a run."""
        self.n_done = max(self.n_done, record.index + 1)
        self.n_invalid += not record.valid
        speed = record.decode_tok_s or record.client_tok_s
        if record.phase == "main" and record.valid and speed is not None:
            self.speeds[record.workload, record.arm].append(speed)

    def speed(self, workload: str, arm: str) -> str:
        """Return the median speed so far."""
        speeds = self.speeds.get((workload, arm))
        return wording.speed_text(statistics.median(speeds)) if speeds else ""


def _one_line(text: str) -> str:
    """Return a text without line breaks and control characters, which could move the cursor."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _issues(record: RunRecord) -> str:
    why = "; ".join(f"{issue.code} ({issue.detail})" for issue in record.issues)
    return f"invalid: run {record.index}, {record.workload}, {record.arm}: {why}"


class _Lines:
    """Plain lines: one when a phase first begins, one per tenth of the planned runs, one per invalid run."""

    def __init__(self, plan: Plan, out: TextIO) -> None:
        self._progress = _Progress(plan)
        self._out = out
        self._n_shares = 0
        self._phases: set[str] = set()
        self._eta_s: float | None = None

    def started(self, run: PlannedRun, eta_s: float | None) -> None:
        """Name the phase when it is new."""
        self._eta_s = eta_s
        if not self._phases:  # a session that is resumed begins in its middle
            self._n_shares = self._shares(run.index)
        if run.phase not in self._phases and run.phase != "sentinel":
            self._phases.add(run.phase)
            self.say(f"phase: {_PHASES.get(run.phase, run.phase)}")

    def finished(self, record: RunRecord) -> None:
        """Count a run."""
        progress = self._progress
        progress.count(record)
        if not record.valid:
            self.say(_issues(record))
        n_shares = self._shares(progress.n_done)
        if n_shares > self._n_shares:
            self._n_shares = n_shares
            is_last = progress.n_done == len(progress.plan.runs)
            left = "" if self._eta_s is None or is_last else f", about {wording.duration(self._eta_s)} left"
            invalid = f", {progress.n_invalid} invalid" if progress.n_invalid else ""
            self.say(f"{progress.of_total(progress.n_done)} runs{invalid}{left}")

    def _shares(self, n_runs: int) -> int:
        return 10 * n_runs // max(1, len(self._progress.plan.runs))

    def rows(self, rows: Sequence[Row]) -> None:
        """Say nothing: the table at the end has all that is certain."""

    def say(self, text: str) -> None:
        """Print a line."""
        print(f"lucebox ab: {_one_line(text)}", file=self._out, flush=True)


@contextmanager
def _lines(plan: Plan, out: TextIO) -> Iterator[Display]:
    yield _Lines(plan, out)


class _Table:
    """A table that is redrawn in its place."""

    def __init__(self, plan: Plan, live: Live, console: Console, clock: Callable[[], float]) -> None:
        self._progress = _Progress(plan)
        self._live = live
        self._console = console
        self._clock = clock
        self._began_s = clock()
        self._run: PlannedRun | None = None
        self._eta_s: float | None = None

    def started(self, run: PlannedRun, eta_s: float | None) -> None:
        """Show what runs now."""
        self._run, self._eta_s = run, eta_s
        self._progress.phase = run.phase
        self._draw()

    def finished(self, record: RunRecord) -> None:
        """Count a run; what broke a rule stays on the screen above the table."""
        self._progress.count(record)
        if not record.valid:
            self.say(_issues(record))

    def rows(self, rows: Sequence[Row]) -> None:
        """Show the comparison so far."""
        self._progress.rows = {(row.workload, row.arm): row for row in rows}
        self._draw()

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(_one_line(text), markup=False, highlight=False, emoji=False)

    def _draw(self) -> None:
        self._live.update(self._content(), refresh=True)

    def _content(self) -> RenderableType:
        from rich.console import Group  # noqa: PLC0415 - see open_display
        from rich.text import Text  # noqa: PLC0415

        head = Text(self._head(), overflow="ellipsis", no_wrap=True)
        return Group(head, self._grid())

    def _head(self) -> str:
        progress = self._progress
        parts = [f"run {progress.of_total(progress.n_done + 1)}"]
        if self._run is not None:
            where = f"{self._run.workload}, {self._run.arm}"
            parts.append(f"{_PHASES.get(progress.phase, progress.phase)}: {_one_line(where)}")
        parts.append(f"{wording.duration(self._clock() - self._began_s)} so far")
        if self._eta_s is not None:
            parts.append(f"about {wording.duration(self._eta_s)} left")
        if progress.n_invalid:
            parts.append(f"{progress.n_invalid} invalid")
        return " · ".join(parts)

    def _grid(self) -> RenderableType:
        from rich import box  # noqa: PLC0415 - see open_display
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        plan = self._progress.plan
        is_narrow = self._console.width < _NARROW
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=self._caption())
        table.caption_justify = "left"
        numbers = ("tok/s", "ratio") if is_narrow else (f"tok/s {plan.baseline}", "tok/s", "pairs", "ratio (95 %)")
        for heading in ("workload", "arm"):
            table.add_column(heading, overflow="ellipsis", no_wrap=True)
        for heading in numbers:
            table.add_column(_one_line(heading), justify="right", overflow="ellipsis", no_wrap=True)
        table.add_column("so far", no_wrap=True)
        before = None
        for workload, arm in self._visible():
            cells = self._narrow_cells(workload, arm) if is_narrow else self._cells(workload, arm)
            verdict = self._verdict(workload, arm)
            names = ("" if workload == before else _one_line(workload), _one_line(arm))
            # As Text, since a name in square brackets would be read as markup.
            drawn = (*(Text(cell) for cell in (*names, *cells)), Text(verdict, style=_STYLES.get(verdict, "")))
            now = self._run is None or (self._run.workload == workload and self._run.arm in (arm, plan.baseline))
            table.add_row(*drawn, style="" if now else "dim")
            before = workload
        return table

    def _row(self, workload: str, arm: str) -> Row | None:
        """Return the comparison so far, if there is a pair."""
        row = self._progress.rows.get((workload, arm))
        return row if row is not None and row.n_pairs else None

    def _cells(self, workload: str, arm: str) -> tuple[str, ...]:
        progress, row = self._progress, self._row(workload, arm)
        speeds = (progress.speed(workload, progress.plan.baseline), progress.speed(workload, arm))
        return (*speeds, *(("", "") if row is None else (str(row.n_pairs), wording.row_text(row))))

    def _narrow_cells(self, workload: str, arm: str) -> tuple[str, ...]:
        row = self._row(workload, arm)
        ratio = "" if row is None else wording.ratio_text(row.ratio, row.low, row.high)
        return self._progress.speed(workload, arm), ratio

    def _verdict(self, workload: str, arm: str) -> str:
        row = self._row(workload, arm)
        return "" if row is None else row.verdict

    def _caption(self) -> str | None:
        n_hidden = len(self._progress.plan.rows) - len(self._visible())
        counts = Counter(row.verdict for row in self._progress.rows.values() if row.n_pairs)
        parts = [f"{verdict} {count}" for verdict, count in counts.items()]
        if n_hidden:
            parts.append(f"{n_hidden} more rows, not shown")
        return ", ".join(parts) or None

    def _visible(self) -> list[tuple[str, str]]:
        """Return as many rows as the terminal has room for, those around the present one."""
        rows = list(self._progress.plan.rows)
        room = max(_FEWEST_LINES, self._console.height - _CHROME_LINES)
        if len(rows) <= room:
            return rows
        workload = "" if self._run is None else self._run.workload
        at = next((number for number, row in enumerate(rows) if row[0] == workload), 0)
        first = min(max(0, at - room // 2), len(rows) - room)
        return rows[first : first + room]


@contextmanager
def _table(plan: Plan, out: TextIO) -> Iterator[Display]:
    from rich.console import Console  # noqa: PLC0415 - rich takes longer to import than plain lines need
    from rich.live import Live  # noqa: PLC0415

    console = Console(file=out, force_terminal=True)
    live = Live(
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        vertical_overflow="crop",
    )
    with live:
        try:
            yield _Table(plan, live, console, time.monotonic)
        finally:
            live.update("")  # rich draws once more on leaving, then without regard to the height of the terminal
