#!/usr/bin/env python3
"""Measure several slots of a server: the policy's widths and fixed ones against MTP off, in one interleaved run.

Starts one server for each arm, which stay up side by side, and lets them take turns: in each round every arm, in
another order each time, gets the same mixed prompts, staggered. The figure of an arm in a round is the tokens of all
replies over the time from the first request to the last reply. The arms are

    off, off again      without MTP; how far these two are apart is what noise is
    adaptive            as users have it: the policy chooses, and drafts only where that pays
    even                drafts in every pass: a policy that wants another width for each slot (1, 2, 3, 2), made even
    uneven              the same without even drafts, so that the model runs once for each width

Printed are the medians, the ratios of arms with their intervals, round by round, the runs of the model for each pass,
how much of what slots verify has drafts, and whether all texts are the same. ``--output FOLDER`` keeps this,
with the values of every round, as JSON, and a picture of the ratios.

    python scripts/server_slots.py [--rounds 12] [--slots 4] [--arms off,adaptive] [--output FOLDER] [--json]
    python scripts/server_slots.py --random    # a larger random model, whose drafts hold as often as those of a text

On the random model drafts hold by their own merit, too: its language is made so that they do, see `pylucebox.testing`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pylucebox._axis import LogAxis
from pylucebox._build import DEMO_MODEL
from pylucebox.ab.markup import Html, el
from pylucebox.cli._measure import median_interval
from pylucebox.serve.flags import parse_flags
from pylucebox.serve.launch import plan_launch
from pylucebox.serve.worker import serve
from pylucebox.testing import REAL_WIDTHS, write_tiny_model
from pylucebox.width import CycleContext, FixedWidth

PROMPTS = (
    "def add(a, b):\n    return a + b\n\ndef multiply(a, b):",
    "The sum of the numbers is",
    "one two three four five six seven eight " * 4,
    '{"name": "alpha", "value": 1}, {"name": "beta", ',
    "Once upon a time there was",
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
)
SERVE_WIDTHS = "serve-widths"
WIDTHS = (1, 2, 3, 2)  # that the slots want in the arms with drafts in every pass; 8 rows together
SERVER = ("-m", "pylucebox.serve.main")
ARMS = {
    "off": (*SERVER, "--mtp", "off"),
    "off again": (*SERVER, "--mtp", "off"),
    "adaptive": SERVER,
    "even": (__file__, SERVE_WIDTHS),
    "uneven": (__file__, SERVE_WIDTHS, "--no-even-drafts"),
}
RATIOS = (("off again", "off"), ("adaptive", "off"), ("even", "off"), ("even", "uneven"))
STAGGER_S = 0.01


class WidthOfSlot(FixedWidth):
    """Another width for each slot, in every pass."""

    def __init__(self) -> None:
        super().__init__(max(WIDTHS))

    def choose(self, seq: int, context: CycleContext) -> int:
        """Return the slot's width, cut to the limits of the cycle."""
        return min(WIDTHS[seq % len(WIDTHS)], super().choose(seq, context))


def serve_widths(arguments: list[str]) -> int:
    """Serve with that policy, without a supervisor."""
    flags = parse_flags(arguments, os.environ)
    launch = plan_launch(flags, flags.port).as_dict()
    return serve({**launch, "sockets": []}, make_policy=WidthOfSlot)


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

    def counts(self) -> list[float]:
        """Return passes, runs of the model, and shares of slots in a pass: those of one row, and all."""
        lines = [line.rpartition(" ") for line in self.ask("/metrics").decode().splitlines()]
        figures = [(name, float(value)) for name, _, value in lines if name.startswith("lucebox_")]
        return [
            sum(value for name, value in figures if name.startswith(start) and end in name)
            for start, end in (
                ("lucebox_passes_total", ""),
                ("lucebox_model_runs_total", ""),
                ("lucebox_verify_width_bucket", 'le="1"'),
                ("lucebox_verify_width_count", ""),
            )
        ]

    def round(self, n_slots: int, n_tokens: int) -> None:
        """Send the prompts, staggered, and note tokens per second and texts."""
        replies: list[Any] = [None] * n_slots

        def one(i: int) -> None:
            time.sleep(STAGGER_S * i)
            body: dict[str, Any] = {
                "prompt": PROMPTS[i % len(PROMPTS)],
                "n_predict": max(2, n_tokens - 8 * i),
                "temperature": 0.7,
                "seed": i,
                "cache_prompt": False,
                "ignore_eos": True,
                "return_tokens": True,
            }
            replies[i] = json.loads(self.ask("/completion", body))

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
    call = [sys.executable, *arguments, "-m", str(model), "--host", "127.0.0.1", "--port", str(arm.port)]
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
        arms = {name: stack.enter_context(serving(model, ARMS[name], options)) for name in options.arms}
        for arm in arms.values():  # warm up: graphs, costs, the policy's view of the machine
            arm.round(options.slots, options.tokens)
            arm.tokens_per_s.clear()
        before = {name: arm.counts() for name, arm in arms.items()}
        rng = random.Random(0)
        for _ in range(options.rounds):
            for name in rng.sample(list(arms), len(arms)):
                arms[name].round(options.slots, options.tokens)
        wanted = next(iter(arms.values())).texts[0]
        out: dict[str, Any] = {"same_texts": all(text == wanted for arm in arms.values() for text in arm.texts)}
        for name, arm in arms.items():
            n_passes, n_runs, n_single, n_shares = (
                now - then for now, then in zip(arm.counts(), before[name], strict=True)
            )
            out[name] = {
                "tokens_per_s": statistics.median(arm.tokens_per_s),
                "rounds": arm.tokens_per_s,
                "runs_per_pass": n_runs / n_passes if n_runs else None,
                "drafting_share": 1.0 - n_single / n_shares,
            }
        for above, below in ratios_of(options.arms):
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


def ratios_of(arms: Sequence[str]) -> list[tuple[str, str]]:
    """Return the ratios that can be had of these arms."""
    return [(above, below) for above, below in RATIOS if above in arms and below in arms]


def picture(found: dict[str, Any], title: str) -> str:
    """Draw the ratios with their intervals on an axis of their logarithms, as an SVG document."""
    rows = [(name, row) for name, row in found.items() if "/" in name]
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
    parser.add_argument("--arms", default=",".join(ARMS), help="some of them (default: all)")
    parser.add_argument("--threads", type=int, default=1, help="of each server (default: %(default)s)")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="model file (default: the built-in one)")
    parser.add_argument("--random", action="store_true", help="a larger random model in place of it")
    parser.add_argument("--output", type=Path, help="folder for server-slots.json and server-slots.svg")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    options.arms = options.arms.split(",")
    if unknown := [name for name in options.arms if name not in ARMS]:
        parser.error(f"there is no arm {unknown[0]!r}; there are: {', '.join(ARMS)}")
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
    for name in options.arms:
        runs, share = found[name]["runs_per_pass"], found[name]["drafting_share"]
        more = f", {runs:.2f} runs a pass, drafts in {share:.0%} of what slots verify" if runs else ""
        print(f"{name:10}{found[name]['tokens_per_s']:9.1f} tok/s{more}")
    for above, below in ratios_of(options.arms):
        name, ratio = f"{above}/{below}", found[f"{above}/{below}"]
        print(f"{name:14}{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f}, {ratio['coverage']:.0%})")
    print("all texts are the same" if found["same_texts"] else "THE TEXTS DIFFER")
    return int(not found["same_texts"])


if __name__ == "__main__":
    sys.exit(serve_widths(sys.argv[2:]) if sys.argv[1:2] == [SERVE_WIDTHS] else main())
