"""`lucebox-serve`: how it begins, what it refuses, and how it ends."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from _server import Serve, server_environment

SMALL = ("--ctx-size", "256", "--parallel", "1")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "pylucebox.serve.main", *map(str, arguments)]
    return subprocess.run(call, env=server_environment(), capture_output=True, text=True, timeout=60, check=False)


def test_answers_from_the_first_moment_and_ends_in_good_order(demo_model: Path, tmp_path: Path) -> None:
    with Serve(demo_model, tmp_path / "log", *SMALL, wait=False) as server:
        refused = 0
        while True:
            try:
                link = server.connect()
                link.request("GET", "/health")
                reply = link.getresponse()
                body = json.load(reply)
                link.close()
            except ConnectionRefusedError:  # only before the supervisor listens
                assert refused == 0
                time.sleep(0.01)
                continue
            if reply.status == 200:
                break
            refused += 1
            assert reply.status == 503
            assert int(reply.headers["Retry-After"]) >= 1
            assert body["error"]["code"] == 503
            time.sleep(0.01)
        assert refused > 0
        assert body["speculative"]["effective"] is True
        assert server.complete("def add(a, b):", n_predict=4)["tokens_predicted"] == 4
        assert server.close() == 0


def test_demo_needs_nothing(tmp_path: Path) -> None:
    class Demo(Serve):
        def call(self) -> list[str]:
            return [sys.executable, "-c", START_DEMO]

    with Demo(Path("ignored"), tmp_path / "log", *SMALL) as server:
        assert server.get("/health")["speculative"]["effective"] is True


START_DEMO = """
import sys
from pylucebox.serve.main import main
arguments = sys.argv[1:]
at = arguments.index("-m")
sys.exit(main(["--demo", *arguments[:at], *arguments[at + 2:]]))
"""


def test_addresses_of_all_kinds(demo_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "lucebox.sock"
    with Serve(demo_model, tmp_path / "log", *SMALL, "--host", f"localhost,{path}", wait=False) as server:
        until = time.monotonic() + 60
        statuses = set()
        while 200 not in statuses and time.monotonic() < until:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
                try:
                    plain.connect(str(path))
                except OSError:
                    time.sleep(0.02)
                    continue
                plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                reply = http.client.HTTPResponse(plain)
                reply.begin()
                statuses.add(reply.status)
        assert 200 in statuses <= {200, 503}
        server.wait()
        assert server.close() == 0
    assert not path.exists()


def test_ends_with_whoever_started_it(demo_model: Path, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "pylucebox.serve.main", "-m", str(demo_model), "--port", "0", "--until-eof", *SMALL]
    with (tmp_path / "log").open("wb") as out:
        process = subprocess.Popen(call, env=server_environment(), stdin=subprocess.PIPE, stdout=out, stderr=out)
    assert process.stdin is not None
    with process.stdin as line:
        line.write(b"what is said does not matter")
        line.flush()
        until = time.monotonic() + 60
        while "ready" not in (tmp_path / "log").read_text("utf-8"):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
    assert process.wait(30) == 0


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_tells_the_service_manager(
    demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    address = f"@lucebox-{os.getpid()}" if kind == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0") if kind == "abstract" else address)
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        with Serve(demo_model, tmp_path / "log", *SMALL, wait=False) as server:
            received = ""
            while "READY=1" not in received:
                received += manager.recv(4096).decode() + "\n"
            # it is ready when it says so, and says what came before
            assert server.get("/health")["status"] == "ok"
            assert received.index("STATUS=starting") < received.index("STATUS=loading") < received.index("READY=1")
            assert f"MAINPID={server.process.pid}" in received
            assert server.close() == 0
            while "STOPPING=1" not in received:
                received += manager.recv(4096).decode()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("-m", "none.gguf"), 1, "none.gguf"),
        (("-m", "{model}", "--mtp", "none.gguf"), 1, "none.gguf"),
        (("-m", "{model}", "--host", "192.0.2.1"), 2, "--insecure-open"),
        (("-m", "{model}", "--host", "192.0.2.1", "--insecure-open"), 1, "192.0.2.1"),
        (("-m", "{alone}", "--spec", "require"), 1, "no-sidecar"),
        (("-m", "{model}", "--spec-type", "draft-mtp"), 2, "--verify-width"),
        (("-m", "{model}", "--port", "0", "--no-such-flag"), 1, "--no-such-flag"),
        ((), 2, "--demo"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_said(
    demo_model: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    alone = tmp_path / "alone.gguf"
    shutil.copy(demo_model, alone)
    done = run(*(word.format(model=demo_model, alone=alone) for word in arguments))
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_there_is_a_page(demo_model: Path, tmp_path: Path) -> None:
    with Serve(demo_model, tmp_path / "log", *SMALL, "--api-key", "secret") as server:
        link = server.connect()
        link.request("GET", "/", headers={"Accept-Encoding": "gzip"})
        reply = link.getresponse()
        text = reply.read()
        assert (reply.status, reply.headers["Content-Type"].partition(";")[0]) == (200, "text/html")
        if reply.headers["Content-Encoding"] is None:
            assert b"npm" in text
        else:  # llama-server's: what it is made of is there, too
            scripts = re.findall(r'"\./([^"]+\.(?:js|css))"', gzip.decompress(text).decode())
            assert scripts
            for path in scripts:
                link.request("GET", f"/{path}", headers={"Accept-Encoding": "gzip"})
                reply = link.getresponse()
                assert (reply.status, len(reply.read()) > 0) == (200, True)
        link.request("GET", "/props")  # the page is for all, what is behind it is not
        assert link.getresponse().status == 401
        link.close()


def test_help_and_versions() -> None:
    assert "--verify-width" in run("--help").stdout
    assert "--ctx-size" in run("--usage").stdout
    assert "llama.cpp b" in run("--version").stdout


def test_port_that_is_taken(demo_model: Path, tmp_path: Path) -> None:
    with Serve(demo_model, tmp_path / "log", *SMALL) as first:
        second = run("-m", demo_model, "--port", str(first.port))
        assert second.returncode == 1
        assert f"127.0.0.1:{first.port}" in second.stderr
        assert first.get("/health")["status"] == "ok"
        # one beside it does not mind
        with Serve(demo_model, tmp_path / "log2", *SMALL) as third:
            assert third.complete("a", n_predict=4)["tokens"] == first.complete("a", n_predict=4)["tokens"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signal_while_it_starts(demo_model: Path, tmp_path: Path, number: signal.Signals) -> None:
    server = Serve(demo_model, tmp_path / "log", *SMALL, wait=False)
    while "drafts:" not in server.log_text():  # the worker was started that moment
        assert server.process.poll() is None
        time.sleep(0.01)
    worker = server.worker()
    server.process.send_signal(number)
    assert server.process.wait(20) == 0, server.log_text()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_live_view(demo_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    terminal, inside = os.openpty()
    call = [sys.executable, "-m", "pylucebox.serve.main", "-m", str(demo_model), "--port", str(port), "--tui", *SMALL]
    environment = {**server_environment(), "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"}
    with subprocess.Popen(call, env=environment, stdin=inside, stdout=inside, stderr=inside) as process:
        os.close(inside)
        shown = ""
        until = time.monotonic() + 60
        try:
            while not ("ready" in shown and "drafts on" in shown and "busy" not in shown and "idle" in shown):
                assert time.monotonic() < until, shown[-2000:]
                shown += os.read(terminal, 65536).decode(errors="replace")
            working = threading.Thread(target=keep_busy, args=(port, stop := threading.Event()))
            working.start()
            try:  # slots, speed, queue, memory, acceptance by depth, passes by width
                missing = [r"busy", r"[1-9][\d.]* tok/s", r"[1-9]\d* waiting", r"memory \d+ MiB", r"\b3 +\d+ +4 +[1-9]"]
                while missing:
                    assert time.monotonic() < until, (missing, shown)
                    new = os.read(terminal, 65536).decode(errors="replace")
                    shown = shown[-8000:] + re.sub(r"\x1b\[[\d;?]*\w", "", new)
                    missing = [what for what in missing if not re.search(what, shown)]
            finally:
                stop.set()
                working.join()
        finally:
            process.terminate()
            drain = threading.Thread(target=read_to_the_end, args=(terminal,))  # it must not wait for its reader
            drain.start()
            assert process.wait(30) == 0
            drain.join()
            os.close(terminal)
    assert run("-m", demo_model, "--tui").returncode == 2  # no terminal


def keep_busy(port: int, stop: threading.Event) -> None:
    """Ask for more replies at a time than there are slots."""

    def ask() -> None:
        while not stop.is_set():
            with (
                contextlib.suppress(OSError),
                contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as link,
            ):
                body = {"prompt": "a b a b", "n_predict": 200, "verify_width": 4, "ignore_eos": True}
                link.request("POST", "/completion", json.dumps(body))
                link.getresponse().read()

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()


def read_to_the_end(terminal: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(terminal, 65536):
            pass


# ---- as process 1 of a container ---------------------------------------------------------------------------------

OWN_PROCESSES = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]


class Contained(Serve):
    def call(self) -> list[str]:
        return [*OWN_PROCESSES, *super().call()]

    def children(self, pid: int) -> list[int]:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


def test_first_process_of_a_container(demo_model: Path, tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run([*OWN_PROCESSES, "true"], check=False).returncode:
        pytest.skip("this user cannot make a namespace of processes")
    server = Contained(demo_model, tmp_path / "log", *SMALL)
    (first,) = server.children(server.process.pid)
    (worker,) = server.children(first)
    # what others leave behind falls to process 1
    subprocess.run(["nsenter", "-t", str(first), "-p", "sh", "-c", "sleep 0.1 & exit"], check=True)
    until = time.monotonic() + 30
    while server.children(first) != [worker]:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert server.complete("a", n_predict=4)["tokens_predicted"] == 4
    os.kill(first, signal.SIGTERM)
    assert server.process.wait(30) == 0, server.log_text()
