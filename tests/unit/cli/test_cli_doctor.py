"""`lucebox doctor` with a made-up native library."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pylucebox._build import DEMO_MODEL
from pylucebox._gguf import GgufModel  # noqa: F401 - the sidecar search needs it; fails here rather than in a test
from pylucebox.cli import _probe, doctor

Lucebox = Callable[..., int]


def healthy() -> dict[str, Any]:
    """What the probe of a sound installation reports."""
    return {
        "system": {
            "version": "1.2.3",
            "compiler": "GNU 13",
            "build_type": "Release",
            "cmake_args": "-DGGML_VULKAN=ON",
            "backends": [{"name": "CPU", "features": {"AVX2": "1"}}],
            "devices": [
                {
                    "name": "CPU0",
                    "description": "A processor",
                    "kind": "cpu",
                    "backend": "CPU",
                    "memory_free_bytes": 2**30,
                    "memory_total_bytes": 2**31,
                }
            ],
        },
        "libraries": ["/x/pylucebox/lib/libggml-cpu-haswell.so"],
        "engine": {
            "spec": {"requested": True, "effective": True, "reason_code": "active", "reason": "it fits the model"},
            "dispatch": {"promise": "bits", "reason": "rows keep their bits", "notes": ["eight rows at most"]},
            "model": {"name": "made-up"},
        },
        "native_error": None,
        "engine_error": None,
    }


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Report that the probe will give; tests change it."""
    report = healthy()
    report["asked"] = []

    def probe(model: str | None, *, load: bool) -> dict[str, Any]:
        report["asked"].append((model, load))
        return report

    monkeypatch.setattr(doctor, "probe", probe)
    return report


def report_of(lucebox: Lucebox, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    status = lucebox("doctor", "--json", *flags)
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("probed")
def test_json_names_build_back_ends_variant_and_verdict(lucebox: Lucebox, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = report_of(lucebox, capsys)
    assert status == 0
    assert report["ok"] is True
    assert {"version", "upstream_build", "series_hash"} <= report.keys()
    assert report["backends"] == ["CPU"]
    assert report["cpu_variant"] == "haswell"
    assert report["build"]["cmake_args"] == "-DGGML_VULKAN=ON"
    assert report["devices"][0]["memory_total_bytes"] == 2**31
    assert report["sidecar"]["reason_code"] == "active"
    assert report["sidecar"]["reason"]
    assert report["spec"]["effective"] is True
    assert report["cpu"]["threads_default"] >= 1


@pytest.mark.usefixtures("probed")
def test_page_says_the_same_in_text(lucebox: Lucebox, capsys: pytest.CaptureFixture[str]) -> None:
    assert lucebox("doctor") == 0
    shown = capsys.readouterr().out
    for part in (
        "back ends: CPU",
        "CPU variant: haswell",
        "MTP block: accepted",
        "drafting: on",
        "verifying: the same text as without drafts, always: rows keep their bits",
        "note: eight rows at most",
        "1.0 GiB free of 2.0",
    ):
        assert part in shown
    assert shown.rstrip().endswith("everything is in order")


def test_a_library_that_fails_to_load_is_reported_with_where_it_was_searched(
    lucebox: Lucebox, probed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"type": "LibraryNotFoundError", "message": "cannot load", "searched": ["/x/_native.abi3.so"]}
    probed.update(system=None, libraries=[], engine=None, native_error=error)
    status, report = report_of(lucebox, capsys)
    assert status == 1
    assert report["native"] == {"ok": False, "error": error}
    assert report["backends"] == []
    assert report["cpu_variant"] is None
    assert report["os"]["python"]
    assert lucebox("doctor") == 1
    shown = capsys.readouterr().out
    assert "searched: /x/_native.abi3.so" in shown
    assert "SOMETHING IS BROKEN" in shown


def test_a_model_that_is_missing_is_reported_and_the_rest_still_comes(
    lucebox: Lucebox, probed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    probed["engine"] = None
    status, report = report_of(lucebox, capsys, "--model", "nowhere.gguf")
    assert status == 1
    assert report["model_error"]["type"] == "ModelNotFoundError"
    assert report["sidecar"] is None
    assert report["backends"] == ["CPU"]


def test_a_model_of_ones_own_is_only_loaded_when_asked_to(
    lucebox: Lucebox, probed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in ((), ("--model", "m.gguf"), ("--model", "m.gguf", "--load")):
        report_of(lucebox, capsys, *flags)
    assert probed["asked"] == [(None, True), ("m.gguf", False), ("m.gguf", True)]


def test_without_loading_the_state_is_marked_as_expectation(
    lucebox: Lucebox, probed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    probed["engine"] = None
    model = str(DEMO_MODEL)
    status, report = report_of(lucebox, capsys, "--model", model)
    assert status == 0
    assert report["spec_is_expectation"] is True
    assert report["spec"]["effective"] is True
    assert report["dispatch"]["spec"] == report["spec"]
    assert (report["dispatch"]["promise"], report["dispatch"]["max_rows"]) == ("bits", 8)


def test_an_engine_that_cannot_be_opened_is_reported(
    lucebox: Lucebox, probed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    probed.update(engine=None, engine_error={"type": "OutOfMemoryError", "message": "too little memory"})
    status, report = report_of(lucebox, capsys)
    assert status == 1
    assert report["spec"] is None
    assert report["engine_error"]["type"] == "OutOfMemoryError"


def test_the_home_directory_is_not_named(
    lucebox: Lucebox, probed: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/home/someone/lib")
    probed["libraries"] = ["/home/someone/venv/libggml-cpu.so"]
    report_text = json.dumps(report_of(lucebox, capsys)[1])
    assert "someone" not in report_text
    assert "~/venv/libggml-cpu.so" in report_text


def child_that(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the probe's child run `code`."""
    monkeypatch.setattr(_probe, "_BOOT", code)


def test_a_library_for_another_processor_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    child_that(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    error = _probe.probe(None, load=True)["native_error"]
    assert "SIGILL" in error["message"]
    assert "another processor" in error["message"]


def test_a_crash_while_opening_the_model_keeps_what_was_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    child_that(
        monkeypatch,
        'import os, signal, sys; print(\'{"system": {"backends": []}}\', flush=True);'
        " print('GGML_ASSERT failed', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGABRT)",
    )
    report = _probe.probe(None, load=True)
    assert report["system"] == {"backends": []}
    assert report["native_error"] is None
    assert "SIGABRT" in report["engine_error"]["message"]
    assert "GGML_ASSERT failed" in report["engine_error"]["message"]


def test_a_child_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    child_that(monkeypatch, "import time; time.sleep(60)")
    assert _probe.probe(None, load=True, timeout_s=0.2)["native_error"]["type"] == "Timeout"


def test_a_child_that_fails_in_python_shows_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    child_that(monkeypatch, "raise ImportError('no such thing')")
    assert "no such thing" in _probe.probe(None, load=True)["native_error"]["message"]


def test_the_child_uses_the_very_package_of_its_parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory of the same name in the working directory must not get in the way."""
    (tmp_path / "pylucebox").mkdir()
    (tmp_path / "pylucebox" / "__init__.py").write_text("raise RuntimeError('the wrong one')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    boot = _probe._BOOT.partition("from pylucebox")[0]
    child_that(
        monkeypatch,
        boot + "import pylucebox.cli, json; print(json.dumps({'system': {'where': pylucebox.cli.__file__}}))",
    )
    where = _probe.probe(None, load=False)["system"]["where"]
    assert where == sys.modules["pylucebox.cli"].__file__
