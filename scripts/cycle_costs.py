#!/usr/bin/env python3
"""Measure what a cycle of each width costs on the built-in model, in steps of plain decoding.

A session with MTP off and one with MTP stay open side by side and take turns, cycle by cycle, on the same text, so
that drift touches both alike. One thread. Prints one line per width, or JSON.

    python scripts/cycle_costs.py [--model FILE --mtp FILE] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import pylucebox
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask

FOLDER = Path(pylucebox.__file__).parent / "demo_model"
TEXT = "The table lists the values one to twelve: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.\n" * 4


def session(model: Model, max_width: int) -> NativeSession:
    """Open a session of one sequence with one thread and run the text in it."""
    options = SessionOptions(n_ctx=4096, max_width=max_width)
    opened = NativeSession(model, options)
    sampler = opened.open_sampler(SamplingParams(temperature=0, seed=0, ignore_eos=True), None)
    ids = model.tokenize(TEXT, add_special=False, parse_special=False)
    opened.prefill(0, ids, sampler, use_mtp=max_width > 1)
    return opened


def costs(plain: NativeSession, drafting: NativeSession, width: int, n_cycles: int) -> dict[str, float]:
    """Median cost of a cycle of one width, by part, divided by the median plain step around it."""
    steps, drafts, verifies, rests, accepted = [], [], [], [], []
    for _ in range(n_cycles):
        _, times = plain.cycle([Ask(0, 1, 8)])
        steps.append(times.verify_us)
        (result,), times = drafting.cycle([Ask(0, width, 8)])
        if not times.graph_built:
            drafts.append(times.draft_us)
            verifies.append(times.verify_us)
            rests.append(times.sample_us + times.rollback_us)
            accepted.append(len(result.tokens))
    step = statistics.median(steps)
    return {
        "width": width,
        "step_us": step,
        "draft_steps": statistics.median(drafts) / step,
        "verify_steps": statistics.median(verifies) / step,
        "rest_steps": statistics.median(rests) / step,
        "tokens_per_cycle": statistics.fmean(accepted),
    }


def main() -> None:
    """Measure all widths and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=FOLDER / "tiny-qwen4exp-Q8_0.gguf")
    parser.add_argument("--mtp", type=Path, default=FOLDER / "MTP" / "mtp-tiny-qwen4exp-Q8_0.gguf")
    parser.add_argument("--cycles", type=int, default=120, help="cycles per width (default 120)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()

    model = Model(ModelOptions(path=args.model, mtp_path=args.mtp))
    rows = [costs(session(model, 1), session(model, 8), width, args.cycles) for width in range(1, 9)]
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(
            f"width {row['width']}: draft {row['draft_steps']:5.2f}  verify {row['verify_steps']:5.2f}  "
            f"rest {row['rest_steps']:5.2f} steps  {row['tokens_per_cycle']:.2f} tokens  (step {row['step_us']:.0f} us)"
        )


if __name__ == "__main__":
    main()
