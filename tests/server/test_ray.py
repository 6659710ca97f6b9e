"""Two replicas under Ray Serve on one machine. Ray is no requirement: without it these are skipped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'pylucebox[ray]'")

from _server import server_environment

from pylucebox import InvalidArgumentError

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

FLAGS = ["--demo", "--parallel", "2", "--ctx-size", "2048"]
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    import ray
    from ray import serve

    from pylucebox.integrations.ray import build_app

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": server_environment()})
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(build_app({"flags": FLAGS, "num_replicas": 2, "ray_actor_options": {"num_cpus": 0.5}}))

        def one(path: str, session: str = "", *, whole: bool = True, **body: Any) -> Any:
            headers = {"Content-Type": "application/json", **({"x-session-id": session} if session else {})}
            data = json.dumps(body).encode() if body else None
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
            reply = urllib.request.urlopen(request, timeout=60)
            if not whole:
                return reply
            with reply:
                return json.load(reply)

        yield one
    finally:
        serve.shutdown()
        ray.shutdown()


def supervisors() -> list[int]:
    """Return the processes of all `lucebox-serve` that are told to end with whoever started them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"pylucebox.serve.main\0" in (line := (folder / "cmdline").read_bytes()) and b"--until-eof" in line:
                found.append(int(folder.name))
    return found


def test_both_answer_for_themselves(ask: Ask) -> None:
    assert ask("/health")["speculative"]["effective"] is True
    assert len(supervisors()) == 2


def test_a_session_stays_where_its_prompt_is_cached(ask: Ask) -> None:
    for number in range(6):
        prompt = f"session {number} has a prompt that is worth to be kept"
        body = {"prompt": prompt, "n_predict": 2, "temperature": 0}
        replies = [ask("/completion", f"s{number}", **body) for _ in range(3)]
        assert replies[0]["content"] == replies[-1]["content"]
        assert all(reply["timings"]["cache_n"] > 0 for reply in replies[1:])


def test_tokens_come_as_they_are_made_and_stop_when_nobody_listens(ask: Ask) -> None:
    body = {"prompt": "def", "n_predict": 100_000, "ignore_eos": True, "stream": True}
    with ask("/completion", "one", whole=False, **body) as reply:
        assert reply.readline().startswith(b"data: ")
        assert any(slot["is_processing"] for slot in ask("/slots", "one"))
    until = time.monotonic() + 30
    while any(slot["is_processing"] for slot in ask("/slots", "one")):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_errors_are_those_of_the_server(ask: Ask) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask("/v1/chat/completions", messages=5)
    with caught.value as error:
        assert (error.code, json.load(error)["error"]["type"]) == (400, "invalid_request_error")


def test_a_replica_that_is_lost_is_replaced_and_leaves_nothing_behind(ask: Ask) -> None:
    lost = supervisors()[0]
    parent = int(Path(f"/proc/{lost}/stat").read_text("ascii").rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)  # the replica, not the server
    until = time.monotonic() + 90
    while lost in supervisors() or len(supervisors()) < 2:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert ask("/v1/completions", prompt="a", max_tokens=2)["choices"]


@pytest.mark.parametrize("flags", [None, [], "-m x", ["--demo", "--port", "1"], ["--demo", "--host=0.0.0.0"]], ids=str)
def test_flags_that_make_no_server(flags: Any) -> None:
    from pylucebox.integrations.ray import build_app

    with pytest.raises(InvalidArgumentError, match="flags"):
        build_app({"flags": flags})
