"""Starts real arms."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from pylucebox.ab.engine_arm import open_engine_arm
from pylucebox.ab.ports import ArmProcess
from pylucebox.ab.records import Arm
from pylucebox.ab.server_arm import open_server_arm, open_url_arm

__all__ = ["ProcessLauncher"]


@dataclass(frozen=True)
class ProcessLauncher:
    """Starts arms as processes.

    Attributes
    ----------
    model, sidecar
        Paths for engines; None for the built-in model, and for an MTP file found by the engine.
    model_path, sidecar_path
        Paths that ``{model}`` and ``{sidecar}`` of a server's command line stand for.
    health_timeout_s, timeout_s
        Longest wait for a server to be ready, and for any answer.
    """

    model: str | None
    sidecar: str | None
    model_path: str | None
    sidecar_path: str | None
    health_timeout_s: float = 600.0
    timeout_s: float = 3600.0

    def open(self, arm: Arm, *, n_ctx: int, n_seq: int) -> AbstractContextManager[ArmProcess]:
        """Start an arm; see `pylucebox.ab.ports.Launcher`."""
        if arm.kind == "engine":
            return open_engine_arm(
                arm, model=self.model, sidecar=self.sidecar, n_ctx=n_ctx, n_seq=n_seq, timeout_s=self.timeout_s
            )
        if arm.kind == "url":
            return open_url_arm(arm, timeout_s=self.timeout_s)
        values = {
            "model": self.model_path,
            "sidecar": self.sidecar_path,
            # A server divides its context among its slots.
            "n_ctx": str(n_ctx * n_seq),
            "n_seq": str(n_seq),
        }
        return open_server_arm(arm, values=values, health_timeout_s=self.health_timeout_s, timeout_s=self.timeout_s)
