#!/usr/bin/env python3
"""Measure what a step of plain decoding costs at a short and at a long context.

Two sessions on one random model stay open side by side, one behind a short and one behind a long prompt, and take
turns, step by step, so that drift touches both alike. One thread. With ``--stock`` the same is done afterwards with
another build of the CPU back end in place of ours.

    python scripts/context_costs.py [--short 1024 --long 32768] [--stock PATH/libggml-cpu.so] [--json FILE]

The model's width decides what the figures mean: what grows with the context is one pass over pooled index keys in
each layer with full attention, and a wider model has more to do besides. The prompt of the long session takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from verify_costs import copy_package, ratio

from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask
from pylucebox.cli._table import Table, print_table
from pylucebox.testing import TinySpec, write_tiny_model

N_SLACK = 512

# Sparse at both lengths, so that a step attends to as many cells behind the short prompt as behind the long one.
SPEC = replace(
    TinySpec(),
    weight_type="q8_0",
    n_embd=512,
    n_layer=8,
    n_ctx_train=1 << 18,
    n_head=4,
    n_head_kv=2,
    indexer_n_head=4,
    indexer_head_dim=64,
    indexer_top_k=512,
    n_expert=16,
    n_expert_used=4,
    n_ff_exp=256,
    n_ff_shexp=256,
    ssm_dt_rank=16,
    vocab_multiple=8192,
)


def serve(model_path: Path, lengths: list[int], n_steps: int) -> None:
    """Print the times of all steps behind each prompt, as JSON."""
    model = Model(ModelOptions(path=model_path))
    greedy = SamplingParams(temperature=0, seed=0, ignore_eos=True)
    sessions = []
    for length in lengths:
        session = NativeSession(model, SessionOptions(n_ctx=length + N_SLACK, max_width=1))
        tokens = random.Random(0)
        ids = [tokens.randrange(256) for _ in range(length)]
        session.prefill(0, ids, session.open_sampler(greedy, None), use_mtp=False)
        sessions.append(session)
    times: list[list[int]] = [[] for _ in sessions]
    for _ in range(n_steps):
        for session, of_session in zip(sessions, times, strict=True):
            _, step = session.cycle([Ask(0, 1, 1 << 20)])
            of_session.append(step.verify_us)
    print(json.dumps(times))


def main() -> None:
    """Measure one build, or two, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", type=int, default=1024, help="tokens of the short prompt (default 1024)")
    parser.add_argument("--long", type=int, default=32768, help="tokens of the long prompt (default 32768)")
    parser.add_argument("--steps", type=int, default=256, help=f"steps of each, at most {N_SLACK} (default 256)")
    parser.add_argument("--stock", type=Path, help="libggml-cpu.so to measure too")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    lengths = [args.short, args.long]
    if args.serve is not None:
        serve(args.serve, lengths, args.steps)
        return
    if not 0 < args.steps <= N_SLACK:
        parser.error(f"--steps is {args.steps}; it must be 1..{N_SLACK}")

    found, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        model = write_tiny_model(root / "model.gguf", SPEC).model
        builds = {"this build": None} | ({"stock": args.stock} if args.stock else {})
        for name, library in builds.items():
            package = copy_package(root / name.replace(" ", "-"), library)
            command = [sys.executable, __file__, "--serve", str(model), f"--steps={args.steps}"]
            command += [f"--short={args.short}", f"--long={args.long}"]
            env = {
                **os.environ,
                "PYTHONPATH": str(package),
                "LD_LIBRARY_PATH": str(package / "pylucebox" / "lib"),
            }
            short, long = json.loads(subprocess.run(command, env=env, check=True, capture_output=True).stdout)
            relative = ratio(short, long)
            found.append({"build": name, "short_us": short, "long_us": long, "speed_ratio": asdict(relative)})
            rows.append((name, *(f"{sorted(times)[len(times) // 2]}" for times in (short, long)), str(relative)))
    print_table(
        Table(
            title=f"Plain decoding behind {args.short} and {args.long} tokens, one thread (medians, 95 % interval)",
            columns=("build", "short, us a step", "long, us a step", "speed, long / short"),
            rows=tuple(rows),
        )
    )
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
