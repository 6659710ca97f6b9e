#!/usr/bin/env python3
"""Measure what the MTP block costs a prompt: written in the trunk's graph, or in passes of its own, as upstream has it.

Two sessions stay open on one model and take turns on the same prompt: one whose trunk writes K and V of the block, with
MTP on and, for the same prompt, off (twice, which says what noise is), and one whose block reads the prompt itself.
Each round takes them in another order. Printed is the speed of MTP off that is left, medians over the rounds with 95 %
bootstrap intervals.

    python scripts/prefill_costs.py [--prompts 512,2048] [--rounds 15] [--json FILE]
    python scripts/prefill_costs.py --real-widths [--layers 4] [--experts 32] [--type q4_K] [--prompts 256] [--rounds 9]

``--real-widths`` writes a random model with the widths of Qwen3.8-Flash-Next but few layers and, for want of memory,
few experts, of which as many are used (``real_widths.py``): 4 GiB, about four minutes. The fewer the layers,
the larger is the block's share, and no program can change that: docs/prefill.md counts what is computed. At best 0.79
of the speed is left in four layers, and 0.98 in all 48; with passes of the block's own 0.67 and 0.96.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from real_widths import write_model

import pylucebox
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox.cli._table import Table, print_table

FOLDER = Path(pylucebox.__file__).parent / "demo_model"
TEXT = "The table lists the values one to twelve: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.\n"
OFF, AGAIN, IN_TRUNK, OWN_PASS = ARMS = ("MTP off", "MTP off again", "in the trunk's graph", "own passes")
N_BOOTSTRAP = 2000
GREEDY = SamplingParams(temperature=0, seed=0, ignore_eos=True)


@contextlib.contextmanager
def open_model(args: argparse.Namespace) -> Iterator[Model]:
    """Open the model asked for; one of real widths is written first."""
    if not args.real_widths:
        yield Model(ModelOptions(path=args.model, mtp_path=args.mtp))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        print("writing the model ...", file=sys.stderr)
        path = write_model(Path(folder) / "m.gguf", weight_type=args.type, n_expert=args.experts, n_layer=args.layers)
        model = Model(ModelOptions(path=path, mtp_in_file=True))
        yield model
        model.close()


@dataclass(frozen=True)
class Row:
    """One way at one prompt length: its median time, and the speed of MTP off that is left, with its interval."""

    n_prompt: int
    arm: str
    ms: float
    speed: float
    low: float
    high: float


def prefill_s(session: NativeSession, ids: Sequence[int], *, use_mtp: bool) -> float:
    """Return the seconds that a prompt takes."""
    session.clear(0)
    sampler = session.open_sampler(GREEDY, None)
    start = time.perf_counter()
    session.prefill(0, ids, sampler, use_mtp=use_mtp)
    return time.perf_counter() - start


def measure(model: Model, args: argparse.Namespace, n_prompt: int) -> list[Row]:
    """Let the arms take turns on prompts of one length."""
    ids = model.tokenize(TEXT * (1 + n_prompt // 20), add_special=False, parse_special=False)[:n_prompt]
    sessions = [
        NativeSession(
            model,
            SessionOptions(
                n_ctx=n_prompt + 16,
                n_ubatch=args.ubatch,
                n_threads=args.threads,
                n_threads_batch=args.threads,
                max_width=8,
                mtp_kv_in_trunk=on,
            ),
        )
        for on in (True, False)
    ]
    if not sessions[0].info.mtp_kv_in_trunk:
        raise SystemExit(f"the trunk's graph cannot write for the block: {sessions[0].own_pass_reason}")
    ways = {OFF: (0, False), AGAIN: (0, False), IN_TRUNK: (0, True), OWN_PASS: (1, True)}
    order = random.Random(0)
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for n_round in range(-1, args.rounds):
        for arm in order.sample(ARMS, len(ARMS)):
            which, use_mtp = ways[arm]
            took = prefill_s(sessions[which], ids, use_mtp=use_mtp)
            if n_round >= 0:  # the first round warms up
                times[arm].append(took)
    for session in sessions:
        session.close()
    return [row_of(n_prompt, arm, times[OFF], times[arm]) for arm in ARMS]


def row_of(n_prompt: int, arm: str, off: Sequence[float], took: Sequence[float]) -> Row:
    """Compare an arm with MTP off, round by round."""
    speeds = np.asarray(off) / np.asarray(took)
    picks = np.random.default_rng(0).integers(0, len(speeds), (N_BOOTSTRAP, len(speeds)))
    low, high = np.quantile(np.median(speeds[picks], axis=1), (0.025, 0.975))
    return Row(n_prompt, arm, 1e3 * statistics.median(took), float(np.median(speeds)), float(low), float(high))


def table_of(rows: Sequence[Row]) -> Table:
    """Return one line per prompt length and way."""
    return Table(
        title="Prefill speed, MTP off = 1 (medians, 95 % intervals)",
        columns=("prompt", "K and V of the block", "ms", "speed"),
        rows=tuple(
            (str(row.n_prompt), row.arm, f"{row.ms:.1f}", f"{row.speed:.3f} ({row.low:.3f} to {row.high:.3f})")
            for row in rows
        ),
    )


def main() -> None:
    """Measure all prompt lengths and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=FOLDER / "tiny-qwen4exp-Q8_0.gguf")
    parser.add_argument("--mtp", type=Path, default=FOLDER / "MTP" / "mtp-tiny-qwen4exp-Q8_0.gguf")
    parser.add_argument("--real-widths", action="store_true", help="write and measure a random model instead")
    parser.add_argument("--layers", type=int, default=4, help="layers of that model (default 4; the real has 48)")
    parser.add_argument("--experts", type=int, default=32, help="experts of that model (default 32; the real has 512)")
    parser.add_argument("--type", default="q4_K", help="weight type of that model (default q4_K)")
    parser.add_argument("--folder", type=Path, help="where that model is written (default: the temporary folder)")
    parser.add_argument("--prompts", help="tokens, comma-separated (default 512,2048; 256 with --real-widths)")
    parser.add_argument("--ubatch", type=int, default=512, help="prompt tokens computed at once (default 512)")
    parser.add_argument("--threads", type=int, default=1, help="threads (default 1)")
    parser.add_argument("--rounds", type=int, help="turns of every way (default 15; 9 with --real-widths)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    args = parser.parse_args()
    args.prompts = args.prompts or ("256" if args.real_widths else "512,2048")
    args.rounds = args.rounds or (9 if args.real_widths else 15)

    rows: list[Row] = []
    with open_model(args) as model:
        for n_prompt in map(int, args.prompts.split(",")):
            rows += measure(model, args, n_prompt)
    print_table(table_of(rows))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
