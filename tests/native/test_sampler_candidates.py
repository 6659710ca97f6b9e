"""Listing only the candidates of top-k changes no token, with or without equal logits."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import pytest
from _programs import compiler_for, run_program

import pylucebox as lb
from pylucebox import SamplingParams

LLAMA = Path(__file__).resolve().parents[2] / "vendor" / "llama.cpp"

MAX_BIASES = 64
"""With more of them the sampler is given the whole vocabulary."""

PROMPTS = ("The colours of the rainbow are", "def add(a, b):\n    ", "1, 2, 3, 4,")

SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "top_k": 0, "sampler_rng": "mt19937"},
    {"temperature": 0.0, "seed": 4, "samplers": ("top_k", "top_p")},
    {"temperature": 0.0, "seed": 6, "xtc_probability": 1.0, "xtc_threshold": 0.05},
    {"temperature": 0.0, "seed": 5, "dynatemp_range": 0.5},
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

BIASED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "top_k": 0},
    {"temperature": 0.9, "seed": 15},
    {"temperature": 1.2, "seed": 16, "sampler_rng": "mt19937", "top_k": 100, "top_p": 1.0},
)

TIED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "top_k": 0},
    {"temperature": 0.0, "top_k": 20, "sampler_rng": "mt19937"},
    {"temperature": 1.0, "seed": 17, "top_k": 20},
    {"temperature": 1.0, "seed": 18, "top_k": 20, "top_p": 1.0, "min_p": 0.0, "sampler_rng": "mt19937"},
)


@pytest.fixture(scope="module")
def engine() -> Iterator[lb.Engine]:
    """Open the built-in model with MTP off."""
    with lb.Engine.demo(n_threads=1, mtp="off") as opened:
        yield opened


def zeros(n: int, but: Container[int] = ()) -> dict[int, float]:
    """Return biases of nothing for `n` tokens, none of them in `but`."""
    return dict.fromkeys([token for token in range(n + 16) if token not in but][:n], 0.0)


def compare(engine: lb.Engine, prompt: str, **settings: Any) -> list[int]:
    """Return the tokens, which must be those of a sampler that is given the whole vocabulary."""
    biases = settings.pop("logit_bias", {})
    few, whole = (
        engine.generate(prompt, max_tokens=48, sampling=SamplingParams(logit_bias=bias, **settings)).token_ids
        for bias in (biases, {**biases, **zeros(MAX_BIASES + 1, but=biases)})
    )
    assert few == whole
    return list(few)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_tokens_are_those_of_the_whole_list(engine: lb.Engine, settings: dict[str, Any]) -> None:
    for prompt in PROMPTS:
        compare(engine, prompt, **settings)


@pytest.mark.parametrize("settings", BIASED, ids=str)
def test_a_few_biases_change_no_other_token(engine: lb.Engine, settings: dict[str, Any]) -> None:
    """The tokens that were drawn are made unlikely, and others likely, so that the biases decide."""
    for prompt in PROMPTS:
        drawn = engine.generate(prompt, max_tokens=24, sampling=SamplingParams(**settings)).token_ids
        likely = {301: 4.0, 4095: 3.0}
        biases = {**dict.fromkeys(drawn[6:12], -2.5), **likely, **dict.fromkeys(drawn[:6], -math.inf)}
        tokens = compare(engine, prompt, logit_bias=biases, **settings)
        assert not set(drawn[:6]) & set(tokens)
        compare(engine, prompt, ignore_eos=True, logit_bias=zeros(1), **settings)


@pytest.mark.parametrize("settings", TIED, ids=str)
def test_equal_logits_are_chosen_among_as_in_the_whole_list(engine: lb.Engine, settings: dict[str, Any]) -> None:
    """Beside a bias of a million a logit keeps four binary digits behind the point: of sixty many are equal."""
    biases = dict.fromkeys(range(300, 360), 1e6)
    for prompt in PROMPTS:
        tokens = compare(engine, prompt, logit_bias=biases, ignore_eos=True, **settings)
        assert set(tokens) <= set(biases)


PROGRAM = r"""
#include "lucebox-candidates.h"
#include <cstdio>
#include <random>
int main() {
    std::mt19937 random(7);
    int n_listed = 0;
    for (int round = 0; round < 4000; ++round) {
        const int n = 300 + (int) (random() % 5000), k = 1 + (int) (random() % 60);
        const bool is_coarse = round % 3 == 0; // equals everywhere
        std::vector<float> logits((size_t) n);
        for (float & logit : logits) {
            logit = (float) (random() % (is_coarse ? 40000 : 1u << 30)) * (is_coarse ? 1.0f : 1e-6f);
        }
        if (round % 50 == 0) { logits[random() % logits.size()] = round % 100 ? -INFINITY : NAN; }
        lucebox_biases biases;
        for (unsigned i = random() % 20; i > 0; --i) {
            const float values[] = { -INFINITY, 0.0f, 1e9f, -3.0f, 2000.0f, -0.25f };
            unsigned token = random() % (unsigned) n;
            for (int tries = (int) (random() % 200); tries > 0; --tries) { // mostly one near the top
                const unsigned other = random() % (unsigned) n;
                token = logits[other] > logits[token] ? other : token;
            }
            biases.add((llama_token) token, values[random() % 6]);
        }
        std::vector<llama_token_data> all, found;
        bool finite = true;
        for (int id = 0; id < n; ++id) {
            const int at = biases.find(id);
            finite = finite && logits[(size_t) id] * 0.0f == 0.0f;
            all.push_back({ id, logits[(size_t) id] + (at < 0 ? 0.0f : biases.values[at]), 0.0f });
        }
        if (!lucebox_list_candidates(logits.data(), n, k, biases, found)) { continue; }
        ++n_listed;
        std::stable_sort(all.begin(), all.end(), [](const auto & a, const auto & b) { return a.logit > b.logit; });
        if (!finite || (int) found.size() != k) { return std::printf("round %d: listed what it must not\n", round), 1; }
        for (int i = 0; i < k; ++i) {
            const auto at = (size_t) i;
            if (found[at].id != all[at].id || found[at].logit != logits[(size_t) found[at].id] ||
                all[at].logit == all[at + 1].logit) {
                return std::printf("round %d: place %d of %d is wrong\n", round, i, k), 1;
            }
        }
    }
    return n_listed > 1500 ? 0 : (std::printf("only %d were listed\n", n_listed), 1);
}
"""


def test_candidates_of_any_row_are_the_largest_and_never_among_equals(tmp_path: Path) -> None:
    compiler = compiler_for(LLAMA / "common" / "lucebox-candidates.h")
    include = [f"-I{LLAMA / folder}" for folder in ("common", "include", "ggml/include", "vendor")]
    result = run_program(compiler, tmp_path, PROGRAM, "-O1", *include)
    assert result.returncode == 0, result.stdout
