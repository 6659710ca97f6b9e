"""Tables and progress, on a terminal and elsewhere."""

from __future__ import annotations

import sys

import pytest

from pylucebox.cli._io import progress
from pylucebox.cli._table import Table, plain_lines, print_table

TABLE = Table("Title", ("name", "range"), (("one", "[0.9, 1.1]"), ("a longer name", "[red]")), has_total=True)


def pretend_terminal(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")


def test_plain_columns_are_aligned() -> None:
    assert plain_lines(TABLE) == [
        "Title",
        "  name                range",
        "  one            [0.9, 1.1]",
        "  a longer name       [red]",
    ]


def test_elsewhere_no_control_characters_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(TABLE)
    assert "\x1b" not in capsys.readouterr().out


def test_on_a_terminal_cells_are_shown_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch, "stdout")
    print_table(TABLE)
    shown = capsys.readouterr().out
    assert "[0.9, 1.1]" in shown
    assert "[red]" in shown
    assert "─" in shown


def test_lines_come_for_each_tenth_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(25, "work") as advance:
        for index in range(25):
            advance(f"part {index}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[-1] == "work: 25 of 25 runs (part 24)"


@pytest.mark.parametrize("on_terminal", [False, True])
def test_what_is_said_meanwhile_goes_to_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, on_terminal: bool
) -> None:
    if on_terminal:
        pretend_terminal(monkeypatch, "stderr")
    with progress(2, "work") as advance:
        advance("first")
        advance.say("a result")
        advance("second")
    captured = capsys.readouterr()
    assert captured.out == "a result\n"
    assert "a result" not in captured.err
    assert ("\x1b" in captured.err) is on_terminal
