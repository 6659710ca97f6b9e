"""Open damaged models in a process of their own, which may die, hang or run out of memory."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

MEMORY_BYTES = 6 << 30  # of addresses: libraries and the largest model in order take one
SECONDS = 60

_WORKER = """
import json, logging, os, resource, sys

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print does not get between the answers
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if "LUCEBOX_SANITIZED" not in os.environ:  # shadow memory takes terabytes of addresses
    resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
logging.disable(logging.CRITICAL)
import pylucebox as lb


def use(path):
    with lb.Engine(path, n_ctx=64, n_threads=1, n_ubatch=32) as engine:
        yield "open"
        yield str(engine.spec.reason_code)
        engine.generate([10, 20, 30] * 11, max_tokens=12, verify_width=3 if engine.spec.effective else 1)
        yield "generate"
        engine.generate("hello world", max_tokens=3)
        yield "text"
        engine.chat([{{"role": "user", "content": "x"}}], max_tokens=3)
        yield "chat"


for line in sys.stdin:
    answer = {{"done": [], "error": None}}
    try:
        for step in use(json.loads(line)):
            answer["done"].append(step)
    except Exception as error:
        ours = isinstance(error, lb.LuceboxError)
        answer["error"] = type(error).__name__ if ours else f"foreign {{type(error).__name__}}"
        answer["text"] = str(error)
        answer["seen"] = getattr(error, "seen", "")
        answer["argument"] = getattr(error, "argument", None)
    print(json.dumps(answer), file=answers, flush=True)
"""


class Opener:
    """A process that opens models one after another; it is started again when one ends it."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the object
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Opener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._errors.close()

    def open(self, path: Path) -> dict[str, Any]:
        """Open a model, generate, and return what happened.

        Returns
        -------
        dict
            ``done``: steps that worked; ``error``: class of the exception or None; its ``text``, ``seen`` and
            ``argument``. If the process died or hung, ``died`` says how and the rest is absent.
        """
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(str(path)).encode() + b"\n")
            process.stdin.flush()
            in_time = bool(select.select([process.stdout], [], [], SECONDS)[0])
        except BrokenPipeError:
            in_time = True
        line = process.stdout.readline() if in_time else b""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._stop()
        how = f"status {process.returncode}" if in_time else f"no answer in {SECONDS} s"
        self._errors.seek(0)
        last_lines = self._errors.read()[-400:].decode("utf-8", "replace")
        return {"died": f"{how}: {last_lines}"}

    def _start(self) -> subprocess.Popen[bytes]:
        self._errors.seek(0)
        self._errors.truncate()
        return subprocess.Popen(
            [sys.executable, "-c", _WORKER.format(memory=MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GGML_NO_BACKTRACE": "1"},
        )

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
