"""Servers as arms: both dialects, and every way in which a server can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pylucebox.ab.errors import ArmError
from pylucebox.ab.openai_client import Address, ServerError, complete, dialect_of, is_ready
from pylucebox.ab.records import Arm, Request
from pylucebox.ab.server_arm import GUARD, ServerProcess, fill_in, open_server_arm, open_url_arm

sys.path.insert(0, str(Path(__file__).parent))

from _scripted_server import make_handler

SERVER = str(Path(__file__).with_name("_scripted_server.py"))
REQUEST = Request(prompt="Once", max_tokens=6)
WARMUP = Request(prompt="Other", max_tokens=2)


@contextmanager
def serving(behaviour: str) -> Iterator[tuple[Address, Any]]:
    handler = make_handler(behaviour)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # broken connections are the subject
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Address("127.0.0.1", server.server_address[1]), handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def arm(behaviour: str, **settings: Any) -> Arm:
    command = (sys.executable, SERVER, "--port", "{port}", "--behaviour", behaviour)
    return Arm(name="theirs", kind="server", command=command, **settings)


def opened(behaviour: str, health_timeout_s: float = 20.0, timeout_s: float = 20.0) -> Any:
    return open_server_arm(arm(behaviour), values={}, health_timeout_s=health_timeout_s, timeout_s=timeout_s)


def test_native_dialect_gives_ids_times_and_drafts() -> None:
    with serving("native") as (address, handler):
        dialect = dialect_of(address, None, 5.0)
        raw, drafts = complete(address, dialect, REQUEST, timeout_s=5.0)
    assert dialect.path == "/completion"
    assert raw.token_ids == (100, 101, 102, 103, 104, 105)
    assert (raw.n_tokens, raw.n_prompt, raw.n_cached, raw.finish_reason) == (6, 9, 0, "length")
    assert (raw.prefill_ms, raw.decode_ms) == (4.0, 8.0)
    assert [count for count, _ in raw.arrivals] == [1, 2, 3, 4, 5, 6]
    assert drafts == {"num_draft_tokens": 6, "num_accepted_tokens": 5}
    body = handler.bodies[-1]
    assert body["cache_prompt"] is False
    assert body["return_tokens"] is True
    assert "top_k" not in body


def test_openai_dialect_gives_text_and_usage() -> None:
    with serving("openai") as (address, handler):
        raw, drafts = complete(address, dialect_of(address, None, 5.0), REQUEST, timeout_s=5.0)
    assert raw.token_ids is None
    assert raw.text == "t0 t1 t2 t3 t4 t5 "
    assert (raw.n_tokens, raw.n_prompt, raw.n_cached) == (6, 9, None)
    assert raw.decode_ms is None
    assert drafts["num_draft_tokens"] == 0
    assert handler.bodies[-1]["model"] == "scripted"


def test_sampling_reaches_the_server() -> None:
    request = Request(prompt="x", max_tokens=2, temperature=0.7, top_k=20, top_p=0.9, seed=5, stop=("END",))
    with serving("openai") as (address, handler):
        complete(address, dialect_of(address, "mine", 5.0), request, timeout_s=5.0)
    wanted = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "seed": 5, "stop": ["END"], "model": "mine"}
    assert wanted.items() <= handler.bodies[-1].items()


def test_cached_prompt_is_reported() -> None:
    with serving("cached") as (address, _):
        raw, _ = complete(address, dialect_of(address, None, 5.0), REQUEST, timeout_s=5.0)
    assert raw.n_cached == 8


@pytest.mark.parametrize(
    ("behaviour", "code", "seen"),
    [
        ("breaks", "died", "without saying that it was complete|connection broke"),
        ("silent", "timeout", "silence for 0.5 s"),
        ("refuses", "bad_reply", "status 400.*no such field"),
        ("garbage", "bad_reply", "no JSON"),
        ("error_event", "bad_reply", "out of memory"),
    ],
)
def test_failures_of_an_answer_have_codes(behaviour: str, code: str, seen: str) -> None:
    with serving(behaviour) as (address, _), pytest.raises(ServerError, match=seen) as caught:
        complete(address, dialect_of(address, None, 5.0), REQUEST, timeout_s=0.5)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8080", Address("127.0.0.1", 8080)),
        ("localhost:8080/v1/", Address("localhost", 8080)),
        ("https://example.invalid/base/v1", Address("example.invalid", 443, "/base", tls=True)),
    ],
)
def test_urls_are_read(url: str, address: Address) -> None:
    assert Address.from_url(url) == address


@pytest.mark.parametrize("url", ["", "ftp://x", "http://"])
def test_urls_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no http"):
        Address.from_url(url)


def test_server_is_started_asked_and_ended() -> None:
    with opened("native") as process:
        address = process.address
        outcome = process.run([REQUEST], WARMUP)
        assert is_ready(address, 2.0)
    assert not is_ready(address, 0.5)
    assert outcome.sequences[0].n_tokens == 6
    assert outcome.spec is not None
    assert outcome.spec["num_accepted_tokens"] == 5
    assert outcome.peak_rss_bytes is not None


def test_requests_of_a_server_run_together_and_start_when_told() -> None:
    requests = [REQUEST, Request(prompt="later", max_tokens=4, start_s=0.2)]
    with opened("native") as process:
        outcome = process.run(requests, None)
    assert [raw.n_tokens for raw in outcome.sequences] == [6, 4]
    assert outcome.sequences[1].begin_ms >= 200.0


def test_server_that_never_gets_ready_is_named() -> None:
    with pytest.raises(ArmError, match="1 s") as caught, opened("unhealthy", health_timeout_s=1.0):
        pass
    assert caught.value.code == "not_healthy"


def test_server_that_ends_at_once_shows_its_last_words() -> None:
    wrong = Arm(name="theirs", kind="server", command=(sys.executable, SERVER, "--port", "{port}", "--nonsense"))
    context = open_server_arm(wrong, values={}, health_timeout_s=20.0, timeout_s=5.0)
    with pytest.raises(ArmError, match="status 2") as caught, context:
        pass
    assert caught.value.code == "start_failed"
    assert "--nonsense" in caught.value.native_log[-1]


def test_program_that_does_not_exist_is_named() -> None:
    wrong = Arm(name="theirs", kind="server", command=("/nonexistent/server", "{port}"))
    with pytest.raises(ArmError) as caught, open_server_arm(wrong, values={}, health_timeout_s=20.0, timeout_s=5.0):
        pass
    assert caught.value.code == "start_failed"
    assert "/nonexistent/server" in str(caught.value)


def test_server_that_dies_while_it_is_measured_is_named() -> None:
    with opened("dies") as process:
        process.run([REQUEST], WARMUP)
        with pytest.raises(ArmError, match="status 7") as caught:
            process.run([REQUEST], None)
    assert caught.value.code == "died"


def test_url_of_nothing_is_not_healthy() -> None:
    nowhere = Arm(name="theirs", kind="url", url="http://127.0.0.1:9")
    with pytest.raises(ArmError) as caught, open_url_arm(nowhere, timeout_s=1.0):
        pass
    assert caught.value.code == "not_healthy"


def test_running_server_is_used_and_left_alone() -> None:
    with serving("openai") as (address, _):
        running = Arm(name="theirs", kind="url", url=f"http://127.0.0.1:{address.port}/v1")
        with open_url_arm(running, timeout_s=5.0) as process:
            assert isinstance(process, ServerProcess)
            assert process.run([REQUEST], WARMUP).sequences[0].n_tokens == 6
        assert is_ready(address, 2.0)


def test_command_line_marks_are_filled_in_and_other_braces_stay() -> None:
    values = {"model": "/m.gguf", "sidecar": None, "port": "1"}
    command = ["serve", "{model}", "--port={port}", '{"a": 1}']
    assert fill_in(command, values, "x") == ["serve", "/m.gguf", "--port=1", '{"a": 1}']
    with pytest.raises(ArmError, match="sidecar"):
        fill_in(["{sidecar}"], values, "x")


def test_server_ends_when_the_program_that_started_it_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    child = f"import os, pathlib, time; pathlib.Path({str(told)!r}).write_text(str(os.getpid())); time.sleep(60)"
    starter = (
        "import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-I', {str(GUARD)!r}, sys.executable, '-c', {child!r}],"
        " stdin=subprocess.PIPE); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", starter])
    deadline = time.monotonic() + 20
    while not (told.exists() and told.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    pid = int(told.read_text())
    process.send_signal(signal.SIGKILL)
    process.wait()
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("the server outlived the program that started it")
