"""Plain decoding of the built-in model with these libraries and with those of an unpatched build, in turns."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pylucebox
from gpu_bench.settings import OFF, Settings, write_result
from gpu_bench.timing import figure, ratio
from pylucebox._build import DEMO_MODEL

__all__ = ["plain"]

N_CONTEXT, N_TOKENS = 1024, 256
OURS, STOCK = OFF, "stock"


class _Process:
    """One program that decodes when it is told to."""

    def __init__(self, program: Path, libraries: Path, environment: dict[str, str]) -> None:
        paths = [str(libraries), os.environ.get("LD_LIBRARY_PATH", "")]
        environment = {**os.environ, **environment, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}
        command = [str(program), str(DEMO_MODEL), str(N_CONTEXT)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def run(self, n_tokens: int) -> tuple[float, int]:
        """Return the milliseconds of a token, and a checksum of all."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the program has no pipes")
        print(n_tokens, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().split()
        if len(answer) != 2:
            raise RuntimeError(f"the program ended with status {self._process.wait()}")
        return float(answer[0]), int(answer[1])


def plain(settings: Settings) -> None:
    """Let the builds take turns; ours comes twice, which says what noise is."""
    if settings.plain_steps is None or settings.stock_libraries is None:
        raise ValueError("section plain needs --plain-steps and --stock-libraries")
    started = time.monotonic()
    order = random.Random(0)
    own = Path(pylucebox.__file__).parent / "lib"
    ways: dict[str, tuple[Path, dict[str, str]]] = {OURS: (own, {}), f"{OURS} again": (own, {})}
    ways |= {STOCK: (settings.stock_libraries, {})} | {name: (own, dict(env)) for name, env in settings.arms.items()}
    times: dict[str, list[float]] = {way: [] for way in ways}
    sums: dict[str, set[int]] = {way: set() for way in ways}
    with ExitStack() as stack:
        processes = {
            way: stack.enter_context(_Process(settings.plain_steps, libraries, env))
            for way, (libraries, env) in ways.items()
        }
        n_tokens = 16 if settings.quick else N_TOKENS
        for n_round in range(-2, settings.n_rounds):
            if n_round > 3 and time.monotonic() > started + settings.seconds:
                break
            for way in order.sample(list(ways), len(ways)):
                took_ms, checksum = processes[way].run(n_tokens)
                if n_round >= 0:  # the first rounds warm up
                    times[way].append(took_ms)
                    sums[way].add(checksum)
    rows: list[dict[str, Any]] = []
    for way, found in times.items():
        own_ms, over = figure(found), ratio(times[STOCK], found)
        told = {"n_texts": len(sums[way]), "text_of_default": sums[way] == sums[OURS]}
        rows.append({"way": way, "ms": own_ms, "speed_over_stock": over, **told})
        print(
            f"{way:14s} {own_ms['median']:.4f} ms a token, {over['median']:.4f} of stock"
            f" ({over['low']:.4f} to {over['high']:.4f})",
            file=sys.stderr,
        )
    write_result(settings, "plain", rows, started)
