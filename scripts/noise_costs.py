#!/usr/bin/env python
"""What noise by position costs: a draw against the stock sampler's, and a chain of drafts against one without noise.

    python scripts/noise_costs.py

A draw of the engine, which lists only the tokens that the samplers have to see and adds noise by position, is compared
with one of upstream, which lists all and takes a stream of random numbers; "same list" has the noise alone. All is
timed in pairs, in turn, on one thread; a line has the median ratio and a bootstrap interval of 95 %. The targets are
1.02 for a draw and 1.03 for a chain. Run it on a machine that is idle.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent))

from held_out import FILTERS, TEMPERATURE, command_line, interval, write_figures

from pylucebox import SamplingParams, _ffi
from pylucebox._build import DEMO_MODEL
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession
from pylucebox._open import EngineOptions, open_engine
from pylucebox._sampler import NativeSampler
from pylucebox._session import MoreDrafts
from pylucebox._stats import MAX_DRAFT
from pylucebox.testing import TinySpec, write_tiny_model

LARGE_VOCABULARY = 248_320  # that of Qwen3.8-Flash-Next
SETTINGS: dict[str, dict[str, float]] = {
    "card": FILTERS,
    "defaults": {},
    "all tokens": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
}
DRAWS: dict[str, dict[str, Any]] = {
    **{name: {"temperature": TEMPERATURE, **settings} for name, settings in SETTINGS.items()},
    "greedy, all tokens": {"temperature": 0.0, "top_k": 0},
    "greedy, defaults, EOS ignored": {"temperature": 0.0, "ignore_eos": True},
}


def compare(first: Callable[[], int], second: Callable[[], int], n_pairs: int) -> dict[str, Any]:
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
    return {"ratio": statistics.median(ratios), "interval": interval(ratios), "us": statistics.median(times) / 1000}


def told(figures: dict[str, Any]) -> str:
    """Return a comparison as text."""
    low, high = figures["interval"]
    return f"{figures['ratio']:.4f} ({low:.4f} to {high:.4f}), {figures['us']:.2f} us"


def compare_draws(model: Model, logits: npt.NDArray[np.float32], n_pairs: int, n_draws: int) -> dict[str, Any]:
    """Compare the engine's draws, and draws with noise by position alone, with those of upstream's sampling."""
    ffi, lib = _ffi.native()
    values, tokens = ffi.new("float[]", logits.tolist()), ffi.new("int32_t[]", n_draws)
    kept: list[Any] = []

    def drawing(rng: str, settings: dict[str, Any], whole: bool) -> Callable[[], int]:
        sampler = NativeSampler(model, SamplingParams(seed=1, sampler_rng=rng, **settings))
        pointer = sampler.release()  # what `draw` does beside the draws takes longer than they do
        kept.append(ffi.gc(pointer, lib.lucebox_sampler_close))

        def run() -> int:
            began = perf_counter_ns()
            status = lib.lucebox_sampler_draw(pointer, values, len(values), whole, n_draws, tokens)
            took = perf_counter_ns() - began
            _ffi.check(status, "cannot draw")
            return took // n_draws

        return run

    found = {}
    for name, settings in DRAWS.items():
        for what, whole in {"engine": False, "same list": True}.items():
            both = f"{name}, {what}"
            found[both] = compare(drawing("gumbel", settings, whole), drawing("mt19937", settings, True), n_pairs)
            print(f"draw, {both} against upstream: {told(found[both])} a draw of {model.info.n_vocab} logits")
    return found


def compare_chains(session: NativeSession, prompt: Sequence[int], n_pairs: int) -> dict[str, Any]:
    """Compare chains of drafts that share the noise with those of likeliest tokens."""

    def drafting(rng: str, settings: dict[str, float]) -> Callable[[], int]:
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

    found = {}
    for name, settings in SETTINGS.items():
        found[name] = compare(drafting("gumbel", settings), drafting("mt19937", settings), n_pairs)
        print(f"chain of {MAX_DRAFT}, {name}: shared noise against the likeliest tokens {told(found[name])}")
    return found


def main() -> int:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--pairs", type=int, default=200, help="pairs; half of a large vocabulary (default: 200)")
    parser.add_argument("--draws", type=int, default=200, help="draws timed at once (default: 200)")
    args = parser.parse_args()
    options = EngineOptions(model=DEMO_MODEL, n_ctx=512, spec="require", n_threads=1, device="cpu")
    opened = open_engine(options, None)
    session = opened.session
    prompt = opened.model.tokenize("def add(a, b):", add_special=True, parse_special=False)
    sampling = SamplingParams(temperature=TEMPERATURE, seed=1, **FILTERS)
    session.prefill(0, prompt, session.open_sampler(sampling, None), use_mtp=True)
    logits = session.logits(0, 0)
    figures = {f"draws from {len(logits)}": compare_draws(opened.model, logits, args.pairs, args.draws)}
    with tempfile.TemporaryDirectory() as folder:
        spec = TinySpec(vocab_multiple=LARGE_VOCABULARY, mtp="none")
        large = Model(ModelOptions(path=str(write_tiny_model(Path(folder) / "large.gguf", spec).model)))
        spread = np.random.default_rng(1).choice(logits[np.isfinite(logits)], LARGE_VOCABULARY) - np.float32(6.0)
        spread[: len(logits)] = logits  # the head of the distribution, and a tail of the same shape below
        n_draws = max(1, args.draws // 50)  # upstream's draw from all tokens takes milliseconds here
        figures[f"draws from {LARGE_VOCABULARY}"] = compare_draws(large, spread, max(1, args.pairs // 2), n_draws)
        large.close()
    figures[f"chains of {MAX_DRAFT}"] = compare_chains(session, prompt, args.pairs)
    write_figures(args.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
