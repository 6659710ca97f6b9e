"""A server in a child process, and the few requests that tests send it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pylucebox

_START_S = 60.0
"""A start takes well under a second; this is for a machine that is busy with other things."""

_REQUEST_S = 60.0
_TIRED_OF_WAITING_S = 10.0


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

    def __init__(self, model: Path, log: Path, *arguments: str | Path) -> None:
        self.log = log
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        call = [sys.executable, "-m", "pylucebox._server_host", "-m", model, "--host", "127.0.0.1", "--port", str(port)]
        call += ["--threads", "1", "--threads-batch", "1", "--no-warmup", "--offline", *arguments]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                call, env=server_environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
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


StartServer = Callable[..., Server]
"""``start(model, *arguments)``: a server, started once for its arguments and stopped when the module is over."""


def server_environment() -> dict[str, str]:
    """Return this process's environment without settings for a llama-server, with the package under test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
    root = str(Path(pylucebox.__file__).parents[1])
    return {**kept, "PYTHONPATH": root, "GGML_NO_BACKTRACE": "1"}
