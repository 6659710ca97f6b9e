"""Arms that are engines: a worker process per run, of this build or another."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from pylucebox.ab.errors import ArmError
from pylucebox.ab.outcome import Outcome
from pylucebox.ab.records import Arm, Request

__all__ = ["WORKER", "EngineProcess", "identify", "last_lines", "open_engine_arm"]

WORKER: Final = Path(__file__).with_name("engine_worker.py")
_LOG_LINES: Final = 12
_END_S: Final = 20.0


def last_lines(log: IO[bytes]) -> list[str]:
    """Return the last lines that a process wrote to its log."""
    log.flush()
    size = os.fstat(log.fileno()).st_size
    text = os.pread(log.fileno(), 8192, max(0, size - 8192)).decode("utf-8", "replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()][-_LOG_LINES:]


@dataclass
class EngineProcess:
    """A worker with its engine.

    Attributes
    ----------
    arm
        Arm it belongs to.
    process, log
        The worker and what it prints.
    timeout_s
        Longest wait for an answer.
    """

    arm: Arm
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    timeout_s: float

    def ask(self, job: Mapping[str, Any], code: str) -> dict[str, Any]:
        """Send a job and wait for its answer.

        Parameters
        ----------
        job
            See `engine_worker`.
        code
            Code of the error when the worker says that it failed.

        Raises
        ------
        ArmError
            The worker ended, answered nothing in time, or failed.
        """
        with suppress(BrokenPipeError):  # it has ended; why is found out below
            self._input.write(json.dumps(job).encode() + b"\n")
            self._input.flush()
        line = self._line()
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._error("bad_reply", f"the worker printed {line[:80]!r}") from None
        if "error" in answer:
            raise ArmError(arm=self.arm.name, code=code, seen=f"{answer['error']}: {answer['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def run(self, requests: Sequence[Request], warmup: Request | None) -> Outcome:
        """Run requests; see `pylucebox.ab.ports.ArmProcess`."""
        job = {
            "op": "run",
            "requests": [request.as_dict() for request in requests],
            "warmup": None if warmup is None else warmup.as_dict(),
        }
        return Outcome.from_dict(self.ask(job, "died"))

    @property
    def _input(self) -> IO[bytes]:
        if self.process.stdin is None:
            raise RuntimeError("the worker was started without a pipe")
        return self.process.stdin

    def _line(self) -> bytes:
        if self.process.stdout is None:
            raise RuntimeError("the worker was started without a pipe")
        out, parts = self.process.stdout.fileno(), []
        while True:
            ready, _, _ = select.select([out], [], [], self.timeout_s)
            if not ready:
                self.process.kill()  # it would not notice that it is to end
                raise self._error("timeout", f"no answer in {self.timeout_s:g} s")
            part = os.read(out, 1 << 20)
            if not part:
                self.process.wait()
                raise self._error("died", f"the worker ended with status {self.process.returncode}")
            parts.append(part)
            if part.endswith(b"\n"):
                return b"".join(parts)

    def _error(self, code: str, seen: str) -> ArmError:
        return ArmError(arm=self.arm.name, code=code, seen=seen, native_log=last_lines(self.log))


@contextmanager
def open_engine_arm(
    arm: Arm, *, model: str | None, sidecar: str | None, n_ctx: int, n_seq: int, timeout_s: float
) -> Iterator[EngineProcess]:
    """Start a worker and open the arm's engine in it.

    Parameters
    ----------
    arm
        Of kind ``"engine"``.
    model, sidecar
        Paths; None for the built-in model, and for an MTP file found by the engine.
    n_ctx, n_seq
        Tokens per sequence, and sequences.
    timeout_s
        Longest wait for any answer.

    Raises
    ------
    ArmError
        The worker or its engine cannot be started.
    """
    options = {"n_ctx": n_ctx, "n_seq": n_seq, **arm.options}
    if sidecar is not None and options.get("mtp", "auto") == "auto":
        options["mtp"] = sidecar
    with _started(arm, timeout_s) as worker:
        worker.ask({"op": "open", "site": _site(arm), "options": options, "model": model}, "start_failed")
        yield worker


def identify(arm: Arm, timeout_s: float = 120.0) -> dict[str, Any]:
    """Return which build an engine arm uses.

    Raises
    ------
    ArmError
        The build cannot be imported.
    """
    with _started(arm, timeout_s) as worker:
        return worker.ask({"op": "identify", "site": _site(arm)}, "start_failed")


def _site(arm: Arm) -> str | None:
    """Return the folder to import the package from; None leaves it to the interpreter.

    An installed build is measured as it is; ours must be found wherever the worker is started.
    """
    if arm.site is not None or arm.python is not None:
        return arm.site
    return str(Path(__file__).resolve().parents[2])


@contextmanager
def _started(arm: Arm, timeout_s: float) -> Iterator[EngineProcess]:
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                [arm.python or sys.executable, "-B", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **arm.env},
                start_new_session=True,  # Ctrl-C ends the session in an orderly way, not the worker
            )
        except OSError as error:
            seen = f"{arm.python or sys.executable}: {error.strerror}"
            raise ArmError(arm=arm.name, code="start_failed", seen=seen) from error
        try:
            yield EngineProcess(arm, process, log, timeout_s)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the worker end; kill it when it does not."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
