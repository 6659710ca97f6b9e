#!/usr/bin/env python
"""How often drafts agree with the trunk's draws, by text and temperature: likeliest token, shared noise, and the limit.

    python scripts/coupled_drafts.py                  # a table; about three minutes on one core
    python scripts/coupled_drafts.py --write docs     # also docs/coupled-drafts.svg and docs/coupled-drafts.json

Texts are sampled without drafts with ``sampler_rng="gumbel"``, from held-out beginnings, with top-k 20 and top-p 0.95.
At each position both kinds of drafts are made seven deep and forgotten. All figures are counts, so a busy machine does
not matter. The limit is 1 - TV, total variation between the filtered distributions of trunk and block: two draws from
these cannot agree more often, however they are made.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from held_out import N_CTX, TOP_K, TOP_P, add_length_options, beginnings, command_line, write_figures

from pylucebox._build import DEMO_MODEL
from pylucebox._native_session import NativeSession
from pylucebox._open import EngineOptions, open_engine
from pylucebox._sampling import SamplingParams
from pylucebox._session import FINISH_NONE, Ask
from pylucebox._stats import MAX_DRAFT

TEMPERATURES = (0.3, 0.7, 1.0, 1.3)

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
    coupled_probs, likeliest_probs
        What the drafts say of their chance to hold, by depth: from their lead, and the top-1 probability.
    """

    likeliest: int
    coupled: int
    limit: float
    coupled_probs: tuple[float, ...]
    likeliest_probs: tuple[float, ...]


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


def walk(
    coupled: NativeSession, plain: NativeSession, prompt: Sequence[int], sampling: SamplingParams, n: int
) -> list[Position]:
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
        Position(
            likeliest=held(plain_chains[i], tokens[i + 1 :]),
            coupled=held(chains[i], tokens[i + 1 :]),
            limit=limits[i],
            coupled_probs=tuple(probs[i]),
            likeliest_probs=tuple(plain_probs[i]),
        )
        for i in range(len(limits) - MAX_DRAFT)
    ]


def reach(lengths: Sequence[int]) -> list[float]:
    """Return for each depth the share of chains whose drafts all held so far.

    Shares of the drafts at a depth would compare different places: better drafts come to harder ones.
    """
    return [round(float(np.mean([length >= depth for length in lengths])), 4) for depth in range(1, MAX_DRAFT + 1)]


def summary(kind: str, temperature: float, found: Sequence[Position]) -> dict[str, Any]:
    """Return what a cell of the table says."""
    return {
        "text": kind,
        "temperature": temperature,
        "n": len(found),
        "likeliest": reach([position.likeliest for position in found]),
        "coupled": reach([position.coupled for position in found]),
        "limit": round(float(np.mean([position.limit for position in found])), 4),
        "tokens_likeliest": round(1 + float(np.mean([position.likeliest for position in found])), 3),
        "tokens_coupled": round(1 + float(np.mean([position.coupled for position in found])), 3),
    }


