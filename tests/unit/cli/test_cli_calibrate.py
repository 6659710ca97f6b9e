"""`lucebox calibrate` on a made-up engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pylucebox.cli._bars import bar
from pylucebox.cli.calibrate import chart_lines
from pylucebox.width import WidthCosts

Lucebox = Callable[..., int]
COSTS = WidthCosts((1000, 1600, 2200, 2800, 3400, 4000, 4600, 5200), (500,) * 7, 5.0, 20.0, 128, "sweep")


def test_table_and_chart_of_each_length(lucebox: Lucebox, factory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert lucebox("calibrate", "--n-past", "512,128") == 0
    out = capsys.readouterr().out
    assert out.count("Cycle by width at") == 2
    assert out.index("at 128 tokens") < out.index("at 512 tokens")
    assert "  512 tokens   1.00    1.60    2.20" in out
    (engine,) = factory.opened
    assert [call["measure"] for call in engine.calls] == [128, 512]
    assert (engine.options.verify_width, engine.options.spec, engine.options.width_costs) == (0, "require", None)


def test_lengths_that_do_not_fit_are_measured_once(lucebox: Lucebox, capsys: pytest.CaptureFixture[str]) -> None:
    assert lucebox("calibrate", "--n-past", "1000,3000,4000", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [costs["n_past"] for costs in document["costs"]] == [1000, 2000]
    assert document["model"] == "made/up.gguf"
    assert [WidthCosts.from_dict(costs).n_past for costs in document["costs"]] == [1000, 2000]


def test_output_is_the_document(lucebox: Lucebox, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "costs.json"
    assert lucebox("calibrate", "--json", "--output", str(path)) == 0
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(capsys.readouterr().out)


def test_output_that_cannot_be_written_is_an_error(
    lucebox: Lucebox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lucebox("calibrate", "--output", str(tmp_path / "no" / "costs.json")) == 1
    assert "cannot write" in capsys.readouterr().err


def test_machine_that_is_too_slow_is_an_error(
    lucebox: Lucebox, factory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    factory.settings["too_slow"] = True
    assert lucebox("calibrate") == 1
    assert "cannot measure" in capsys.readouterr().err


@pytest.mark.parametrize("lengths", ["3", "", "128,x", "-5"])
def test_lengths_that_are_none(lucebox: Lucebox, capsys: pytest.CaptureFixture[str], lengths: str) -> None:
    assert lucebox("calibrate", f"--n-past={lengths}") == 2
    assert "--n-past" in capsys.readouterr().err


def test_chart_says_how_many_tokens_a_cycle_must_bring() -> None:
    lines = chart_lines(COSTS, drawn=False)
    assert len(lines) == 9
    assert "1.00 tokens" in lines[1]
    assert "2.10 tokens" in lines[2]  # 1600 + 500 us in steps of 1000
    assert lines[8].count("#") == 40
    drawn = chart_lines(COSTS, drawn=True)
    assert [line.endswith("tokens") for line in drawn[1:]] == [True] * 8
    assert "█" in drawn[8]


def test_bars_are_as_long_as_their_share() -> None:
    assert bar(0.5, 10, drawn=False) == "#####"
    assert bar(0.5, 10, drawn=True) == "█████"
    assert bar(0.55, 10, drawn=True) == "█████▌"
    assert bar(2.0, 4, drawn=True) == "████"
    assert bar(-1.0, 4, drawn=False) == ""
