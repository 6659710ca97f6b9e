"""`lucebox sim`: table, documents, files, exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pylucebox.cli.main import main
from pylucebox.sim.library import recorded
from pylucebox.sim.rules import RULES
from pylucebox.sim.trace_file import write_trace
from pylucebox.width import WidthCosts


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    """Two short traces, as flags."""
    flags = []
    for trace in recorded()[:2]:
        path = tmp_path / f"{trace.name}.npz"
        write_trace(path, trace.cut(40))
        flags += ["--trace", str(path)]
    return flags


def sim(*arguments: str) -> int:
    return main(["sim", *arguments])


def test_the_table_has_every_rule_and_the_bounds(texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert sim(*texts, "--machine", "flat-gpu") == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[2 : 2 + len(RULES)]] == [rule.name for rule in RULES]
    assert lines[2 + len(RULES)].startswith("  best fixed")
    assert lines[3 + len(RULES)].startswith("  informed")
    assert lines[4 + len(RULES)].startswith("  clairvoyant")
    assert "flat-gpu" in out
    assert out.count("wanted") == 5


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_and_files_say_the_same(texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    assert sim(*texts, "--rule", "fixed-3", "--rule", "off", "--json", "--output", str(folder)) == 0
    found = document(capsys)
    assert found == json.loads((folder / "sim.json").read_text(encoding="utf-8"))
    assert [rule["name"] for rule in found["rules"]] == ["fixed-3", "off"]
    assert len(found["curves"]) == 6
    assert (folder / "sim.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    for name in ("sim.svg", "reliability.svg"):
        assert ElementTree.parse(folder / name).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_full_suite_has_more_of_everything(texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert sim(*texts, "--suite", "full", "--rule", "off", "--machine", "gfx1151-16k", "--json") == 0
    found = document(capsys)
    assert found["seeds"] == [1, 2, 3]
    assert {cell["section"] for cell in found["cells"]} == {"single", "short", "sequence", "rough", "batch", "prefill"}


def test_check_turns_a_missed_target_into_status_1(texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert sim(*texts, "--rule", "off", "--machine", "flat-gpu", "--check") == 1
    assert "MISSED" in capsys.readouterr().out


def test_costs_come_from_a_file_as_well(texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = WidthCosts((1.0,) * 8, (1.0,) * 7, 0.0, 0.0, 0, "file")
    (tmp_path / "mine.json").write_text(json.dumps(costs.as_dict()))
    assert sim(*texts, "--rule", "off", "--machine", str(tmp_path / "mine.json"), "--json") == 0
    assert [(each["name"], each["evidence"]) for each in document(capsys)["curves"]] == [("mine", "measured")]


def test_reliability_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim("--reliability", "--output", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[2:10]] == [*"1234567", "all"]
    assert "<svg" in (tmp_path / "sim.html").read_text(encoding="utf-8")
    assert sim("--reliability", "--json") == 0
    assert len(document(capsys)["reliability"]) == 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rule", "luck"], "linear-fit"),
        (["--machine", "abacus"], "gfx1151-16k"),
        (["--suite", "half"], "ci"),
        (["--reliability", "--check"], "replays nothing"),
        (["--seed", "-1"], "whole number"),
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim(*arguments, "--json") == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert json.loads(captured.out)["error"]["message"]


def test_two_machines_of_one_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim("--machine", "cliff-5", "--machine", "cliff-5") == 2
    assert "machines are called 'cliff-5'" in capsys.readouterr().err


def test_two_texts_of_one_name_are_refused(texts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert sim(*texts, *texts) == 2
    assert "called" in capsys.readouterr().err


def test_files_that_cannot_be_read_or_written_are_status_1(
    texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"nothing")
    assert sim("--trace", str(bad)) == 1
    assert "no intact archive" in capsys.readouterr().err
    assert sim(*texts, "--rule", "off", "--machine", "flat-gpu", "--output", str(bad)) == 1
    assert "cannot write" in capsys.readouterr().err
