"""Servers in child processes, and the few requests that tests send them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pylucebox

_START_S = 60.0
"""A start takes well under a second; this is for a machine that is busy with other things."""

_REQUEST_S = 60.0
_TIRED_OF_WAITING_S = 10.0


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls at the same time and return what they returned."""
    results: list[Any] = [None] * len(calls)

    def run(i: int) -> None:
        results[i] = calls[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class ServerDied(AssertionError):  # noqa: N818 - it is what a failed test shows
    """The server ended before it listened.

    Attributes
    ----------
    exit_code
        As `subprocess.Popen.returncode` has it: negative for a signal.
    """

    def __init__(self, exit_code: int, log: str) -> None:
        super().__init__(f"the server ended with {exit_code}:\n{log[-3000:]}")
        self.exit_code = exit_code


class Server:
    """The package's llama-server on a free port of the loopback interface; a context manager.

    What `call` returns is run; subclasses run something else.

    Parameters
    ----------
    model
        File of the model.
    log
        File for what the server prints.
    arguments
        Further arguments of llama-server.

    Raises
    ------
    ServerDied
        It ended before it listened.
    """

    def __init__(self, model: Path, log: Path, *arguments: str | Path, wait: bool = True) -> None:
        self.log = log
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{self.port}"
        call = [*self.call(), "-m", model, "--port", str(self.port)]
        call += [] if "--host" in arguments else ["--host", "127.0.0.1"]
        call += ["--threads", "1", "--threads-batch", "1", "--no-warmup", "--offline", *arguments]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                call, env=server_environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        if wait:
            try:
                self.wait()
            except BaseException:
                self.close()
                raise

    def call(self) -> list[str]:
        """Return the command, without the arguments of llama-server."""
        return [sys.executable, "-m", "pylucebox._server_host"]

    def wait(self) -> None:
        """Wait until it is ready."""
        until = time.monotonic() + _START_S
        while True:
            if self.process.poll() is not None:
                raise ServerDied(self.process.returncode, self.log_text())
            with contextlib.suppress(OSError):
                return self._open("/health").close()
            if time.monotonic() > until:
                raise AssertionError(f"no answer in {_START_S} s:\n{self.log_text()[-3000:]}")
            time.sleep(0.02)

    def log_text(self) -> str:
        """Return what it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _open(self, path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(self._url + path, body, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=_REQUEST_S)

    def get(self, path: str) -> Any:
        """Return a JSON reply."""
        with self._open(path) as reply:
            return json.load(reply)

    def post(self, path: str, **body: Any) -> Any:
        """Send a JSON request and return the JSON reply; an HTTP error is raised with the reply in its text."""
        try:
            with self._open(path, json.dumps(body).encode()) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode(errors='replace')}") from error

    def complete(self, prompt: str | list[int], **body: Any) -> dict[str, Any]:
        """Continue a prompt greedily, without what earlier requests left in the cache."""
        body = {"temperature": 0, "cache_prompt": False, "n_predict": 32, "return_tokens": True, **body}
        reply: dict[str, Any] = self.post("/completion", prompt=prompt, **body)
        return reply

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection of one's own."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=_REQUEST_S)

    def send(self, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
        """Send bytes and return status and body, whatever they are."""
        with contextlib.closing(self.connect()) as link:
            link.request("POST", path, body, {"Content-Type": "application/json", **headers})
            reply = link.getresponse()
            return reply.status, reply.read()

    def close(self) -> int:
        """End it as a service manager would, and return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_TIRED_OF_WAITING_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        exit_code = self.close()
        assert error is not None or exit_code == 0, self.log_text()[-3000:]


class Worker(Server):
    """What `lucebox-serve` starts, on its own; with a policy of ``_policy_server.py`` or the default one."""

    def __init__(self, *arguments: Any, policy: str = "default") -> None:
        self.policy = policy
        super().__init__(*arguments)

    def call(self) -> list[str]:
        """Return the command."""
        return [sys.executable, str(Path(__file__).with_name("_policy_server.py")), self.policy]


class Serve(Server):
    """`lucebox-serve`."""

    def call(self) -> list[str]:
        """Return the command."""
        return [sys.executable, "-m", "pylucebox.serve.main"]

    def wait(self) -> None:
        """Wait until it is ready and the supervisor knows, which comes a moment later."""
        super().wait()
        until = time.monotonic() + _START_S
        while "lucebox-serve: ready at " not in self.log_text():
            assert time.monotonic() < until, self.log_text()[-3000:]
            time.sleep(0.02)

    def worker(self) -> int:
        """Return the process that serves."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text("ascii").split()
        return int(children[0])

    def stream(self, path: str, **body: Any) -> Iterator[dict[str, Any]]:
        """Send a request and yield the events of its stream; one that breaks off is an error."""
        with self._open(path, json.dumps({**body, "stream": True}).encode()) as reply:
            for line in reply:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    yield json.loads(line[6:])


StartServe = Callable[..., Serve]
"""``serve(model, *arguments)``: a `lucebox-serve`, started once for its arguments, stopped when the module is over."""

StartWorker = Callable[..., Worker]
"""``work(model, *arguments)``: the same for a worker without its supervisor."""

StartServer = Callable[..., Server]
"""``start(model, *arguments)``: a server, started once for its arguments and stopped when the module is over."""


def server_environment() -> dict[str, str]:
    """Return this process's environment without settings for a llama-server, with the package under test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
    root = str(Path(pylucebox.__file__).parents[1])
    return {**kept, "PYTHONPATH": root, "GGML_NO_BACKTRACE": "1"}
