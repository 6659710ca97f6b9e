"""Listing only the candidates of top-k changes no token, with or without equal logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pylucebox as lb
from pylucebox import SamplingParams

PROMPTS = ("The colours of the rainbow are", "def add(a, b):\n    ", "1, 2, 3, 4,")

SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 7},
    {"temperature": 1.3, "seed": 8, "sampler_rng": "mt19937"},
    {"temperature": 1.0, "seed": 9, "top_k": 1},
    {"temperature": 1.0, "seed": 10, "top_k": 128, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 1.0, "seed": 11, "top_k": 2000, "min_p": 0.0},
    {"temperature": 0.9, "seed": 12, "samplers": ("top_k", "temperature"), "top_k": 100},
    {"temperature": 1.0, "seed": 13, "top_k": 60, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"temperature": 1.0, "seed": 14, "mirostat": 2},
)
"""`top_k` at one, at the most that is listed, and beyond; samplers that depend on the order they are given."""


@pytest.fixture(scope="module")
def engine() -> Iterator[lb.Engine]:
    """Open the built-in model with MTP off."""
    with lb.Engine.demo(n_threads=1, mtp="off") as opened:
        yield opened


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_tokens_are_those_of_the_whole_list(engine: lb.Engine, settings: dict[str, Any]) -> None:
    """A bias of nothing stands before top-k, so that the sampler is given the whole vocabulary."""
    for prompt in PROMPTS:
        few = engine.generate(prompt, max_tokens=48, sampling=SamplingParams(**settings))
        all_of_them = engine.generate(prompt, max_tokens=48, sampling=SamplingParams(logit_bias={5: 0.0}, **settings))
        assert few.token_ids == all_of_them.token_ids
