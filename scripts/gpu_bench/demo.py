"""The built-in model end to end: each width, adaptive, and upstream's server with its own loop of drafts."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gpu_bench.arm import Arm
from gpu_bench.settings import OFF, Settings, write_result
from gpu_bench.timing import figure, ratio
from pylucebox._build import DEMO_MODEL
from pylucebox.cli._demo_prompts import PROMPTS

__all__ = ["demo"]

N_TOKENS = 256
SIDECAR = DEMO_MODEL.parent / "MTP" / f"mtp-{DEMO_MODEL.name}"
ENGINE_WAYS = {"off": 1, "off again": 1, "1 draft": 2, "3 drafts": 4, "7 drafts": 8, "adaptive": 0}


def demo(settings: Settings) -> None:
    """Let all ways take turns on each demo text; every prompt is decoded greedily."""
    started = time.monotonic()
    n_tokens = 32 if settings.quick else N_TOKENS
    order = random.Random(0)
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    told: dict[str, str] = {}
    with ExitStack() as stack:
        runners: dict[str, Any] = {}
        for arm_name, env in settings.all_arms().items():
            if arm_name not in (OFF, *settings.arms):
                continue
            arm = stack.enter_context(Arm(env))
            told[arm_name] = arm("open_engine", name="mtp", device=settings.device, mtp=True, width=0)
            arm("open_engine", name="plain", device=settings.device, mtp=False, width=1)
            for way, width in ENGINE_WAYS.items():
                # without MTP at all: what drafting must not be slower than
                engine, asked = ("plain", None) if way.startswith("off") else ("mtp", width)
                runners[f"{arm_name}: {way}"] = _engine_way(arm, engine, asked)
        if settings.server is not None:
            spec = ["--spec-type", "draft-mtp", "-md", str(SIDECAR), "-ngld", "99"]
            for way, extra in {"off": [], "7 drafts": [*spec, "--spec-draft-n-max", "7"]}.items():
                runners[f"stock: {way}"] = stack.enter_context(_server_way(settings, extra))
        if settings.ways:
            runners = {way: run for way, run in runners.items() if way in (f"{OFF}: off", *settings.ways)}
        n_done = 0
        while n_done <= settings.n_rounds and (n_done < 4 or time.monotonic() < started + settings.seconds):
            for prompt in PROMPTS:
                for way in order.sample(list(runners), len(runners)):
                    run = runners[way](prompt.text, n_tokens)
                    if n_done > 0:  # the first round warms up
                        runs.setdefault((prompt.name, way), []).append(run)
            n_done += 1
            if n_done > 3:
                write_result(settings, "demo", _rows(runs, told), started)
    for row in _rows(runs, told):
        over = row["over_off"]
        print(
            f"{row['prompt']:9s} {row['way']:28s} {row['tokens_per_s']['median']:8.0f} tok/s  {over['median']:.2f}"
            f" ({over['low']:.2f} to {over['high']:.2f})  accepted {row['n_accepted']}/{row['n_drafted']}"
            f"  {'same text' if row['same_text'] else 'OTHER TEXT from ' + str(row['differs_at'])}{_budget(row)}",
            file=sys.stderr,
        )


def _budget(row: dict[str, Any]) -> str:
    """Return where the time of a cycle goes, in milliseconds."""
    if "cycle_ms" not in row:
        return ""
    parts = ", ".join(f"{part} {ms:.2f}" for part, ms in row["cycle_ms"].items())
    return f"  a cycle, ms: {parts}; built in {row['n_built']} of {row['n_cycles']}"


def _rows(runs: dict[tuple[str, str], list[dict[str, Any]]], told: dict[str, str]) -> list[dict[str, Any]]:
    rows = []
    for (prompt, way), found in runs.items():
        off = runs[prompt, f"{OFF}: off"]
        n = min(len(found), len(off))
        own = runs.get((prompt, way.split(":")[0] + ": off"), off)
        differs = _first_difference(found[0]["tokens"], own[0]["tokens"])
        rows.append(
            {
                "prompt": prompt,
                "way": way,
                "tokens_per_s": figure([run["tokens_per_s"] for run in found]),
                "over_off": ratio([run["tokens_per_s"] for run in found[:n]], [run["tokens_per_s"] for run in off[:n]]),
                "n_tokens": len(found[0]["tokens"]),
                "n_drafted": found[0]["n_drafted"],
                "n_accepted": found[0]["n_accepted"],
                "same_text": differs is None and all(run["tokens"] == found[0]["tokens"] for run in found),
                "differs_at": differs,
                "drafts": told.get(way.split(":")[0], ""),
                **_inside(found),
            }
        )
    return rows


def _inside(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the engine says of its cycles; upstream's server says nothing of the kind."""
    if "parts_ms" not in found[0]:
        return {}
    cycle_ms = {
        part: statistics.median(run["parts_ms"][part] / run["n_cycles"] for run in found)
        for part in found[0]["parts_ms"]
    }
    return {
        "n_cycles": found[0]["n_cycles"],
        "n_built": found[0]["n_built"],
        "cycle_ms": cycle_ms,
        "rounds": [
            {key: run[key] for key in ("n_cycles", "n_built", "parts_ms", "verified_histogram", "drafted_histogram")}
            | {key: run[key] for key in ("prices_us", "plain_reasons") if run[key]}
            for run in found
        ],
    }


def _first_difference(tokens: list[int], others: list[int]) -> int | None:
    """Return where two texts part; None where one begins with the other."""
    return next((i for i, (x, y) in enumerate(zip(tokens, others, strict=False)) if x != y), None)


def _engine_way(arm: Arm, name: str, width: int | None) -> Any:
    def run(prompt: str, n_tokens: int) -> Any:
        return arm("generate", name=name, prompt=prompt, max_tokens=n_tokens, width=width)

    return run


@contextlib.contextmanager
def _server_way(settings: Settings, extra: list[str]) -> Iterator[Any]:
    if settings.server is None:
        raise ValueError("no server was given")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [str(settings.server), "-m", str(DEMO_MODEL), "--host", "127.0.0.1", "--port", str(port)]
    n_gpu_layers = "0" if settings.device == "cpu" else "99"
    command += ["-np", "1", "-c", "2048", "-ngl", n_gpu_layers, "--no-cache-prompt", *extra]
    log = Path(settings.out) / f"server-{port}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            if process.poll() is not None:
                end = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the server ended with status {process.returncode}: {end}")
            with contextlib.suppress(OSError), urllib.request.urlopen(base + "/health", timeout=1):
                break
            time.sleep(0.1)

        def run(prompt: str, n_tokens: int) -> dict[str, Any]:
            body = {"prompt": prompt, "n_predict": n_tokens, "temperature": 0, "cache_prompt": False}
            data = json.dumps({**body, "return_tokens": True}).encode()
            request = urllib.request.Request(base + "/completion", data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=120) as reply:
                answer = json.load(reply)
            times = answer["timings"]
            return {
                "tokens": answer["tokens"],
                "tokens_per_s": times["predicted_per_second"],
                "n_drafted": times.get("draft_n", 0),
                "n_accepted": times.get("draft_n_accepted", 0),
            }

        yield run
    finally:
        process.terminate()
        process.wait(30)
        log.unlink(missing_ok=True)
