"""The real `lucebox` command, in a process of its own, on the built-in model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import pylucebox

CODE = "import sys; from pylucebox.cli.main import main; sys.exit(main())"
MODEL_DIR = Path(pylucebox.__file__).parent / "demo_model"
ONE_THREAD = ("--threads", "1")
COUNT = "Count from 1 to 40, separated by commas.\n1, 2, 3, 4,"


def environment(*extra_path: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*extra_path, *sys.path])}


def run(*arguments: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        cwd=cwd,
        env=environment(),
    )


def json_of(*arguments: str, stdin: str = "", status: int = 0, cwd: Path | None = None) -> Any:
    done = run(*arguments, "--json", stdin=stdin, cwd=cwd)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def plain_text() -> dict[str, Any]:
    """Completion of `COUNT` without MTP."""
    return json_of("generate", COUNT, "--max-tokens", "40", "--mtp", "off", *ONE_THREAD)


def test_demo_gives_equal_digests_a_ratio_per_prompt_and_a_chart(tmp_path: Path) -> None:
    flags = ("--prompts", "3", "--tokens", "24", "--repeats", "2", "--width", "4")
    document = json_of("demo", *flags, cwd=tmp_path)
    assert document["spec"]["effective"] is True
    assert document["build"]["upstream_build"].startswith("b")
    assert len({prompt["digest_off"] for prompt in document["prompts"]}) == 3
    for prompt in document["prompts"]:
        assert prompt["digest_off"] == prompt["digest_on"]
        assert prompt["speedup"] > 0
        assert prompt["num_draft_tokens"] > 0
        assert 1 <= prompt["tokens_per_cycle"] <= 4
        assert all(share is None or 0 <= share <= 1 for share in prompt["acceptance_by_depth"])
    counting = next(prompt for prompt in document["prompts"] if prompt["name"] == "counting")
    assert counting["acceptance_by_depth"][0] > 0.5
    ET.parse(tmp_path / document["chart"])


def test_demo_prints_tables_as_plain_lines_into_a_pipe(tmp_path: Path) -> None:
    done = run("demo", "--prompts", "1", "--tokens", "8", "--repeats", "1", "--chart", "none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "noise: MTP off against itself" in done.stdout
    assert "Same text" in done.stdout
    assert "\x1b[" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("width", ["0", "2", "5", "8"])
def test_generate_gives_the_text_of_mtp_off_at_every_width(plain_text: dict[str, Any], width: str) -> None:
    drafted = json_of("generate", COUNT, "--max-tokens", "40", "--verify-width", width, *ONE_THREAD)
    assert drafted["completion"]["digest"] == plain_text["completion"]["digest"]
    # On a busy machine so few tokens may not earn the prompt back.
    if width == "0" and not drafted["spec"]["effective"]:
        assert drafted["spec"]["reason_code"] == "not-worth-it"
        return
    assert drafted["spec"]["effective"] is True
    if width != "0":
        assert drafted["stats"]["num_draft_tokens"] > 0


def test_generate_streams_text_and_says_how_it_went(plain_text: dict[str, Any]) -> None:
    done = run("generate", "-", "--max-tokens", "40", "--verify-width", "4", *ONE_THREAD, stdin=COUNT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == plain_text["completion"]["text"].rstrip("\n")
    line = done.stderr.splitlines()[-1]
    assert "drafts accepted" in line
    assert "MTP on: " in line


def test_generate_with_a_seed_is_repeatable_and_the_same_with_and_without_mtp() -> None:
    flags = ("--temperature", "0.8", "--seed", "11", "--max-tokens", "24", *ONE_THREAD)
    off = json_of("generate", "def read(path):\n", "--mtp", "off", *flags)
    on = json_of("generate", "def read(path):\n", "--verify-width", "4", *flags)
    other = json_of("generate", "def read(path):\n", "--mtp", "off", *flags, "--seed", "12")
    assert off["completion"]["digest"] == on["completion"]["digest"] != other["completion"]["digest"]
    assert on["completion"]["seed"] == 11


def test_generate_stops_at_a_stop_string_and_leaves_it_out(plain_text: dict[str, Any]) -> None:
    assert " 9," in plain_text["completion"]["text"]
    document = json_of("generate", COUNT, "--max-tokens", "40", "--stop", " 9,", "--verify-width", "8", *ONE_THREAD)
    assert document["completion"]["finish_reason"] == "stop"
    assert document["completion"]["stop_sequence"] == " 9,"
    assert " 9," not in document["completion"]["text"]


@pytest.mark.parametrize(
    ("flags", "status", "kind"),
    [
        (("-m", "nowhere.gguf"), 1, "ModelNotFoundError"),
        (("--mtp", "nowhere.gguf"), 1, "SidecarNotFoundError"),
        (("--device", "no-such-device"), 1, "BackendUnavailableError"),
        (("--n-ctx", "16"), 1, "ContextFullError"),
        (("--n-ctx", "1000000"), 2, "InvalidArgumentError"),
    ],
)
def test_refusals_are_one_message_and_data(flags: tuple[str, str], status: int, kind: str) -> None:
    done = run("generate", COUNT, "--json", *flags, *ONE_THREAD)
    assert done.returncode == status
    error = json.loads(done.stdout)["error"]
    assert error["type"] == kind
    assert error["message"].splitlines()[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_generate_ends_with_130_when_interrupted() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CODE, "generate", COUNT, "--max-tokens", "3000", *ONE_THREAD],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert child.stdout is not None
    child.stdout.read(20)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors


def test_chat_answers_a_list_of_messages() -> None:
    messages = json.dumps([{"role": "user", "content": "Count from 5 to 9, separated by commas."}])
    document = json_of("chat", "--max-tokens", "40", "--thinking", "off", *ONE_THREAD, stdin=messages)
    assert document["message"]["role"] == "assistant"
    assert "5, 6, 7, 8, 9" in document["message"]["content"]
    assert document["completion"]["token_ids"]


def test_chat_goes_on_after_an_interrupted_reply() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CODE, "chat", "--max-tokens", "3000", "--thinking", "off", *ONE_THREAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("Count from 1 to 900, separated by commas.\n")
    child.stdin.flush()
    child.stdout.read(20)
    child.send_signal(signal.SIGINT)
    replies, errors = child.communicate("Count from 5 to 9, separated by commas.\n", timeout=120)
    assert child.returncode == 0, errors
    assert "(cancelled)" in errors
    assert "5, 6, 7, 8, 9" in replies.splitlines()[-1]


def test_doctor_names_build_back_ends_variant_and_verdict() -> None:
    report = json_of("doctor")
    assert report["ok"] is True
    assert report["upstream_build"].startswith("b")
    assert report["series_hash"]
    assert "CPU" in report["backends"]
    assert report["cpu_variant"]
    assert any(device["kind"] == "cpu" for device in report["devices"])
    assert (report["sidecar"]["accepted"], report["sidecar"]["reason_code"]) == (True, "active")
    assert report["sidecar"]["reason"]
    assert report["spec"]["effective"] is True


def test_doctor_says_why_a_model_without_sidecar_does_not_draft(tmp_path: Path) -> None:
    model = shutil.copy(min(MODEL_DIR.glob("*.gguf")), tmp_path / "alone.gguf")
    expected = json_of("doctor", "--model", str(model))
    opened = json_of("doctor", "--model", str(model), "--load")
    for report in (expected, opened):
        assert report["sidecar"]["accepted"] is False
        assert report["spec"]["effective"] is False
        assert report["spec"]["reason_code"] == "no-sidecar"
        assert "mtp-*.gguf" in report["spec"]["reason"]
    assert (expected["spec_is_expectation"], opened["spec_is_expectation"]) == (True, False)


def test_doctor_reports_a_native_library_that_does_not_load(tmp_path: Path) -> None:
    """What the extension imports is taken from it, in the command and in its child, as a broken environment would."""
    blocker = "import sys\nsys.modules['_cffi_backend'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(blocker, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", CODE, "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(str(tmp_path)),
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["native"]["error"]["type"] == "LibraryNotFoundError"
    assert any("_native" in path for path in report["native"]["error"]["searched"])
    assert report["version"] == pylucebox.__version__
    assert report["sidecar"]["accepted"] is True
