"""A session as Markdown, to be pasted into an issue."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pylucebox.ab import report_data as data
from pylucebox.ab import wording
from pylucebox.ab.results import WorkloadSummary
from pylucebox.ab.store import Session

__all__ = ["render"]

# What Markdown or HTML would take for markup, and what would end a cell or a line.
_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>|#~])")
_BREAKS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


def render(session: Session) -> str:
    """Return the report.

    Parameters
    ----------
    session
        A session with its summary. Texts in it may hold any characters.

    Raises
    ------
    ValueError
        The session has no summary.
    """
    summary = data.summary_of(session)
    lines = ["# lucebox ab", ""]
    lines += [f"- {_text(sentence)}" for sentence in data.headline(session)]
    warnings = data.warnings_of(session)
    if warnings:
        lines += ["", "**Before you read the figures:**", "", *(f"- {_text(text)}" for text in warnings)]
    lines += ["", "## Verdicts", "", *_table(data.comparison_sheet(session.plan, summary.workloads)), ""]
    lines += _pooled(session)
    lines += ["## Workloads", ""]
    for each in summary.workloads:
        lines += _workload(each)
    lines += ["## Validity", ""]
    lines += [f"{summary.n_runs - summary.n_invalid} of {summary.n_runs} runs count.", ""]
    for sheet in (data.issues_sheet(session), data.invalid_sheet(session)):
        if sheet.rows:
            lines += _titled(sheet)
    lines += ["## Method", ""]
    for sheet in (data.method_sheet(session), data.arms_sheet(session.plan), data.workloads_sheet(session.plan)):
        lines += _titled(sheet)
    lines += ["## Environment", ""]
    for sheet in data.environment_sheets(session.env):
        if sheet.rows:
            lines += _titled(sheet)
    lines += ["## What the words mean", ""]
    lines += [f"- **{verdict.value}**: {_text(meaning)}" for verdict, meaning in wording.MEANINGS.items()]
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    return _MARKUP.sub(r"\\\1", _BREAKS.sub(" ", text))


def _table(sheet: data.Sheet) -> Iterable[str]:
    def row(cells: Iterable[str]) -> str:
        return "| " + " | ".join(_text(cell) for cell in cells) + " |"

    last = len(sheet.columns) - 1
    marks = ("---" if at < sheet.n_labels or (sheet.is_wide and at == last) else "---:" for at in range(last + 1))
    return [row(sheet.columns), "|" + "|".join(marks) + "|", *map(row, sheet.rows)]


def _titled(sheet: data.Sheet) -> list[str]:
    return [f"**{_text(sheet.title)}**", "", *_table(sheet), ""]


def _pooled(session: Session) -> list[str]:
    pooled = data.summary_of(session).pooled
    rows = tuple(
        (
            each.arm,
            each.verdict,
            wording.row_text(each),
            wording.p_text(each.p_holm),
            str(each.n_workloads),
            str(each.n_pairs),
        )
        for each in pooled
    )
    columns = ("arm", "verdict", "ratio (95 % interval)", "p Holm", "workloads", "pairs")
    sheet = data.Sheet("All workloads with the same text", columns, rows, n_labels=2)
    return _titled(sheet) if rows else []


def _workload(each: WorkloadSummary) -> list[str]:
    lines = [f"### {_text(each.workload)}", "", f"{_text(each.title)}. Positive control: {_text(each.control)}.", ""]
    lines += [f"- **{_text(row.arm)}**: {row.verdict}, {_text(row.reason)}" for row in each.rows]
    lines.append("")
    sheets = (data.speed_sheet(each), data.block_ratio_sheet(each), data.acceptance_sheet(each))
    for sheet in sheets:
        if sheet is not None:
            lines += _titled(sheet)
    return lines
