"""Shared by the scripts that compare drafts at temperatures above 0: texts, settings, options, intervals."""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ROOT / "tests" / "data" / "acceptance_reference.json"
TEMPERATURE = 1.0
TOP_K, TOP_P = 20, 0.95  # as the model card of Qwen3 models recommends
FILTERS = {"top_k": TOP_K, "top_p": TOP_P, "min_p": 0.0}
N_CTX = 1024


def beginnings() -> dict[str, list[list[int]]]:
    """Return the ids of held-out beginnings, by kind of text."""
    prompts: dict[str, list[list[int]]] = {}
    for text in json.loads(TEXTS.read_text(encoding="utf-8"))["texts"]:
        if text["name"].endswith("greedy"):  # the others begin alike
            prompts.setdefault(text["name"].partition("-")[0], []).append(text["ids"][: text["n_prompt"]])
    return prompts


def command_line(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option that all scripts have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    return parser


def add_length_options(parser: argparse.ArgumentParser, repeats: str, n_repeats: int, n_tokens: int, what: str) -> None:
    """Add how many texts are made, and how long they are."""
    parser.add_argument(repeats, type=int, default=n_repeats, help=f"{what} (default: {n_repeats})")
    parser.add_argument("--tokens", type=int, default=n_tokens, help=f"tokens of each text (default: {n_tokens})")


def write_figures(path: str | None, figures: Any) -> None:
    """Write figures as JSON, if a file was named."""
    if path:
        Path(path).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return a bootstrap interval of 95 % for the median."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]
