"""`lucebox ab` on the built-in model: real workers, real texts, a real directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pylucebox import Engine
from pylucebox.ab.store import load_cycles, load_session
from pylucebox.cli.main import main

FEW = ["--workload", "sweep-count", "--pairs", "2", "--aa", "1", "--sentinel", "off"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    directory = tmp_path_factory.mktemp("ab") / "session"
    status = main(["ab", *FEW, "--arms", "off,k3,adaptive", "--out", str(directory)])
    return directory, status


def test_all_arms_give_the_tokens_of_the_engine(finished: tuple[Path, int], demo: Engine) -> None:
    session = load_session(finished[0])
    assert session.summary is not None
    assert session.summary.stopped is None
    assert session.summary.n_invalid == 0
    request = session.plan.suite.workloads[0].requests[0]
    digest = demo.generate(request.prompt, max_tokens=request.max_tokens).digest
    texts = {run.sequences[0].token_sha256 for run in session.runs if run.phase in ("aa", "main")}
    assert texts == {digest}
    [workload] = session.summary.workloads
    assert workload.control == "digest changes"
    assert {row.identity for row in workload.rows} == {"same tokens"}


def test_two_pairs_claim_nothing(finished: tuple[Path, int]) -> None:
    session = load_session(finished[0])
    assert session.summary is not None
    verdicts = {row.verdict for workload in session.summary.workloads for row in workload.rows}
    assert verdicts <= {"UNRESOLVED", "EQUIVALENT"}
    assert finished[1] == session.summary.exit_code == (3 if "UNRESOLVED" in verdicts else 0)


def test_drafts_and_widths_are_those_of_the_arms(finished: tuple[Path, int]) -> None:
    session = load_session(finished[0])
    for run in session.runs:
        assert run.spec is not None
        if run.arm == "off":
            assert run.spec["num_draft_tokens"] == 0
        elif run.arm == "k3":
            assert run.spec["num_draft_tokens"] > 0
            assert run.widths["4"] > 0
        cycles = load_cycles(session.directory, run)
        assert sum(cycle.n_tokens for cycle in cycles) == run.sequences[0].n_tokens - 1
        assert run.sequences[0].n_cached == 0


def test_reports_and_json_are_there(finished: tuple[Path, int], capfd: pytest.CaptureFixture[str]) -> None:
    directory, _ = finished
    assert (directory / "report.md").read_text(encoding="utf-8")
    assert "http" not in (directory / "report.html").read_text(encoding="utf-8").replace("http://www.w3.org", "")
    assert main(["ab", "report", str(directory), "--json"]) == finished[1]
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert document["schema"] == 1
    assert [row["arm"] for row in document["workloads"][0]["rows"]] == ["k3", "adaptive"]
    assert main(["ab", "compare", str(directory), str(directory)]) == 0


def test_directory_of_a_session_is_not_overwritten(
    finished: tuple[Path, int], capfd: pytest.CaptureFixture[str]
) -> None:
    before = (finished[0] / "runs.jsonl").read_bytes()
    assert main(["ab", *FEW, "--arms", "off,k3", "--out", str(finished[0])]) == 2
    assert "--resume" in capfd.readouterr().err
    assert (finished[0] / "runs.jsonl").read_bytes() == before


def test_complete_session_is_resumed_without_a_run(finished: tuple[Path, int]) -> None:
    before = (finished[0] / "runs.jsonl").read_bytes()
    assert main(["ab", "--resume", str(finished[0])]) == finished[1]
    assert (finished[0] / "runs.jsonl").read_bytes() == before


def test_several_sequences_and_one_process_per_arm(tmp_path: Path) -> None:
    few = ["--workload", "multi-3-short", "--pairs", "1", "--aa", "1", "--sentinel", "off", "--isolation", "request"]
    main(["ab", *few, "--arms", "off,k2", "--out", str(tmp_path / "s")])
    session = load_session(tmp_path / "s")
    assert session.summary is not None
    assert session.summary.n_invalid == 0
    assert any("shared a process" in note for note in session.summary.notes)
    [row] = session.summary.workloads[0].rows
    assert row.identity == "same tokens"
    assert all(len(run.sequences) == 3 for run in session.runs if run.phase == "main")
