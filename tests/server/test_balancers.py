"""Two servers behind nginx and behind HAProxy, with the configurations of docs/scaling."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _server import Serve

CONFIGURATIONS = Path(__file__).parents[2] / "docs" / "scaling"
SMALL = ("--ctx-size", "2048", "--parallel", "2")
SESSIONS = [f"session-{number}" for number in range(12)]
PROMPT = "def add(a, b):\n    return a + b\n\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


class Behind(Serve):
    """What is reached through a balancer; only for the requests of `Server`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, session: str | None = None, **body: Any) -> tuple[int, Any]:
        """Continue a prompt and return status and reply."""
        headers = {} if session is None else {"X-Session-Id": session}
        status, reply = self.send(
            "/completion", json.dumps({"temperature": 0, "n_predict": 4, **body}).encode(), **headers
        )
        return status, json.loads(reply)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[tuple[Serve, Serve]]:
    folder = tmp_path_factory.mktemp("two")
    with (
        Serve(demo_model, folder / "log1", *SMALL, "--alias", "one") as one,
        Serve(demo_model, folder / "log2", *SMALL, "--alias", "two") as two,
    ):
        yield one, two


@pytest.fixture(scope="module", params=["nginx", "haproxy"])
def balancer(
    request: pytest.FixtureRequest, two: tuple[Serve, Serve], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Behind]:
    kind: str = request.param
    program = shutil.which(kind) or shutil.which(f"/usr/sbin/{kind}")
    if program is None:
        pytest.skip(f"{kind} is not installed")
    folder = tmp_path_factory.mktemp(kind)
    name = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}[kind]
    port = free_port()
    text = (CONFIGURATIONS / name).read_text("utf-8")
    for old, new in ((8080, port), (8081, two[0].port), (8082, two[1].port)):
        assert text.count(f"127.0.0.1:{old}") == 1
        text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
    (folder / name).write_text(text, "utf-8")
    call = {
        "nginx": [program, "-p", str(folder), "-c", str(folder / name), "-g", "daemon off;"],
        "haproxy": [program, "-db", "-f", str(folder / name)],
    }[kind]
    with (folder / "log").open("wb") as out, subprocess.Popen(call, stdout=out, stderr=out) as process:
        behind = Behind(port)
        until = time.monotonic() + 30
        try:
            while not answers(behind):
                assert process.poll() is None, (folder / "log").read_text("utf-8")
                assert time.monotonic() < until
                time.sleep(0.05)
            yield behind
        finally:
            process.send_signal(signal.SIGTERM)


def answers(behind: Behind) -> bool:
    with contextlib.suppress(OSError):
        return behind.ask(prompt="a")[0] == 200
    return False


def test_a_session_stays_where_its_prompt_is_cached(balancer: Behind) -> None:
    places = Counter[str]()
    for session in SESSIONS:
        replies = [balancer.ask(session, prompt=f"{session}: {PROMPT}", n_predict=2)[1] for _ in range(3)]
        models = {reply["model"] for reply in replies}
        assert len(models) == 1
        assert replies[-1]["timings"]["cache_n"] > 0
        places[models.pop()] += 1
    assert set(places) == {"one", "two"}  # and both have some


def test_requests_without_a_session_are_spread(balancer: Behind) -> None:
    assert {balancer.ask(prompt="a")[1]["model"] for _ in range(24)} == {"one", "two"}


def test_tokens_come_as_they_are_made(balancer: Behind) -> None:
    with contextlib.closing(balancer.connect()) as link:
        body = {"prompt": PROMPT, "n_predict": 1500, "ignore_eos": True, "stream": True, "temperature": 0}
        link.request("POST", "/completion", json.dumps(body))
        with link.getresponse() as reply:
            assert reply.readline().startswith(b"data: ")
            # the rest is not there yet
            assert any(slot["is_processing"] for model in ("one", "two") for slot in slots_of(balancer, model))


def slots_of(balancer: Behind, model: str) -> list[dict[str, Any]]:
    """Return the slots of a server, whichever the balancer asks."""
    for number in range(100):
        with contextlib.closing(balancer.connect()) as link:
            link.request("GET", "/slots", headers={"X-Session-Id": f"{model}{number}"})
            slots: list[dict[str, Any]] = json.loads(link.getresponse().read())
            if any(slot["is_processing"] for slot in slots):
                return slots
    return []


def test_client_that_leaves_ends_its_request(balancer: Behind, two: tuple[Serve, Serve]) -> None:
    with contextlib.closing(balancer.connect()) as link:
        body = {"prompt": PROMPT, "n_predict": 100_000, "ignore_eos": True, "stream": True}
        link.request("POST", "/completion", json.dumps(body))
        assert link.getresponse().readline().startswith(b"data: ")
    until = time.monotonic() + 30
    while any(slot["is_processing"] for server in two for slot in server.get("/slots")):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_big_bodies_pass(balancer: Behind) -> None:
    status, reply = balancer.send("/tokenize", json.dumps({"content": 2_500_000 * "ab c "}).encode())
    assert status == 200
    assert len(json.loads(reply)["tokens"]) > 1_000_000


def test_a_server_that_is_lost_is_not_noticed(balancer: Behind, two: tuple[Serve, Serve]) -> None:
    os.kill(two[0].worker(), signal.SIGKILL)  # it says 503 until the next worker is ready
    statuses = Counter(balancer.ask(session, prompt="a")[0] for session in SESSIONS)
    assert statuses == {200: len(SESSIONS)}
    two[0].wait()
