#!/usr/bin/env python3
"""Measure what kept graphs spare a request whose width changes all the time, on the built-in model.

Two sessions, one that keeps graphs and one that keeps only the last, stay open side by side and take turns, cycle by
cycle, with the same widths on the same text, so that drift touches both alike. One thread. Prints the median verify
step and draft time of each width, and how many cycles built a graph.

    python scripts/kept_graphs_costs.py [--cycles 600] [--model FILE --mtp FILE] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from pathlib import Path

import pylucebox
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask

FOLDER = Path(pylucebox.__file__).parent / "demo_model"
TEXT = "The table lists the values one to twelve: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.\n" * 4
WIDTHS = range(1, 9)


class Side:
    """One session and what its cycles took."""

    def __init__(self, model: Model, n_kept: int) -> None:
        self.session = NativeSession(model, SessionOptions(n_ctx=4096, max_width=8, n_kept_graphs=n_kept))
        sampler = self.session.open_sampler(SamplingParams(temperature=0, seed=0, ignore_eos=True), None)
        ids = model.tokenize(TEXT, add_special=False, parse_special=False)
        self.session.prefill(0, ids, sampler, use_mtp=True)
        self.verify_us: dict[int, list[int]] = {width: [] for width in WIDTHS}
        self.draft_us: dict[int, list[int]] = {width: [] for width in WIDTHS}
        self.n_built = self.n_draft_built = 0

    def cycle(self, width: int) -> tuple[int, ...]:
        """Run a cycle and return its tokens."""
        (result,), times = self.session.cycle([Ask(0, width, 8)])
        self.verify_us[width].append(times.verify_us)
        self.draft_us[width].append(times.draft_us)
        self.n_built += times.graph_built
        self.n_draft_built += times.draft_graph_built
        return result.tokens

    def figures(self) -> dict[str, object]:
        """Return medians by width, and counts."""
        return {
            "verify_us": [statistics.median(self.verify_us[width]) for width in WIDTHS],
            "draft_us": [statistics.median(self.draft_us[width]) for width in WIDTHS],
            "cycles_that_built": self.n_built,
            "cycles_that_built_for_drafts": self.n_draft_built,
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=600, help="cycles of each session (default: 600)")
    parser.add_argument("--model", type=Path, default=FOLDER / "tiny-qwen4exp-Q8_0.gguf")
    parser.add_argument("--mtp", type=Path, default=FOLDER / "MTP" / "mtp-tiny-qwen4exp-Q8_0.gguf")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    model = Model(ModelOptions(path=args.model, mtp_path=args.mtp))
    sides = {"kept": Side(model, 16), "last only": Side(model, 0)}
    rng = random.Random(0)
    for number in range(args.cycles):
        width = rng.choice(WIDTHS)
        order = list(sides.values())
        tokens = {side.cycle(width) for side in (order if number % 2 else order[::-1])}
        if len(tokens) != 1:
            raise SystemExit(f"cycle {number} of width {width} gave different tokens: {tokens}")
    figures = {name: side.figures() for name, side in sides.items()}
    if args.json:
        print(json.dumps({"cycles": args.cycles, "n_past": sides["kept"].session.n_past(0), **figures}, indent=2))
        return
    for name, side in sides.items():
        print(f"{name}: {side.n_built} of {args.cycles} cycles built, {side.n_draft_built} for drafts")
    print("width   verify us: kept, last only     draft us: kept, last only")
    kept, last = sides["kept"], sides["last only"]
    for width in WIDTHS:
        medians = [statistics.median(side[width]) for side in (kept.verify_us, last.verify_us)]
        medians += [statistics.median(side[width]) for side in (kept.draft_us, last.draft_us)]
        print(f"{width:5d}  {medians[0]:14.0f} {medians[1]:10.0f}  {medians[2]:14.0f} {medians[3]:10.0f}")


if __name__ == "__main__":
    main()
