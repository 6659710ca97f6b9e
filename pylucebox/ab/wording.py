"""How results are put into words and numbers, the same in the live table, the reports and the comparison."""

from __future__ import annotations

import datetime
import math
from typing import Final

from pylucebox.ab.results import Pooled, Row, Verdict

__all__ = [
    "MARKS",
    "MEANINGS",
    "UNKNOWN",
    "bytes_text",
    "count_text",
    "duration",
    "interval_text",
    "ms_text",
    "p_text",
    "percent",
    "ratio_text",
    "row_text",
    "share_text",
    "speed_text",
    "time_text",
]

UNKNOWN: Final = "-"
"""Stands for a figure that was not measured."""

MEANINGS: Final = {
    Verdict.FASTER: "The arm decodes faster than the baseline: p is at most 0.05 after Holm's correction over all rows,"
    " the 95 % interval leaves out 1, and the effect is larger than what the baseline shows against itself.",
    Verdict.SLOWER: "The same in the other direction.",
    Verdict.EQUIVALENT: "Both 90 % intervals, of the median and of the mean, lie inside the margin around 1: a"
    " difference that is larger than the margin can be ruled out.",
    Verdict.UNRESOLVED: "Neither a difference nor its absence is shown. More pairs may tell; the MDE is the smallest"
    " effect that so many pairs would have found.",
    Verdict.DIVERGED: "The arm gave another text than the baseline. It did other work, so its speed says nothing.",
    Verdict.INVALID: "There is no pair of valid runs, or the baseline does not repeat its own text.",
}
"""What each verdict says."""

MARKS: Final = {
    Verdict.FASTER: "▲",
    Verdict.SLOWER: "▼",
    Verdict.EQUIVALENT: "=",
    Verdict.UNRESOLVED: "?",
    Verdict.DIVERGED: "≠",
    Verdict.INVALID: "×",  # noqa: RUF001 - the sign that crosses something out
}
"""A sign for each verdict, for readers who cannot tell its colour."""


def _n_digits(low: float, high: float) -> int:
    """Return as many digits as the width of an interval leaves room for."""
    return 3 if high - low < 0.1 else 2


def ratio_text(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a speed ratio, with the digits of its interval."""
    if value is None:
        return UNKNOWN
    n_digits = 3 if low is None or high is None else _n_digits(low, high)
    return f"{value:.{n_digits}f}"


def interval_text(low: float | None, high: float | None) -> str:
    """Return both ends of an interval of ratios."""
    if low is None or high is None:
        return UNKNOWN
    n_digits = _n_digits(low, high)
    return f"{low:.{n_digits}f} to {high:.{n_digits}f}"


def percent(fraction: float | None, n_digits: int = 1) -> str:
    """Return a fraction in per cent."""
    return UNKNOWN if fraction is None else f"{100 * fraction:.{n_digits}f} %"


def share_text(fraction: float | None) -> str:
    """Return a share in whole per cent, without the sign."""
    return UNKNOWN if fraction is None else f"{100 * fraction:.0f}"


def p_text(value: float | None) -> str:
    """Return a p-value."""
    if value is None:
        return UNKNOWN
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"


def speed_text(value: float | None) -> str:
    """Return tokens per second with three figures or all before the point."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ms_text(value: float | None) -> str:
    """Return milliseconds with three figures or all before the point."""
    return speed_text(value)


def count_text(value: float | None, n_digits: int = 0) -> str:
    """Return a count or a mean."""
    return UNKNOWN if value is None else f"{value:,.{n_digits}f}"


def bytes_text(value: int | None) -> str:
    """Return a number of bytes in MiB or GiB."""
    if value is None:
        return UNKNOWN
    mebibytes = value / 2**20
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"


def time_text(iso: str) -> str:
    """Return an ISO time in UTC to the minute; what is none as it is."""
    try:
        moment = datetime.datetime.fromisoformat(iso.replace("Z", "+00:00"))
    except ValueError:
        return iso
    return moment.astimezone(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def duration(seconds: float) -> str:
    """Return a duration in the two largest units."""
    whole = max(0, math.ceil(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, second = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {second:02d} s"
    hours, minute = divmod(minutes, 60)
    return f"{hours} h {minute:02d} min"


def row_text(row: Row | Pooled) -> str:
    """Return ratio and interval, or why there are none."""
    if row.ratio is None:
        return "not compared"
    return f"{ratio_text(row.ratio, row.low, row.high)} ({interval_text(row.low, row.high)})"
