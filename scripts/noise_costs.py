#!/usr/bin/env python
"""What noise by position costs: a draw against the stock sampler's, and a chain of drafts against one without noise.

    python scripts/noise_costs.py

Both are timed in pairs, in turn, on one thread; a line has the median ratio and a bootstrap interval of 95 %. The
targets are 1.02 for a draw and 1.03 for a chain. Run it on a machine that is idle.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

sys.path.insert(0, str(Path(__file__).resolve().parent))

from coupled_speed import FILTERS, TEMPERATURE, interval

from pylucebox import SamplingParams
from pylucebox._build import DEMO_MODEL
from pylucebox._open import EngineOptions, open_engine
from pylucebox._sampler import NativeSampler
from pylucebox._session import MoreDrafts
from pylucebox._stats import MAX_DRAFT

SETTINGS = {
    "card": FILTERS,
    "defaults": {},
    "all tokens": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
}


def compare(first: Callable[[], int], second: Callable[[], int], n_pairs: int) -> str:
    """Time two things in turn, each in ns, and say how the first compares."""
    ratios, times = [], []
    for pair in range(n_pairs):
        if pair % 2:
            other = second()
            ours = first()
        else:
            ours = first()
            other = second()
        ratios.append(ours / other)
        times.append(ours)
    low, high = interval(ratios)
    return f"{statistics.median(ratios):.4f} ({low:.4f} to {high:.4f}), {statistics.median(times) / 1000:.2f} us"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200, help="pairs of each comparison (default: 200)")
    parser.add_argument("--draws", type=int, default=200, help="draws timed at once (default: 200)")
    args = parser.parse_args()
    options = EngineOptions(model=DEMO_MODEL, n_ctx=512, spec="require", n_threads=1, device="cpu")
    opened = open_engine(options, None)
    session = opened.session
    prompt = opened.model.tokenize("def add(a, b):", add_special=True, parse_special=False)
    sampling = SamplingParams(temperature=TEMPERATURE, seed=1, **FILTERS)
    session.prefill(0, prompt, session.open_sampler(sampling, None), use_mtp=True)
    logits = session.logits(0, 0)

    def draw(rng: str, settings: dict[str, float]) -> Callable[[], int]:
        sampler = NativeSampler(
            opened.model,
            SamplingParams(temperature=TEMPERATURE, seed=1, sampler_rng=rng, **settings),  # type: ignore[arg-type]
        )

        def run() -> int:
            began = perf_counter_ns()
            sampler.draw(logits, args.draws)
            return (perf_counter_ns() - began) // args.draws

        return run

    for name, settings in SETTINGS.items():
        found = compare(draw("gumbel", dict(settings)), draw("mt19937", dict(settings)), args.pairs)
        print(f"draw, {name}: gumbel against mt19937 {found} a draw of {opened.model.info.n_vocab} logits")

    def chain(rng: str, settings: dict[str, float]) -> Callable[[], int]:
        kind = SamplingParams(temperature=TEMPERATURE, seed=1, sampler_rng=rng, **settings)  # type: ignore[arg-type]

        def run() -> int:
            session.clear(0)
            session.prefill(0, prompt, session.open_sampler(kind, None), use_mtp=True)
            took = []
            for _ in range(5):  # the first builds a graph
                _, us = session.propose([MoreDrafts(0, MAX_DRAFT)])
                took.append(1000 * us)
                session.force(0, prompt[-1])  # drops what was proposed
            return int(statistics.median(took[1:]))

        return run

    for name, settings in SETTINGS.items():
        found = compare(chain("gumbel", dict(settings)), chain("mt19937", dict(settings)), args.pairs)
        print(f"chain of {MAX_DRAFT}, {name}: shared noise against the likeliest tokens {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
