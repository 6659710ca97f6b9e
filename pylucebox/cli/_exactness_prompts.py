"""Prompts and sampler settings of `lucebox exactness`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pylucebox._sampling import SamplingParams
from pylucebox.cli._demo_prompts import PROMPTS as DEMO_PROMPTS


@dataclass(frozen=True)
class Setting:
    """Sampler settings with a name."""

    name: str
    sampling: SamplingParams


def _long_text() -> str:
    """Return some 2,300 tokens of text that never repeats: past 2,048, where the attention of large models is sparse.

    That is the default number of tokens that the index of qwen4exp selects (its `indexer_top_k`).
    """
    goods = ("rope", "paint", "nails", "glass", "cloth", "flour", "lamps", "books", "salt", "wool", "tea")
    places = ("harbour", "mill", "school", "station", "farm", "library", "market")
    lines = [
        f"{day}. The carrier took {3 + day * 7 % 31} crates of {goods[day % len(goods)]} to the"
        f" {places[day % len(places)]} and came back with {day * 11 % 47} empty ones."
        for day in range(1, 91)
    ]
    return "Log of the carrier, one line a day:\n" + "\n".join(lines) + "\n91. The carrier took"


LONG: Final = "long"

PROMPTS: Final = (*((prompt.name, prompt.text) for prompt in DEMO_PROMPTS), (LONG, _long_text()))
"""Names and texts, the shorter ones first."""

# Lines of words and numbers, so that any vocabulary can follow it and some tokens are forbidden at every place.
_GRAMMAR: Final = r'root ::= line+  line ::= [a-z0-9 ]{1,24} [,.;] "\n"'.replace("  ", "\n")

SETTINGS: Final = (
    Setting("greedy", SamplingParams(temperature=0.0, seed=0)),
    Setting("T 0.7, seed 1", SamplingParams(temperature=0.7, top_k=40, top_p=0.95, seed=1)),
    Setting("T 0.7, seed 2", SamplingParams(temperature=0.7, top_k=40, top_p=0.95, seed=2)),
    Setting("T 1, all tokens", SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)),
    Setting(
        "penalties",
        SamplingParams(temperature=0.7, penalty_repeat=1.1, penalty_freq=0.2, penalty_present=0.2, seed=4),
    ),
    Setting("grammar", SamplingParams(temperature=0.8, grammar=_GRAMMAR, seed=5)),
)
"""Greedy and sampled decoding, with and without state of the sampler's own."""


def plan(n_prompts: int, *, every: bool) -> list[tuple[str, str, Setting]]:
    """Return which prompts run with which settings, as name, text and setting.

    Parameters
    ----------
    n_prompts
        How many of `PROMPTS`.
    every
        Every prompt with every setting. Otherwise each prompt runs greedily and with two more settings, which take
        turns, and the long one, whose prefill takes longer than all else, with one more.
    """
    planned = []
    for number, (name, text) in enumerate(PROMPTS[:n_prompts]):
        sampled = SETTINGS[1:]
        turn = [sampled[(2 * number + more) % len(sampled)] for more in range(1 if name == LONG else 2)]
        settings = SETTINGS if every else (SETTINGS[0], *turn)
        planned += [(name, text, setting) for setting in settings]
    return planned
