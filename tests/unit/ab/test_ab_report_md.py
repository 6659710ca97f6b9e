"""The report as Markdown."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pylucebox.ab import report_md
from pylucebox.ab.results import Verdict

from ._report_sessions import ARMS, example, session, workload


def cells(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line.strip())[1:-1]


def test_report_has_a_row_per_comparison_with_its_verdict() -> None:
    done, _ = example()
    text = report_md.render(done)
    assert done.summary is not None
    for each in done.summary.workloads:
        assert f"### {each.workload}" in text
        for row in each.rows:
            assert re.search(rf"^\| {row.workload} \| {row.arm} \| {row.verdict} \|", text, re.MULTILINE)
    for verdict in Verdict:
        assert f"**{verdict.value}**" in text


def test_tables_have_as_many_cells_in_each_row_as_heads() -> None:
    text = report_md.render(example()[0])
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) > 10
    for table in tables:
        assert len({len(cells(line)) for line in table.splitlines()}) == 1
        assert set(table.splitlines()[1]) <= set("|-:")


def test_marks_in_texts_do_not_become_markup() -> None:
    work = replace(workload("w|x"), title="<b>*bold*</b>\n# heading\x1b[31m")
    text = report_md.render(session({}, workloads=[work], arms=ARMS[:2])[0])
    assert r"w\|x" in text
    assert r"\<b\>\*bold\*\</b\> \# heading \[31m" in text
    assert "\x1b" not in text


def test_session_without_a_summary_is_refused() -> None:
    with pytest.raises(ValueError, match="no summary"):
        report_md.render(replace(example()[0], summary=None))
