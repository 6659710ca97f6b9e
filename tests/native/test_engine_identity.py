"""The promise: drafts change the speed, never the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from _models import MODELS, OpenEngine

from pylucebox import Engine, SamplingParams, SpecReason

PROMPTS = ("def add(a, b):", "The sum of 1, 2 and 3 is", "a b a b a b a")
N_TOKENS = 48
SETTINGS = {
    "greedy": None,
    "sampled": SamplingParams(temperature=0.8, seed=11),
    "penalised": SamplingParams(
        temperature=0.8, seed=12, penalty_repeat=1.2, penalty_freq=0.3, penalty_present=0.2, dry_multiplier=0.5
    ),
    "mirostat": SamplingParams(temperature=0.8, seed=13, mirostat=2),
}


class Pair(NamedTuple):
    name: str
    with_mtp: Engine
    off: Engine


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, open_model: OpenEngine) -> Iterator[Pair]:
    with open_model(request.param, n_ctx=512) as with_mtp, open_model(request.param, n_ctx=512, mtp="off") as off:
        assert with_mtp.spec.effective
        assert not off.spec.effective
        yield Pair(request.param, with_mtp, off)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("width", [*range(2, 9), 0])
def test_tokens_are_those_of_mtp_off(pair: Pair, width: int, settings: str) -> None:
    for prompt in PROMPTS:
        wanted = pair.off.generate(prompt, max_tokens=N_TOKENS, sampling=SETTINGS[settings])
        got = pair.with_mtp.generate(prompt, max_tokens=N_TOKENS, sampling=SETTINGS[settings], verify_width=width)
        assert got.token_ids == wanted.token_ids
        assert (got.text, got.finish_reason, got.digest) == (wanted.text, wanted.finish_reason, wanted.digest)
        assert wanted.stats.num_drafts == 0
        if width > 1:
            assert got.stats.num_drafts > 0


def test_engine_opened_without_drafts_equals_one_opened_with_them(pair: Pair) -> None:
    for prompt in PROMPTS:
        wanted = pair.off.generate(prompt, max_tokens=N_TOKENS)
        got = pair.with_mtp.generate(prompt, max_tokens=N_TOKENS, verify_width=1)
        assert got.token_ids == wanted.token_ids
        assert got.stats.num_drafts == 0
        assert got.spec.reason_code is SpecReason.OFF_REQUESTED


def test_models_cover_drafts_that_hold_and_drafts_that_do_not(open_model: OpenEngine) -> None:
    rates = {}
    for name in ("agree, in-file", "mixed, in-file", "random, in-file"):
        with open_model(name, n_ctx=512, verify_width=4) as engine:
            engine.generate(PROMPTS[0], max_tokens=200)
            rates[name] = engine.stats.acceptance_rate or 0.0
    assert rates["agree, in-file"] > 0.8
    assert 0.1 < rates["mixed, in-file"] < 0.9
    assert rates["random, in-file"] < 0.2


@pytest.mark.parametrize("width", [2, 3, 8])
def test_logprobs_are_those_of_mtp_off(pair: Pair, width: int) -> None:
    wanted = pair.off.generate(PROMPTS[0], max_tokens=24, logprobs=3)
    got = pair.with_mtp.generate(PROMPTS[0], max_tokens=24, logprobs=3, verify_width=width)
    assert got.logprobs == wanted.logprobs
    assert wanted.logprobs is not None
    assert all(entry.logprob == entry.top[0].logprob for entry in wanted.logprobs)  # greedy


def test_sampling_depends_on_the_seed_alone(demo: Engine) -> None:
    def text(seed: int) -> str:
        return demo.generate(PROMPTS[0], max_tokens=32, sampling=SamplingParams(temperature=1.5, seed=seed)).digest

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


def test_drawn_seed_repeats_the_generation(demo: Engine) -> None:
    first = demo.generate(PROMPTS[0], max_tokens=32, sampling=SamplingParams())
    again = demo.generate(PROMPTS[0], max_tokens=32, sampling=SamplingParams(seed=first.seed))
    assert first.seed is not None
    assert again.token_ids == first.token_ids


def test_long_prompts_agree_across_prefill_parts(open_model: OpenEngine) -> None:
    prompt = "x = [1, 2, 3]\n" * 60
    texts = set()
    for options in ({"mtp": "off"}, {"verify_width": 4}, {"verify_width": 8}):
        with open_model("built-in", n_ctx=2048, n_ubatch=64, **options) as engine:
            texts.add(engine.generate(prompt, max_tokens=32).digest)
    assert len(texts) == 1
