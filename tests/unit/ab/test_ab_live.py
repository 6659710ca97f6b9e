"""The display of a running session."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from pylucebox.ab import live
from pylucebox.ab.records import Issue, Plan
from pylucebox.ab.store import Session

from ._report_sessions import ARMS, EFFECTS, WORKLOADS, session, workload

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@pytest.fixture(scope="module")
def done() -> Session:
    return session(EFFECTS, workloads=WORKLOADS, arms=ARMS)[0]


def play(done: Session, *, tty: bool, plan: Plan | None = None) -> str:
    """Show a session as it would have run, and return what was written."""
    out = io.StringIO()
    plan = plan or done.plan
    final = [row for each in done.summary.workloads for row in each.rows] if done.summary else []
    with live.open_display(plan, tty=tty, out=out) as display:
        display.say("12 rows, 207 runs")
        # Drawing takes its time: the first runs and the last blocks show everything.
        n_all = len(done.runs)
        numbers = [*range(5), *range(n_all - 40, n_all)] if tty else range(n_all)
        for number in numbers:
            planned, record = done.plan.runs[number], done.runs[number]
            display.started(planned, float(n_all - number))
            display.finished(record)
            if record.phase == "main" and record.arm == ARMS[-1].name:
                display.rows(final if record.block > 4 else [])
    return out.getvalue()


def test_lines_are_plain_and_few(done: Session) -> None:
    text = play(done, tty=False)
    assert CONTROL.search(text) is None
    lines = text.splitlines()
    assert all(line.startswith("lucebox ab: ") for line in lines)
    told = [line for line in lines if "invalid: run" not in line]
    assert len(told) < 20
    assert f"{len(done.runs)} of {len(done.runs)} runs, 9 invalid" in told[-1]
    assert any("baseline against itself" in line for line in told)
    assert any("left" in line for line in told)


def test_lines_name_every_invalid_run_and_its_rule(done: Session) -> None:
    lines = [line for line in play(done, tty=False).splitlines() if "invalid: run" in line]
    assert len(lines) == 9
    assert all("multi-3-short, k3: cached_prompt (16 of 120 prompt tokens)" in line for line in lines)


def test_nothing_from_outside_can_move_the_cursor(done: Session) -> None:
    bad = replace(done.runs[0], issues=(Issue(code="died", detail="\x1b[2J\nlucebox ab: all is well\r\x07"),))
    out = io.StringIO()
    with live.open_display(done.plan, tty=False, out=out) as display:
        display.finished(bad)
        display.say("one\ntwo\x1b[31m")
    assert CONTROL.search(out.getvalue()) is None
    assert len(out.getvalue().splitlines()) == 2


def test_lines_without_an_estimate_say_none(done: Session) -> None:
    out = io.StringIO()
    with live.open_display(done.plan, tty=False, out=out) as display:
        for planned, record in zip(done.plan.runs, done.runs, strict=True):
            display.started(planned, None)
            display.finished(record)
    assert "left" not in out.getvalue()


def test_session_that_grows_counts_on(done: Session) -> None:
    lines = play(done, tty=False, plan=replace(done.plan, runs=done.plan.runs[:10])).splitlines()
    assert any("10 of 10 runs" in line for line in lines)
    assert f" {len(done.runs)} runs" in lines[-1]


def test_resumed_session_goes_on_counting(done: Session) -> None:
    out = io.StringIO()
    with live.open_display(done.plan, tty=False, out=out) as display:
        for planned, record in list(zip(done.plan.runs, done.runs, strict=True))[150:]:
            display.started(planned, 9.0)
            display.finished(replace(record, issues=()))
    counted = [line for line in out.getvalue().splitlines() if " runs" in line]
    assert len(counted) == 3


def shown(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_table_shows_speeds_ratios_and_verdicts(done: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "40")
    text = shown(play(done, tty=True))
    for expected in ("sweep-count", "adaptive", "tok/s off", "1.42", "FASTER", "DIVERGED", "12 rows, 207 runs"):
        assert expected in text
    assert "run 1 of" in text
    assert "comparison: sweep-json, off" in text
    assert "cached_prompt" in text


@pytest.mark.parametrize(("columns", "lines"), [(40, 10), (60, 24), (200, 60), (20, 5)])
def test_table_fits_the_terminal(done: Session, monkeypatch: pytest.MonkeyPatch, columns: int, lines: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(lines))
    valid = replace(done, runs=tuple(replace(run, issues=()) for run in done.runs))  # no long lines above the table
    text = play(valid, tty=True)
    assert all(len(line) <= columns for line in shown(text).splitlines())
    # Each drawing goes back up over the one before: never further than the screen is high.
    ups = [
        text[match.start() : match.end()].count("\x1b[1A") for match in re.finditer(r"(?:\r?\x1b\[2K|\x1b\[1A)+", text)
    ]
    assert max(ups) <= lines


def test_table_takes_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    works = [workload("[red]x[/red]"), workload("名前")]
    done, _ = session({}, workloads=works, arms=(ARMS[0], replace(ARMS[1], name="[b]k3")), n_pairs=2)
    text = shown(play(done, tty=True))
    assert "[red]x[/red]" in text
    assert "[b]k3" in text
    assert "名前" in text


def test_table_goes_and_what_was_said_stays(done: Session) -> None:
    text = play(done, tty=True)
    assert text.rstrip().endswith(("\x1b[2K", "\x1b[?25h"))
    assert "12 rows, 207 runs" in text
