#!/usr/bin/env python3
"""Measure several slots of a server: even drafts against uneven ones and against MTP off, in one interleaved run.

Starts one server for each arm, which stay up side by side, and lets them take turns: in each round every arm, in
another order each time, gets the same mixed prompts, staggered. The figure of an arm in a round is the tokens of all
replies over the time from the first request to the last reply. MTP off is there twice: how far these two are apart is
what noise is. Printed are the medians, the ratios of an arm to MTP off and of even to uneven drafts, round by round,
with their interval, the runs of the model for each pass, and whether all texts are the same. ``--output FOLDER`` keeps
this, with the values of every round, as JSON, and a picture of the ratios.

    python scripts/server_slots.py [--rounds 12] [--width 4] [--slots 4] [--output FOLDER] [--json]
    python scripts/server_slots.py --random    # a larger random model, whose drafts hold as often as those of a text

On the random model drafts hold by their own merit, too: its language is made so that they do, see `pylucebox.testing`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pylucebox._axis import LogAxis
from pylucebox._build import DEMO_MODEL
from pylucebox.ab.markup import Html, el
from pylucebox.cli._measure import median_interval
from pylucebox.testing import REAL_WIDTHS, write_tiny_model

PROMPTS = (
    "def add(a, b):\n    return a + b\n\ndef multiply(a, b):",
    "The sum of the numbers is",
    "one two three four five six seven eight " * 4,
    '{"name": "alpha", "value": 1}, {"name": "beta", ',
    "Once upon a time there was",
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
)
ARMS = {
    "off": ("--mtp", "off"),
    "off again": ("--mtp", "off"),
    "uneven": ("--no-even-drafts",),
    "even": ("--even-drafts",),
}
RATIOS = (("off again", "off"), ("even", "uneven"), ("even", "off"), ("uneven", "off"))
STAGGER_S = 0.05


@dataclass
class Arm:
    """One server and what it took."""

    port: int
    tokens_per_s: list[float] = field(default_factory=list)
    texts: list[Any] = field(default_factory=list)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        """Return a reply."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(link):
            link.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
            return link.getresponse().read()

    def metric(self, name: str) -> float:
        """Return a figure of /metrics."""
        lines = self.ask("/metrics").decode().splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def round(self, n_slots: int, n_tokens: int, width: int | None) -> None:
        """Send the prompts, staggered, and note tokens per second and texts."""
        replies: list[Any] = [None] * n_slots

        def one(i: int) -> None:
            time.sleep(STAGGER_S * i)
            body: dict[str, Any] = {
                "prompt": PROMPTS[i % len(PROMPTS)],
                "n_predict": n_tokens - 8 * i,
                "temperature": 0.7,
                "seed": i,
                "cache_prompt": False,
                "ignore_eos": True,
                "return_tokens": True,
            }
            replies[i] = json.loads(self.ask("/completion", body if width is None else {**body, "verify_width": width}))

        threads = [threading.Thread(target=one, args=(i,)) for i in range(n_slots)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.perf_counter() - began
        self.texts.append([reply["tokens"] for reply in replies])
        self.tokens_per_s.append(sum(reply["timings"]["predicted_n"] for reply in replies) / took_s)


@contextlib.contextmanager
def serving(model: Path, arguments: tuple[str, ...], options: argparse.Namespace) -> Iterator[Arm]:
    """Start a server and wait until it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        arm = Arm(free.getsockname()[1])
    call = [sys.executable, "-m", "pylucebox.serve.main", "-m", str(model), "--port", str(arm.port), *arguments]
    call += ["--threads", str(options.threads), "--threads-batch", str(options.threads)]
    call += ["--parallel", str(options.slots), "--ctx-size", str(1024 * options.slots)]
    with subprocess.Popen(call, stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                with contextlib.suppress(OSError, ValueError):
                    if json.loads(arm.ask("/health")).get("status") == "ok":
                        break
                if process.poll() is not None:
                    sys.exit(f"the server with {' '.join(arguments)} did not start")
                time.sleep(0.1)
            yield arm
        finally:
            process.terminate()


def measure(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds and return the figures."""
    with contextlib.ExitStack() as stack:
        arms = {name: stack.enter_context(serving(model, flags, options)) for name, flags in ARMS.items()}
        for name, arm in arms.items():  # warm up: graphs, costs, the policy's view of the machine
            arm.round(options.slots, options.tokens, width_of(name, options))
            arm.tokens_per_s.clear()
        counts = {
            name: (arm.metric("lucebox_passes_total"), arm.metric("lucebox_model_runs_total"))
            for name, arm in arms.items()
        }
        rng = random.Random(0)
        for _ in range(options.rounds):
            for name in rng.sample(list(arms), len(arms)):
                arms[name].round(options.slots, options.tokens, width_of(name, options))
        wanted = arms["off"].texts[0]
        out: dict[str, Any] = {"same_texts": all(text == wanted for arm in arms.values() for text in arm.texts)}
        for name, arm in arms.items():
            n_passes = arm.metric("lucebox_passes_total") - counts[name][0]
            n_runs = arm.metric("lucebox_model_runs_total") - counts[name][1]
            out[name] = {
                "tokens_per_s": statistics.median(arm.tokens_per_s),
                "rounds": arm.tokens_per_s,
                "runs_per_pass": n_runs / n_passes if n_runs else None,
            }
        for above, below in RATIOS:
            pairs = zip(arms[above].tokens_per_s, arms[below].tokens_per_s, strict=True)
            ratios = [a / b for a, b in pairs]
            low, high, coverage = median_interval(ratios)
            out[f"{above}/{below}"] = {
                "median": statistics.median(ratios),
                "low": low,
                "high": high,
                "coverage": coverage,
            }
        return out


def width_of(name: str, options: argparse.Namespace) -> int | None:
    """Return the width that an arm's requests ask for."""
    return None if name.startswith("off") else options.width


def picture(found: dict[str, Any], title: str) -> str:
    """Draw the ratios with their intervals on an axis of their logarithms, as an SVG document."""
    rows = [(f"{above}/{below}", found[f"{above}/{below}"]) for above, below in RATIOS]
    axis = LogAxis(
        min(0.8, *(row["low"] for _, row in rows)) / 1.05, max(1.25, *(row["high"] for _, row in rows)) * 1.05
    )
    left, right, top, height = 170, 620, 70, 34
    bottom = top + height * len(rows)

    def x(ratio: float) -> float:
        return round(left + axis.share(ratio) * (right - left), 1)

    def text(at: float, y: float, content: str, **more: object) -> Html:
        return el("text", content, x=at, y=y, **{"fill": "#111827", **more})

    marks = [text(16, 32, title, font_size=17, font_weight="bold")]
    for tick in axis.ticks(45 / (right - left)):
        colour = "#111827" if tick == 1.0 else "#e5e7eb"
        marks.append(el("line", x1=x(tick), x2=x(tick), y1=top - 8, y2=bottom, stroke=colour))
        marks.append(text(x(tick), bottom + 18, f"{tick:g}", text_anchor="middle", fill="#4b5563"))
    for number, (name, row) in enumerate(rows):
        y = top + height * (number + 0.5)
        colour = "#6b7280" if name.startswith("off") else "#1f4e92"
        marks.append(text(16, y + 5, name))
        marks.append(el("line", x1=x(row["low"]), x2=x(row["high"]), y1=y, y2=y, stroke=colour, stroke_width=4))
        marks.append(el("circle", cx=x(row["median"]), cy=y, r=6, fill=colour))
        marks.append(text(right + 16, y + 5, f"{row['median']:.2f} ({row['low']:.2f} to {row['high']:.2f})"))
    drawing = el(
        "svg",
        el("title", title),
        el("rect", width=800, height=bottom + 34, fill="#ffffff"),
        *marks,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 800 {bottom + 34}",
        role="img",
        font_family="DejaVu Sans, Verdana, Arial, sans-serif",
        font_size=14,
    )
    return f"{drawing}\n"


def random_model(folder: Path) -> Path:
    """Write a model with the widths of the real one, but few tokens and experts."""
    spec = replace(
        REAL_WIDTHS, vocab_multiple=4096, n_expert=16, n_expert_used=4, mtp="sidecar", kind="mixed", weight_type="q8_0"
    )
    return write_tiny_model(folder / "random.gguf", spec).model


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="rounds of all arms (default: %(default)s)")
    parser.add_argument("--slots", type=int, default=4, help="requests that run together (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="of the longest reply (default: %(default)s)")
    parser.add_argument("--width", type=int, help="of every pass; without it the policy decides")
    parser.add_argument("--threads", type=int, default=1, help="of each server (default: %(default)s)")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="model file (default: the built-in one)")
    parser.add_argument("--random", action="store_true", help="a larger random model in place of it")
    parser.add_argument("--output", type=Path, help="folder for server-slots.json and server-slots.svg")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(random_model(Path(folder)) if options.random else options.model, options)
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        kept = {"settings": {name: str(value) for name, value in vars(options).items()}, **found}
        (options.output / "server-slots.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        model = "a random model" if options.random else options.model.stem
        title = f"{options.slots} slots together, {model}, {options.rounds} rounds"
        (options.output / "server-slots.svg").write_text(picture(found, title), encoding="utf-8")
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    for name in ARMS:
        runs = found[name]["runs_per_pass"]
        print(f"{name:10}{found[name]['tokens_per_s']:9.1f} tok/s" + (f", {runs:.2f} runs a pass" if runs else ""))
    for above, below in RATIOS:
        name, ratio = f"{above}/{below}", found[f"{above}/{below}"]
        print(f"{name:14}{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f}, {ratio['coverage']:.0%})")
    print("all texts are the same" if found["same_texts"] else "THE TEXTS DIFFER")
    return int(not found["same_texts"])


if __name__ == "__main__":
    sys.exit(main())
