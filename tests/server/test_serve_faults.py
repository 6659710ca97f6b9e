"""`lucebox-serve` when things go wrong: each has a defined end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _server import Serve, StartServe

ONE_SLOT = ("--ctx-size", "2048", "--parallel", "1")
LONG = {"prompt": "def add(a, b):", "n_predict": 1500, "temperature": 0, "ignore_eos": True}


@contextlib.contextmanager
def streaming(server: Serve, **body: Any) -> Iterator[http.client.HTTPResponse]:
    """Send a long request and yield the reply when its first token is there; leave when the block is left."""
    with contextlib.closing(server.connect()) as link:
        link.request("POST", "/completion", json.dumps({**LONG, **body, "stream": True}))
        with link.getresponse() as reply:
            assert reply.readline().startswith(b"data: ")
            yield reply


def events_of(reply: http.client.HTTPResponse) -> list[Any]:
    return [json.loads(line[6:]) for line in reply if line.startswith(b"data: {")]


def wait_until(what: Any, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def idle(server: Serve) -> bool:
    return not any(slot["is_processing"] for slot in server.get("/slots"))


# ---- the worker dies ---------------------------------------------------------------------------------------------


def test_killed_worker_is_started_again(demo_model: Path, tmp_path: Path) -> None:
    with Serve(demo_model, tmp_path / "log", *ONE_SLOT) as server:
        wanted = server.complete("def add(a, b):")["tokens"]
        with streaming(server) as reply:
            os.kill(server.worker(), signal.SIGKILL)
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                reply.read()
        # the port is never closed: until the next worker is ready there is an answer that says so
        statuses = set()
        while 200 not in statuses:
            statuses.add(status_of_health(server))
        assert statuses <= {200, 503}
        assert server.complete("def add(a, b):")["tokens"] == wanted
        assert "SIGKILL" in server.log_text()


def status_of_health(server: Serve) -> int:
    link = server.connect()
    try:
        link.request("GET", "/health")
        reply = link.getresponse()
        reply.read()
        assert reply.status == 200 or int(reply.headers["Retry-After"]) >= 1
        return reply.status
    except ConnectionResetError:  # taken from the queue by a worker that was killed with it
        return 503
    finally:
        link.close()


@pytest.mark.parametrize("spec", ["auto", "require"])
def test_sidecar_that_is_gone_when_the_worker_is_started_again(
    demo_model: Path, demo_mtp: Path, tmp_path: Path, spec: str
) -> None:
    model, sidecar = tmp_path / demo_model.name, tmp_path / demo_mtp.name
    shutil.copy(demo_model, model)
    shutil.copy(demo_mtp, sidecar)
    server = Serve(model, tmp_path / "log", *ONE_SLOT, "--spec", spec)
    assert server.get("/health")["speculative"]["effective"] is True
    sidecar.unlink()
    assert server.complete("a", n_predict=4, verify_width=2)["timings"]["speculative"] == "active"
    os.kill(server.worker(), signal.SIGKILL)
    if spec == "require":
        assert server.process.wait(30) == 1
        assert "no-sidecar" in server.log_text()
        return
    with server:
        wait_until(lambda: "no-sidecar" in server.log_text())
        server.wait()
        state = server.get("/health")["speculative"]
        assert (state["requested"], state["effective"], state["reason_code"]) == (True, False, "no-sidecar")
        assert server.complete("a", n_predict=4)["timings"]["speculative"] == "no-sidecar"


def test_model_that_loads_only_without_its_mtp_block(demo_model: Path, demo_mtp: Path, tmp_path: Path) -> None:
    model, sidecar = tmp_path / demo_model.name, tmp_path / demo_mtp.name
    shutil.copy(demo_model, model)
    whole = demo_mtp.read_bytes()
    sidecar.write_bytes(whole[: len(whole) - 4096])  # the header is in order, the last tensor is not all there
    with Serve(model, tmp_path / "log", *ONE_SLOT) as server:
        state = server.get("/health")["speculative"]
        assert (state["requested"], state["effective"]) == (True, False)
        assert state["reason_code"] in ("load-failed", "sidecar-unreadable", "sidecar-layout")
        assert server.complete("a", n_predict=4)["tokens_predicted"] == 4


# ---- the end -----------------------------------------------------------------------------------------------------


def test_sigterm_lets_a_stream_finish(demo_model: Path, tmp_path: Path) -> None:
    server = Serve(demo_model, tmp_path / "log", *ONE_SLOT)
    with streaming(server, n_predict=300) as reply:
        server.process.terminate()
        wait_until(lambda: "ending" in server.log_text())
        assert events_of(reply)[-1]["tokens_predicted"] == 300, server.log_text()
    assert server.process.wait(20) == 0, server.log_text()


def test_requests_are_refused_while_a_server_ends(demo_model: Path, tmp_path: Path) -> None:
    server = Serve(demo_model, tmp_path / "log", "--ctx-size", "8192", "--parallel", "1", "--drain-timeout", "1")
    refused = []

    def told_to_go() -> bool:
        try:
            status, body = server.send("/completion", json.dumps({"prompt": "a"}).encode())
        except OSError:
            return True  # it ended that moment
        refused.append((status, json.loads(body)["error"]["message"]))
        return status == 503

    with streaming(server, n_predict=8000) as reply:
        server.process.terminate()
        wait_until(lambda: "ending" in server.log_text())
        wait_until(told_to_go)
        assert set(refused) <= {(503, "Shutting down")}
        # the time is up before the stream is
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            reply.read()
    assert server.process.wait(20) == 0, server.log_text()


def test_second_signal_ends_it_at_once(demo_model: Path, tmp_path: Path) -> None:
    server = Serve(demo_model, tmp_path / "log", *ONE_SLOT)
    with streaming(server):
        server.process.terminate()
        wait_until(lambda: "ending" in server.log_text())
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 128 + signal.SIGKILL


def test_worker_ends_with_its_supervisor(demo_model: Path, tmp_path: Path) -> None:
    server = Serve(demo_model, tmp_path / "log", *ONE_SLOT)
    worker = server.worker()
    with streaming(server):
        server.process.kill()
        server.process.wait()

    def gone() -> bool:
        try:
            state = Path(f"/proc/{worker}/stat").read_text("ascii").rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        return state == "Z"  # nobody here is its parent

    wait_until(gone)


# ---- clients -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(serve: StartServe, demo_model: Path) -> Serve:
    return serve(demo_model, "--ctx-size", 2048, "--parallel", 4)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/completion", b"{", 400),
        ("/completion", b'{"prompt": "\xff\xfe"}', 400),
        ("/completion", b"[]", 400),
        ("/completion", b"{}", 400),
        ("/completion", b'{"prompt": {"a": 1}}', 400),
        ("/completion", b'{"prompt": "a", "n_predict": "many"}', 400),
        ("/v1/chat/completions", b'{"messages": "hello"}', 400),
        ("/v1/chat/completions", b'{"messages": [{"role": "user"}]}', 400),
        ("/v1/chat/completions", b'{"messages": [], "response_format": {"type": "nonsense"}}', 400),
        ("/completion", b'{"prompt": "a", "nothing": "' + 10_000_000 * b"a" + b'"', 400),
        ("/completion", b'{"prompt": "a", "grammar": "root ::= root"}', 400),
        ("/nowhere", b"{}", 404),
    ],
    ids=lambda value: value[:40].decode(errors="replace") if isinstance(value, bytes) else str(value),
)
def test_what_cannot_be_understood_is_refused(server: Serve, path: str, body: bytes, status: int) -> None:
    got, reply = server.send(path, body)
    assert got == status, reply[:300]
    assert json.loads(reply)["error"]["message"]
    assert server.complete("a", n_predict=2)["tokens_predicted"] == 2


def test_clients_that_leave_cost_nobody_else_anything(server: Serve) -> None:
    wanted = server.complete("The sum is", n_predict=64)["tokens"]
    descriptors = Path(f"/proc/{server.worker()}/fd")
    n_before = len(list(descriptors.iterdir()))
    dice = random.Random(5)
    results: list[Any] = []

    def leave(wait_s: float, verify_width: int) -> None:
        body = json.dumps({**LONG, "stream": True, "verify_width": verify_width}).encode()
        head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            link.sendall(head + body[: len(body) if wait_s > 0.02 else 20])  # some leave before they have said it all
            time.sleep(wait_s)

    def stay() -> None:
        results.append(server.complete("The sum is", n_predict=64)["tokens"])

    threads = [threading.Thread(target=leave, args=(0.3 * dice.random(), dice.choice([0, 1, 5]))) for _ in range(20)]
    threads += [threading.Thread(target=stay) for _ in range(4)]
    dice.shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [wanted] * 4
    wait_until(lambda: idle(server))
    wait_until(lambda: len(list(descriptors.iterdir())) <= n_before + 2)


def test_only_the_reply_of_the_client_that_leaves_is_given_up(server: Serve) -> None:
    with streaming(server, verify_width=4):
        stays = server.complete("The sum is", n_predict=64)
    assert stays["tokens_predicted"] == 64
    wait_until(lambda: idle(server))


def test_slow_reader_holds_nobody_up(server: Serve) -> None:
    with streaming(server, n_predict=200) as reply:  # and does not read on
        assert server.complete("The sum is", n_predict=16)["tokens_predicted"] == 16
        assert events_of(reply)[-1]["tokens_predicted"] == 200


def test_many_short_requests_leave_nothing_behind(server: Serve) -> None:
    def resident_bytes() -> int:
        status = Path(f"/proc/{server.worker()}/status").read_text("ascii")
        return 1024 * int(status.split("VmRSS:")[1].split()[0])

    body = json.dumps({"prompt": "a b", "n_predict": 2, "cache_prompt": False}).encode()
    with contextlib.closing(server.connect()) as link:

        def ask(n_times: int) -> None:
            for _ in range(n_times):
                link.request("POST", "/completion", body, {"Content-Type": "application/json"})
                reply = link.getresponse()
                assert reply.status == 200
                assert json.loads(reply.read())["tokens_predicted"] == 2

        ask(50)  # buffers grow to their size
        before = resident_bytes()
        ask(200)
        assert resident_bytes() - before < 4 * 2**20
