#!/usr/bin/env python
"""How often drafts agree with the trunk's draws, by text and temperature: likeliest token, shared noise, and the limit.

    python scripts/coupled_drafts.py                  # a table; about three minutes on one core
    python scripts/coupled_drafts.py --write docs     # also docs/coupled-drafts.svg and docs/coupled-drafts.json

Texts are sampled without drafts with ``sampler_rng="gumbel"``, from held-out beginnings, with top-k 20 and top-p 0.95. At
each position both kinds of drafts are made seven deep and forgotten. All figures are counts, so a busy machine does not
matter. The limit is 1 - TV, total variation between the filtered distributions of trunk and block: no draft that is made
without knowing the draw can agree more often.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pylucebox._build import DEMO_MODEL
from pylucebox._open import EngineOptions, open_engine
from pylucebox._native_session import NativeSession
from pylucebox._sampling import SamplingParams
from pylucebox._session import FINISH_NONE, Ask
from pylucebox._stats import MAX_DRAFT

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ROOT / "tests" / "data" / "acceptance_reference.json"
TEMPERATURES = (1.0,)
TOP_K, TOP_P = 20, 0.95  # as the model card of Qwen3 models recommends
N_CTX = 1024

Logits = "np.ndarray[Any, np.dtype[np.float32]]"
Chances = dict[int, float]


@dataclass
class Position:
    """What one position of a text gave.

    Attributes
    ----------
    likeliest, coupled
        How many drafts of a chain of seven held.
    limit
        Overlap of the filtered distributions of the first draft, 1 - TV.
    lead
        Of the winning draft over the second, logits with noise; the coupled drafts' own probability of each depth.
    """

    likeliest: int
    coupled: int
    limit: float
    probs: tuple[float, ...]
    plain_probs: tuple[float, ...]


def chances(logits: Any, temperature: float) -> Chances:
    """Return the distribution that the samplers leave of logits, by token."""
    kept = np.argsort(-logits, kind="stable")[:TOP_K]
    weights = np.exp(logits[kept].astype(np.float64) - float(logits[kept[0]]))
    reached = np.cumsum(weights) / weights.sum()
    kept = kept[: int(np.searchsorted(reached, TOP_P)) + 1]
    scaled = np.exp((logits[kept].astype(np.float64) - float(logits[kept[0]])) / temperature)
    return dict(zip(kept.tolist(), (scaled / scaled.sum()).tolist(), strict=True))


def overlap(ours: Chances, theirs: Chances) -> float:
    """Return 1 - TV of two distributions."""
    return sum(min(chance, theirs.get(token, 0.0)) for token, chance in ours.items())


def held(chain: Sequence[int], text: Sequence[int]) -> int:
    """Count the drafts that equal the text before the first that does not."""
    for n, (draft, token) in enumerate(zip(chain, text, strict=False)):
        if draft != token:
            return n
    return min(len(chain), len(text))


class Walk:
    """A session that samples a text token by token and drafts at each place."""

    def __init__(self, session: NativeSession) -> None:
        self._session = session

    def run(self, prompt: Sequence[int], sampling: SamplingParams, n_tokens: int) -> Iterator[tuple[int, Any, Any]]:
        """Yield each token, the session being at the place before it is in the context."""
        session = self._session
        session.clear(0)
        token, finish = session.prefill(0, prompt, session.open_sampler(sampling, None), use_mtp=True)
        for n_left in range(n_tokens, 0, -1):
            chain, probs = session.draft(0, MAX_DRAFT)
            yield token, chain, probs
            if finish != FINISH_NONE:
                return
            (result,), _ = session.cycle([Ask(0, 1, n_left + 1)])
            token, finish = result.tokens[0], result.finish


def walk(coupled: NativeSession, plain: NativeSession, prompt: Sequence[int], sampling: SamplingParams, n: int) -> list[Position]:
    """Sample a text twice, with both kinds of drafts, and compare."""
    tokens, chains, probs, limits = [], [], [], []
    drafted = None
    for token, chain, chance in Walk(coupled).run(prompt, sampling, n):
        if drafted is not None:  # the row that this token was drawn from, and the draft made for it
            limits.append(overlap(chances(coupled.logits(0, 0), sampling.temperature), drafted))
        drafted = chances(coupled.draft_logits(0), sampling.temperature)
        tokens.append(token)
        chains.append(chain)
        probs.append(chance)
    others, plain_chains, plain_probs = zip(*Walk(plain).run(prompt, sampling, n), strict=True)
    if list(others) != tokens:
        raise SystemExit("the kind of drafts changed the text")
    return [
        Position(held(plain_chains[i], tokens[i + 1 :]), held(chains[i], tokens[i + 1 :]), limits[i],
                 tuple(probs[i]), tuple(plain_probs[i]))
        for i in range(len(limits) - MAX_DRAFT)
    ]


def by_depth(lengths: Sequence[int]) -> list[float | None]:
    """Return for each depth the share of drafts that held, of those whose predecessors did."""
    out: list[float | None] = []
    for depth in range(1, MAX_DRAFT + 1):
        n_tried = sum(length >= depth - 1 for length in lengths)
        out.append(round(sum(length >= depth for length in lengths) / n_tried, 4) if n_tried else None)
    return out


def summary(kind: str, temperature: float, found: Sequence[Position]) -> dict[str, Any]:
    """Return what a cell of the table says."""
    return {
        "text": kind,
        "temperature": temperature,
        "n": len(found),
        "likeliest": by_depth([position.likeliest for position in found]),
        "coupled": by_depth([position.coupled for position in found]),
        "limit": round(float(np.mean([position.limit for position in found])), 4),
        "tokens_likeliest": round(1 + float(np.mean([position.likeliest for position in found])), 3),
        "tokens_coupled": round(1 + float(np.mean([position.coupled for position in found])), 3),
    }


def measure(n_seeds: int, n_tokens: int) -> tuple[list[dict[str, Any]], dict[str, list[Position]]]:
    """Measure every text at every temperature."""
    options = EngineOptions(model=DEMO_MODEL, n_ctx=N_CTX, spec="require", n_threads=1, device="cpu")
    texts = json.loads(TEXTS.read_text(encoding="utf-8"))["texts"]
    prompts: dict[str, list[list[int]]] = {}
    for text in texts:
        if text["name"].endswith("greedy"):
            prompts.setdefault(text["name"].partition("-")[0], []).append(text["ids"][: text["n_prompt"]])
    coupled = open_engine(options, None)
    plain = open_engine(EngineOptions(**{**{k: getattr(options, k) for k in options.__slots__}, "coupled_drafts": False}), None)
    rows, raw = [], {}
    for temperature in TEMPERATURES:
        everything: list[Position] = []
        for kind, of_kind in prompts.items():
            found: list[Position] = []
            for prompt in of_kind:
                for seed in range(1, n_seeds + 1):
                    sampling = SamplingParams(
                        temperature=temperature, top_k=TOP_K, top_p=TOP_P, min_p=0.0, seed=seed, sampler_rng="gumbel", ignore_eos=True
                    )
                    found += walk(coupled.session, plain.session, prompt, sampling, n_tokens)
            rows.append(summary(kind, temperature, found))
            print(row_text(rows[-1]), flush=True)
            raw[f"{kind} {temperature}"] = found
            everything += found
        rows.append(summary("all", temperature, everything))
        print(row_text(rows[-1]), flush=True)
    return rows, raw


def row_text(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    deeper = " ".join(f"{a or 0:.2f}/{b or 0:.2f}" for a, b in zip(row["likeliest"], row["coupled"], strict=True))
    gain = row["coupled"][0] / row["limit"]
    return (
        f"{row['text']:<12} T {row['temperature']:<4} n {row['n']:<6} limit {row['limit']:.3f}  coupled/limit {gain:.3f}"
        f"  tokens {row['tokens_likeliest']:.2f} -> {row['tokens_coupled']:.2f}  by depth, likeliest/coupled: {deeper}"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="texts from each beginning (default: 4)")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of each text (default: 100)")
    parser.add_argument("--raw", metavar="FILE", help="write every position as JSON")
    args = parser.parse_args()
    rows, raw = measure(args.seeds, args.tokens)
    if args.raw:
        Path(args.raw).write_text(json.dumps({k: [asdict(p) for p in v] for k, v in raw.items()}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
