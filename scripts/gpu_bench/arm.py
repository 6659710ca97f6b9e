"""A process that runs what is measured, under environment variables of its own.

Switches of kernels are read once in a process, so settings that are compared live in processes that stay open side by
side and take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

__all__ = ["Arm"]


class Arm:
    """One process; call it with the name of a method of `arm_server.Server` and its arguments."""

    def __init__(self, env: Mapping[str, str], preload: Path | None = None) -> None:
        more = {"LD_PRELOAD": str(preload)} if preload else {}
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent), "--serve"],
            env={**os.environ, **more, **env, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._requests = cast("IO[str]", self._process.stdin)
        self._answers = cast("IO[str]", self._process.stdout)

    def __enter__(self) -> Arm:
        """Return the arm; leaving the block ends its process."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self._requests.close()
        self._process.wait()

    def __call__(self, do: str, **arguments: Any) -> Any:
        """Ask for something and return the answer.

        Raises
        ------
        RuntimeError
            The process ended.
        """
        self._requests.write(json.dumps({"do": do, **arguments}) + "\n")
        self._requests.flush()
        answer = self._answers.readline()
        if not answer:
            status = self._process.wait()
            raise RuntimeError(f"a measuring process ended with status {status} at {do}; see its message above")
        return json.loads(answer)
