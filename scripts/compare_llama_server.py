#!/usr/bin/env python3
"""Compare the engine with an unpatched llama-server on the built-in model, in one interleaved run.

Four arms stay loaded side by side and take turns on the same greedy prompts: the engine with MTP off and with MTP at
`--width`, and a llama-server given by path, plain and with its own ``draft-mtp``. One thread each. Decode speed is what
either side reports of itself without the prompt (the server's ``timings``, the engine's stats), so the server does not
pay for HTTP. The order of the arms in a round is shuffled with a fixed seed; ratios are medians over the rounds with a
distribution-free interval.

    python scripts/compare_llama_server.py --server PATH/llama-server
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pylucebox
from pylucebox.cli._demo_prompts import PROMPTS
from pylucebox.cli._measure import median_interval

MODEL = Path(pylucebox.__file__).parent / "demo_model" / "tiny-qwen4exp-Q8_0.gguf"
SIDECAR = MODEL.parent / "MTP" / "mtp-tiny-qwen4exp-Q8_0.gguf"


@dataclass(frozen=True)
class Run:
    """One prompt decoded by one arm: ids, decode speed in tok/s, drafts made and accepted."""

    tokens: tuple[int, ...]
    tokens_per_s: float
    drafted: int
    accepted: int


Arm = Callable[[str, int], Run]


def free_port() -> int:
    """Return a loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """POST JSON and return the JSON answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        answer: dict[str, Any] = json.load(reply)
        return answer


@contextlib.contextmanager
def server_arm(binary: Path, extra: list[str]) -> Iterator[Arm]:
    """Start a llama-server with one thread and one slot; yield a function that runs a prompt on it."""
    port = free_port()
    command = [str(binary), "-m", str(MODEL), "--host", "127.0.0.1", "--port", str(port), "-np", "1", "-c", "2048"]
    command += ["-t", "1", "-tb", "1", "--no-cache-prompt", *extra]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            if process.poll() is not None:
                sys.exit(f"the server ended with code {process.returncode}: {' '.join(command)}")
            with contextlib.suppress(OSError), urllib.request.urlopen(base + "/health", timeout=1):
                break
            time.sleep(0.1)

        def run(prompt: str, n_tokens: int) -> Run:
            body = {"prompt": prompt, "n_predict": n_tokens, "temperature": 0, "cache_prompt": False}
            answer = post(base + "/completion", {**body, "return_tokens": True})
            times = answer["timings"]
            return Run(
                tokens=tuple(answer["tokens"]),
                tokens_per_s=times["predicted_per_second"],
                drafted=times.get("draft_n", 0),
                accepted=times.get("draft_n_accepted", 0),
            )

        yield run
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def engine_arm(width: int) -> Iterator[Arm]:
    """Open the built-in model with one thread; yield a function that runs a prompt on it."""
    with pylucebox.Engine.demo(verify_width=width, n_threads=1, n_threads_batch=1, n_ctx=2048) as engine:

        def run(prompt: str, n_tokens: int) -> Run:
            done = engine.generate(prompt, max_tokens=n_tokens)
            stats = done.stats
            return Run(
                tokens=done.token_ids,
                tokens_per_s=1000 * stats.decode_tokens / stats.decode_ms,
                drafted=stats.num_draft_tokens,
                accepted=stats.num_accepted_tokens,
            )

        yield run


def first_difference(a: tuple[int, ...], b: tuple[int, ...]) -> int | None:
    """Return the index of the first token that differs, None when one text begins with the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def ratio(runs: dict[str, list[list[Run]]], over: str, under: str) -> dict[str, float]:
    """Ratio of two arms: per round the geometric mean over the prompts, then median and interval over the rounds."""
    rounds = [
        statistics.fmean(math.log(a.tokens_per_s / b.tokens_per_s) for a, b in zip(x, y, strict=True))
        for x, y in zip(runs[over], runs[under], strict=True)
    ]
    low, high, coverage = median_interval(rounds)
    return {
        "ratio": math.exp(statistics.median(rounds)),
        "low": math.exp(low),
        "high": math.exp(high),
        "coverage": coverage,
    }


def report(runs: dict[str, list[list[Run]]], names: list[str]) -> dict[str, Any]:
    """Sum the runs up; `runs` maps an arm to its rounds, each a list over the prompts."""
    reference = runs["engine off"][0]
    out: dict[str, Any] = {"arms": {}, "ratios": {}, "differences_from_engine_off": {}}
    for arm, rounds in runs.items():
        drafted = sum(run.drafted for run in rounds[0])
        accepted = sum(run.accepted for run in rounds[0])
        speeds = [math.exp(statistics.fmean(math.log(run.tokens_per_s) for run in one)) for one in rounds]
        out["arms"][arm] = {
            "tokens_per_s": statistics.median(speeds),
            "num_draft_tokens": drafted,
            "num_accepted_tokens": accepted,
            "acceptance_rate": accepted / drafted if drafted else None,
        }
        out["differences_from_engine_off"][arm] = {
            name: first_difference(mine.tokens, other.tokens)
            for name, mine, other in zip(names, reference, rounds[0], strict=True)
        }
    pairs = [("engine off", "server off"), ("engine mtp", "server mtp"), ("engine mtp", "engine off")]
    for over, under in [*pairs, ("server mtp", "server off")]:
        out["ratios"][f"{over} / {under}"] = ratio(runs, over, under)
    return out


def main() -> None:
    """Run the comparison and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, required=True, help="an unpatched llama-server")
    parser.add_argument("--rounds", type=int, default=9, help="rounds over all prompts, at least 6 (default 9)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per prompt (default 128)")
    parser.add_argument("--width", type=int, default=4, help="verify width of the engine, 2 to 8 (default 4)")
    args = parser.parse_args()

    spec = ["--spec-type", "draft-mtp", "-md", str(SIDECAR), "-td", "1", "-tbd", "1"]
    order = random.Random(1)
    with contextlib.ExitStack() as stack:
        arms = {
            "engine off": stack.enter_context(engine_arm(1)),
            "engine mtp": stack.enter_context(engine_arm(args.width)),
            "server off": stack.enter_context(server_arm(args.server, [])),
            "server mtp": stack.enter_context(server_arm(args.server, spec)),
        }
        runs: dict[str, list[list[Run]]] = {name: [] for name in arms}
        for round_index in range(-1, args.rounds):  # the first round warms up and is dropped
            row: dict[str, list[Run]] = {name: [] for name in arms}
            for prompt in PROMPTS:
                for name in order.sample(list(arms), len(arms)):
                    row[name].append(arms[name](prompt.text, args.tokens))
            print(f"round {round_index + 1} of {args.rounds}", file=sys.stderr)
            if round_index >= 0:
                for name in arms:
                    runs[name].append(row[name])
    print(json.dumps(report(runs, [prompt.name for prompt in PROMPTS]), indent=1))


if __name__ == "__main__":
    main()
