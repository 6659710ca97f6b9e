"""`lucebox trace` on the built-in model: what it records, from where, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pylucebox import ContextFullError, InvalidArgumentError
from pylucebox._build import DEMO_MODEL
from pylucebox._sampling import SamplingParams
from pylucebox.cli.main import main
from pylucebox.sim.record import OpenRecorder, TextSource, record
from pylucebox.sim.trace import Trace
from pylucebox.sim.trace_file import read_trace


def trace_of(tmp_path: Path, *arguments: str) -> Trace:
    path = tmp_path / "x.trace.npz"
    assert main(["trace", *arguments, "--output", str(path)]) == 0
    return read_trace(path)


def test_a_prompt_is_continued_and_the_command_says_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = trace_of(tmp_path, "--prompt", "Count: 1, 2, 3, 4,", "--max-tokens", "24", "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["name"], found["n_tokens"], found["digest"]) == ("x", len(trace.tokens), trace.digest)
    assert found["reliability"][-1]["depth"] is None
    assert trace.max_tokens == 24
    assert trace.kind == "text"
    assert trace.facts["text"] == "temperature 0, seed 0"


def test_prompt_and_text_come_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt, text = tmp_path / "prompt", tmp_path / "text"
    prompt.write_text("Once upon a", encoding="utf-8")
    text.write_text(" time there was a lighthouse at the end of the bay.", encoding="utf-8")
    trace = trace_of(tmp_path, "--prompt-file", str(prompt), "--text", str(text), "--name", "tale", "--kind", "prose")
    with OpenRecorder(DEMO_MODEL, n_threads=1, device="cpu") as recorder:
        assert list(trace.tokens) == recorder.tokenize(text.read_text(encoding="utf-8"), add_special=False)
    assert (trace.name, trace.kind, trace.facts["text"]) == ("tale", "prose", "forced")
    assert "all" in capsys.readouterr().out


def test_a_workload_brings_prompt_length_and_sampling_and_flags_come_first(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "--workload", "sweep-prose-essay", "--max-tokens", "16")
    assert (trace.name, trace.kind, len(trace.tokens)) == ("sweep-prose-essay", "prose", 16)
    assert trace.facts["text"] == "temperature 0.7, seed 1"
    other = trace_of(tmp_path, "--workload", "sweep-prose-essay", "--max-tokens", "16", "--seed", "2", "--name", "b")
    assert other.facts["text"] == "temperature 0.7, seed 2"
    assert other.tokens != trace.tokens
    assert other.facts["prompt_sha256"] == trace.facts["prompt_sha256"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "required"),
        (["--prompt", ""], 2, "not empty"),
        (["--prompt", "x", "--workload", "json"], 2, "not allowed"),
        (["--workload", "nonsense"], 2, "sweep-count"),
        (["--workload", "multi-3"], 2, "single request"),
        (["--prompt-file", "nowhere"], 1, "No such file"),
        (["--prompt", "x", "--text", "nowhere"], 1, "No such file"),
        (["--prompt", "x", "--mtp", "off"], 1, "off-requested"),
        (["--prompt", "x", "--max-tokens", "5000"], 1, "n_ctx is 4096"),
    ],
)
def test_what_cannot_be_recorded_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, words: str
) -> None:
    assert main(["trace", *arguments, "--output", str(tmp_path / "x")]) == status
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_text_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    (tmp_path / "empty").write_bytes(b"")
    assert main(["trace", "--prompt-file", str(tmp_path / "latin"), "-o", str(tmp_path / "x")]) == 2
    assert "not UTF-8" in capsys.readouterr().err
    assert main(["trace", "--prompt", "x", "--text", str(tmp_path / "empty"), "-o", str(tmp_path / "x")]) == 2
    assert "a token or more" in capsys.readouterr().err


def test_a_session_can_go_on_after_a_refused_text() -> None:
    greedy = SamplingParams(temperature=0.0, seed=0)
    with OpenRecorder(DEMO_MODEL, n_ctx=64, n_threads=1, device="cpu") as recorder:
        source = {"name": "x", "kind": "y", "prompt": recorder.tokenize("a b c"), "sampling": greedy}
        with pytest.raises(ContextFullError):
            record(recorder.session, TextSource(**source, max_tokens=64), {})
        with pytest.raises(InvalidArgumentError):
            record(recorder.session, TextSource(**source, max_tokens=1, forced=(1, 2)), {})
        with pytest.raises(InvalidArgumentError):
            record(recorder.session, TextSource(**source, max_tokens=3, forced=(1, 10**6, 2)), {})
        assert len(record(recorder.session, TextSource(**source, max_tokens=8), {}).tokens) == 8


def test_without_a_place_the_file_lies_here_and_has_the_name_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "--workload", "sweep-count", "--max-tokens", "8"]) == 0
    assert main(["trace", "--prompt", "1, 2,", "--max-tokens", "8", "--name", "mine"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"sweep-count.trace.npz", "mine.trace.npz"}
