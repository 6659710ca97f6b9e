"""Arms that are servers: started for each run on a free loopback port, or running already at a URL."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pylucebox.ab.engine_arm import last_lines
from pylucebox.ab.errors import ArmError
from pylucebox.ab.openai_client import Address, Dialect, ServerError, complete, dialect_of, is_ready
from pylucebox.ab.outcome import Outcome, RawSequence
from pylucebox.ab.records import Arm, Request

__all__ = ["ServerProcess", "fill_in", "open_server_arm", "open_url_arm"]

GUARD: Final = Path(__file__).with_name("guard.py")
_POLL_S: Final = 0.05
_END_S: Final = 20.0


def free_port() -> int:
    """Return a loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fill_in(command: Sequence[str], values: Mapping[str, str | None], arm: str) -> list[str]:
    """Replace ``{port}``, ``{model}``, ``{sidecar}`` and ``{n_ctx}`` in a command line; other braces stay.

    Raises
    ------
    ArmError
        A value is asked for that is not known.
    """
    out = []
    for word in command:
        filled = word
        for name, value in values.items():
            mark = f"{{{name}}}"
            if mark in filled and value is None:
                seen = f"{word!r} asks for the {name}, which is not known here"
                raise ArmError(arm=arm, code="start_failed", seen=seen, advice=f"Give its path in place of {mark}.")
            filled = filled.replace(mark, value or "")
        out.append(filled)
    return out


@dataclass
class ServerProcess:
    """A server that answers.

    Attributes
    ----------
    arm
        Arm it belongs to.
    address, dialect
        How it is asked.
    timeout_s
        Longest silence.
    process
        The guard it runs under; None when it is not ours.
    log
        What it prints.
    """

    arm: Arm
    address: Address
    dialect: Dialect
    timeout_s: float
    process: subprocess.Popen[bytes] | None = None
    log: Any = None

    def run(self, requests: Sequence[Request], warmup: Request | None) -> Outcome:
        """Run requests; see `pylucebox.ab.ports.ArmProcess`."""
        try:
            if warmup is not None:
                complete(self.address, self.dialect, warmup, timeout_s=self.timeout_s)
            results = self._together(requests)
        except ServerError as error:
            raise self._error(error) from error
        spec = {name: sum(counts[name] for _, counts in results) for name in results[0][1]}
        # A server does not tell its cycles.
        blank = {"cycles": 0, "num_drafts": 0, "num_draft_tokens_per_pos": [], "num_accepted_tokens_per_pos": []}
        return Outcome(sequences=tuple(raw for raw, _ in results), spec={**blank, **spec}, peak_rss_bytes=self._peak())

    def _together(self, requests: Sequence[Request]) -> list[tuple[RawSequence, dict[str, Any]]]:
        if len(requests) == 1:
            return [complete(self.address, self.dialect, requests[0], timeout_s=self.timeout_s)]
        results: dict[int, tuple[RawSequence, dict[str, Any]]] = {}
        errors: list[ServerError] = []
        begin = time.perf_counter()

        def send(number: int, request: Request) -> None:
            time.sleep(request.start_s)
            sent_ms = 1000.0 * (time.perf_counter() - begin)
            try:
                raw, counts = complete(self.address, self.dialect, request, timeout_s=self.timeout_s)
            except ServerError as error:
                errors.append(error)
            else:
                results[number] = replace(raw, begin_ms=sent_ms), counts

        threads = [threading.Thread(target=send, args=item, daemon=True) for item in enumerate(requests)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [results[number] for number in range(len(requests))]

    def _error(self, error: ServerError) -> ArmError:
        code, seen, log = error.code, str(error), []
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):  # one that broke off is perhaps about to end
                self.process.wait(1.0)
                code, seen = "died", f"the server ended with status {self.process.returncode}; {seen}"
            log = last_lines(self.log)
        return ArmError(arm=self.arm.name, code=code, seen=seen, native_log=log)

    def _peak(self) -> int | None:
        """Return the peak memory of the server, which is the only child of its guard."""
        if self.process is None:
            return None
        try:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text("ascii").split()
            status = Path(f"/proc/{children[0]}/status").read_text("ascii")
            return int(status.split("VmHWM:")[1].split()[0]) * 1024
        except (OSError, ValueError, IndexError):
            return None


@contextmanager
def open_server_arm(
    arm: Arm, *, values: Mapping[str, str | None], health_timeout_s: float, timeout_s: float
) -> Iterator[ServerProcess]:
    """Start a server, wait until it is ready, and end it afterwards.

    Parameters
    ----------
    arm
        Of kind ``"server"``.
    values
        What the command line's marks stand for; ``port`` is added.
    health_timeout_s
        Longest wait for it to be ready.
    timeout_s
        Longest silence afterwards.

    Raises
    ------
    ArmError
        It cannot be started, ends, or does not get ready.
    """
    port = free_port()
    command = fill_in(arm.command, {**values, "port": str(port)}, arm.name)
    address = Address("127.0.0.1", port)
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", str(GUARD), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **arm.env},
                start_new_session=True,
            )
        except OSError as error:
            raise ArmError(arm=arm.name, code="start_failed", seen=str(error)) from error
        try:
            _await_health(arm, process, address, log, health_timeout_s)
            try:
                dialect = dialect_of(address, arm.api_model, timeout_s)
            except ServerError as error:
                raise ArmError(arm=arm.name, code=error.code, seen=str(error), native_log=last_lines(log)) from error
            yield ServerProcess(arm, address, dialect, timeout_s, process, log)
        finally:
            _end(process)


def _await_health(
    arm: Arm, process: subprocess.Popen[bytes], address: Address, log: Any, health_timeout_s: float
) -> None:
    until = time.monotonic() + health_timeout_s
    while not is_ready(address, 2.0):
        if process.poll() is not None:
            seen = f"the server ended with status {process.returncode} before it was ready"
            raise ArmError(arm=arm.name, code="start_failed", seen=seen, native_log=last_lines(log))
        if time.monotonic() >= until:
            seen = f"no good answer from /health or /v1/models in {health_timeout_s:g} s"
            raise ArmError(arm=arm.name, code="not_healthy", seen=seen, native_log=last_lines(log))
        time.sleep(_POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the guard's input, on which it ends the server."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def open_url_arm(arm: Arm, *, timeout_s: float) -> Iterator[ServerProcess]:
    """Use a server that is running.

    Parameters
    ----------
    arm
        Of kind ``"url"``.
    timeout_s
        Longest silence.

    Raises
    ------
    ArmError
        It does not answer.
    """
    try:
        address = Address.from_url(arm.url or "")
    except ValueError as error:
        raise ArmError(arm=arm.name, code="start_failed", seen=str(error)) from error
    if not is_ready(address, min(10.0, timeout_s)):
        seen = f"no good answer from /health or /v1/models at {arm.url}"
        raise ArmError(arm=arm.name, code="not_healthy", seen=seen)
    try:
        dialect = dialect_of(address, arm.api_model, timeout_s)
    except ServerError as error:
        raise ArmError(arm=arm.name, code=error.code, seen=str(error)) from error
    yield ServerProcess(arm, address, dialect, timeout_s)
