"""What is measured, and how much of it."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from gpu_bench.arm import Arm
from gpu_bench.models import model_spec, write_model

__all__ = ["OFF", "OFF_AGAIN", "Settings", "open_arms", "write_result"]

OFF, OFF_AGAIN = "default", "default again"

WIDTHS: Final = tuple(range(1, 9))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run.

    Attributes
    ----------
    out
        Folder of the results.
    models
        Folder of the random models.
    device
        As `Engine` takes it.
    quick
        Small widths, short prompts and few rounds, for a trial.
    arms
        Environment variables of each further arm by name, beside the default and the default again.
    types
        Weight types of the random models.
    n_layer, n_expert
        Layers of the random models and experts of each.
    n_rounds
        Turns of every arm.
    contexts
        Tokens of the prompts that cycles are measured behind.
    widths
        Rows of the cycles that are measured.
    prompts
        Tokens of the prompts that are measured themselves.
    server
        A llama-server of an unpatched build, or None.
    plain_steps, stock_libraries
        The program of section plain, and the folder with the libraries of an unpatched build; or None.
    ways
        What takes turns on the built-in model beside MTP off, as the results name it; empty for all.
    seconds
        A section takes no new round when it has had so long.
    """

    out: Path
    models: Path
    device: str = "auto"
    quick: bool = False
    arms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    types: tuple[str, ...] = ("iq4_xs", "q4_K")
    n_layer: int = 4
    n_expert: int = 512
    n_rounds: int = 12
    contexts: tuple[int, ...] = (1024, 16384, 65536)
    widths: tuple[int, ...] = WIDTHS
    prompts: tuple[int, ...] = (1024, 4096, 16384)
    server: Path | None = None
    plain_steps: Path | None = None
    stock_libraries: Path | None = None
    ways: tuple[str, ...] = ()
    seconds: float = 500.0

    def all_arms(self) -> dict[str, Mapping[str, str]]:
        """Return the environment of every arm by name."""
        return {OFF: {}, OFF_AGAIN: {}, **self.arms}

    @property
    def n_draft_vocab(self) -> int:
        """Tokens that are drafted from."""
        return 512 if self.quick else 64_000

    def model(self, weight_type: str) -> Path:
        """Return the random model of a type; it is written where it is missing."""
        spec = model_spec(
            weight_type,
            n_layer=self.n_layer,
            n_expert=16 if self.quick else self.n_expert,
            n_vocab=1024 if self.quick else 248_320,
            n_ctx=1 << 18,
            real=not self.quick,
        )
        self.models.mkdir(parents=True, exist_ok=True)
        n_expert = spec.n_expert
        return write_model(self.models / f"{spec.n_embd}-{spec.n_layer}-{n_expert}-{weight_type}.gguf", spec)


def open_arms(settings: Settings, stack: ExitStack) -> dict[str, Arm]:
    """Start a process for every arm; they end with the stack."""
    return {name: stack.enter_context(Arm(env)) for name, env in settings.all_arms().items()}


def write_result(settings: Settings, section: str, rows: list[dict[str, Any]], started: float) -> None:
    """Write what a section has found so far: a command that is cut off leaves what it had."""
    settings.out.mkdir(parents=True, exist_ok=True)
    shown = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(settings).items()}
    for private in ("out", "models", "server", "plain_steps", "stock_libraries"):
        shown.pop(private)
    result = {
        "section": section,
        "seconds": round(time.monotonic() - started, 1),
        "settings": shown,
        "environment": {key: value for key, value in os.environ.items() if key.startswith(("STRIX_", "GGML_CUDA_"))},
        "machine": {"processor": platform.machine(), "system": platform.system()},
        "rows": rows,
    }
    path = settings.out / f"{section}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
