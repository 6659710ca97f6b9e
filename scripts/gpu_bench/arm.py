"""A process that runs what is measured, under environment variables of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measuring_process import MeasuringProcess

__all__ = ["Arm"]


class Arm(MeasuringProcess):
    """One process; call it with the name of a method of `arm_server.Server` and its arguments."""

    def __init__(self, env: Mapping[str, str], preload: Path | None = None) -> None:
        more = {"LD_PRELOAD": str(preload)} if preload else {}
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        super().__init__(Path(__file__).parent, {**more, **env, "PYTHONPATH": path})

    def __call__(self, do: str, **arguments: Any) -> Any:
        """Ask for something and return the answer; `SystemExit` if the process has ended."""
        return self.ask(do=do, **arguments)
