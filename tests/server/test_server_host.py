"""Upstream's server in a process of its own: it starts, answers, and ends as a service should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from _server import Server, ServerDied, server_environment

from pylucebox import LibraryNotFoundError, _server_host


def test_answers_and_ends_in_good_order(demo_model: Path, tmp_path: Path) -> None:
    with Server(demo_model, tmp_path / "log", "--ctx-size", "128", "--parallel", "1") as server:
        assert server.get("/health") == {"status": "ok"}
        assert server.complete("def add(a, b):", n_predict=4)["tokens_predicted"] == 4
        assert server.close() == 0


def test_model_that_is_missing_is_the_exit_code_of_upstream(tmp_path: Path) -> None:
    with pytest.raises(ServerDied) as caught:
        Server(tmp_path / "none.gguf", tmp_path / "log")
    assert caught.value.exit_code == 1
    assert "none.gguf" in str(caught.value)


def test_flag_that_upstream_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ServerDied) as caught:
        Server(tmp_path / "none.gguf", tmp_path / "log", "--no-such-flag")
    assert caught.value.exit_code == 1


def test_help_is_that_of_llama_server() -> None:
    call = [sys.executable, "-m", "pylucebox._server_host", "--help"]
    done = subprocess.run(call, env=server_environment(), capture_output=True, text=True, check=True)
    assert "--spec-type" in done.stdout


def test_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_server_host, "find_native_dir", lambda: tmp_path)
    with pytest.raises(LibraryNotFoundError) as caught:
        _server_host.host_server([])
    assert Path(caught.value.searched[0]).parent == tmp_path / "lib"
