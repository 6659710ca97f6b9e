"""A process of its own for each thing that is measured, so that they can stay open side by side and take turns.

Switches of kernels are read once in a process, and a process can load one build of the library only. Requests and
answers are lines of JSON on standard input and output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MeasuringProcess", "package_env"]


def package_env(package_root: Path, *more: Path) -> dict[str, str]:
    """Return the environment of a process that uses the package in `package_root`, and modules in `more`."""
    return {
        "PYTHONPATH": os.pathsep.join(map(str, (package_root, *more))),
        # before the search path inside a library of another build, which leads to that build
        "LD_LIBRARY_PATH": str(package_root / "pylucebox" / "lib"),
    }


class MeasuringProcess:
    """A process that runs a Python program with ``--serve``.

    Parameters
    ----------
    program
        The program: a file, or a folder with a ``__main__.py``.
    env
        Variables beside those of this process.
    """

    def __init__(self, program: Path | str, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(program), "--serve"],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._requests = cast("IO[str]", self._process.stdin)
        self._answers = cast("IO[str]", self._process.stdout)

    def __enter__(self) -> Self:
        """Return the process; leaving the block ends it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self.close()

    def close(self) -> None:
        """End the process."""
        self._requests.close()
        self._process.wait()

    def ask(self, **request: Any) -> Any:
        """Ask for something and return the answer.

        Raises
        ------
        SystemExit
            The process ended.
        """
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        answer = self._answers.readline()
        if not answer:
            status = self._process.wait()
            raise SystemExit(f"a measuring process ended with status {status} at {request}; see its message above")
        return json.loads(answer)