def measure(n_seeds: int, n_tokens: int) -> tuple[list[dict[str, Any]], dict[str, list[Position]]]:
    """Measure every text at every temperature."""
    options = EngineOptions(model=DEMO_MODEL, n_ctx=N_CTX, spec="require", n_threads=1, device="cpu")
    prompts = beginnings()
    coupled, plain = open_engine(options, None), open_engine(replace(options, coupled_drafts=False), None)
    rows: list[dict[str, Any]] = []
    raw: dict[str, list[Position]] = {}
    for temperature in TEMPERATURES:
        everything: list[Position] = []
        for kind, of_kind in prompts.items():
            found: list[Position] = []
            for prompt in of_kind:
                for seed in range(1, n_seeds + 1):
                    sampling = SamplingParams(
                        temperature=temperature,
                        top_k=TOP_K,
                        top_p=TOP_P,
                        min_p=0.0,
                        seed=seed,
                        sampler_rng="gumbel",
                        ignore_eos=True,
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
    deeper = " ".join(f"{a:.2f}/{b:.2f}" for a, b in zip(row["likeliest"], row["coupled"], strict=True))
    gain = row["coupled"][0] / row["limit"]
    return (
        f"{row['text']:<9} T {row['temperature']:<4} n {row['n']:<6} limit {row['limit']:.3f} coupled/limit {gain:.3f}"
        f" tokens {row['tokens_likeliest']:.2f} -> {row['tokens_coupled']:.2f}"
        f" chains that hold to depth 1..7, likeliest/coupled: {deeper}"
    )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of agreement at depth 1, and of chains over all texts."""
    kinds = list(dict.fromkeys(row["text"] for row in rows))
    lines = ["| text | " + " | ".join(f"T {t}" for t in TEMPERATURES) + " |", "|---" * (1 + len(TEMPERATURES)) + "|"]
    for kind in kinds:
        cells = [row for row in rows if row["text"] == kind]
        shown = [f"{row['likeliest'][0]:.2f} → {row['coupled'][0]:.2f} [{row['limit']:.2f}]" for row in cells]
        lines.append(f"| {kind} | " + " | ".join(shown) + " |")
    lines += ["", "| depth | " + " | ".join(f"T {t}" for t in TEMPERATURES) + " |"]
    lines.append("|---" * (1 + len(TEMPERATURES)) + "|")
    every = [row for row in rows if row["text"] == "all"]
    for depth in range(MAX_DRAFT):
        shown = [f"{row['likeliest'][depth]:.3f} → {row['coupled'][depth]:.3f}" for row in every]
        lines.append(f"| {depth + 1} | " + " | ".join(shown) + " |")
    tokens = [f"{row['tokens_likeliest']:.2f} → {row['tokens_coupled']:.2f}" for row in every]
    lines.append("| tokens of a chain of seven | " + " | ".join(tokens) + " |")
    return "\n".join(lines) + "\n"


_PANEL, _ROW, _LEFT, _TOP, _SPAN = 235, 26, 90, 96, 190
_MARKS = {"likeliest": "#c1440e", "coupled": "#0b6e4f"}


def svg(rows: Sequence[dict[str, Any]]) -> str:
    """Draw the agreement at depth 1 of both kinds of drafts, and a tick at the limit."""
    kinds = list(dict.fromkeys(row["text"] for row in rows))
    width, height = _LEFT + _PANEL * len(TEMPERATURES), _TOP + _ROW * len(kinds) + 44
    title = "Drafts that equal the trunk's draw, depth 1"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        f' font-size="12" role="img"><title>{title}</title><rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="20" y="28" font-size="17" font-weight="bold">{title}</text>',
        f'<circle cx="26" cy="48" r="5" fill="#fff" stroke="{_MARKS["likeliest"]}" stroke-width="2"/>'
        '<text x="38" y="52">likeliest token</text>'
        f'<circle cx="156" cy="48" r="5" fill="{_MARKS["coupled"]}"/><text x="168" y="52">shared noise</text>'
        '<path d="M274 41v14" stroke="#111" stroke-width="2"/><text x="284" y="52">limit, 1 - TV</text>',
    ]
    for row, kind in enumerate(kinds):
        out.append(f'<text x="20" y="{_TOP + _ROW * row + 4}">{kind}</text>')
    bottom = _TOP + _ROW * (len(kinds) - 1) + 14
    for column, temperature in enumerate(TEMPERATURES):
        left = _LEFT + _PANEL * column
        out.append(f'<text x="{left}" y="78" font-weight="bold">temperature {temperature:g}</text>')
        for share in (0.0, 0.5, 1.0):
            x = left + _SPAN * share
            out.append(
                f'<path d="M{x} {_TOP - 12}V{bottom}" stroke="#ddd"/>'
                f'<text x="{x}" y="{bottom + 16}" text-anchor="middle" fill="#555">{share:g}</text>'
            )
        for row, kind in enumerate(kinds):
            (cell,) = (each for each in rows if each["text"] == kind and each["temperature"] == temperature)
            y = _TOP + _ROW * row
            plain, shared, limit = (
                round(left + _SPAN * share, 1) for share in (cell["likeliest"][0], cell["coupled"][0], cell["limit"])
            )
            out.append(
                f'<path d="M{plain} {y}H{shared}" stroke="#999" stroke-width="2"/>'
                f'<path d="M{limit} {y - 8}v16" stroke="#111" stroke-width="2"/>'
                f'<circle cx="{plain}" cy="{y}" r="5" fill="#fff" stroke="{_MARKS["likeliest"]}" stroke-width="2"/>'
                f'<circle cx="{shared}" cy="{y}" r="4" fill="{_MARKS["coupled"]}"/>'
            )
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> int:
    """Measure, print and write."""
    parser = command_line(__doc__)
    add_length_options(parser, "--seeds", 4, 100, "texts from each beginning")
    parser.add_argument("--write", metavar="FOLDER", help="write the picture, the figures and the tables there")
    parser.add_argument("--raw", metavar="FILE", help="write every position as JSON")
    args = parser.parse_args()
    rows, raw = measure(args.seeds, args.tokens)
    print(markdown(rows))
    if args.raw:
        found = {name: [asdict(position) for position in positions] for name, positions in raw.items()}
        Path(args.raw).write_text(json.dumps(found), encoding="utf-8")
    figures = {"seeds": args.seeds, "tokens": args.tokens, "top_k": TOP_K, "top_p": TOP_P, "rows": rows}
    write_figures(args.json, figures)
    if args.write:
        folder = Path(args.write)
        (folder / "coupled-drafts.svg").write_text(svg(rows), encoding="utf-8")
        write_figures(str(folder / "coupled-drafts.json"), figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
