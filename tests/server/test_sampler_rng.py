"""Requests choose where random numbers come from; with noise by position a reply is the same however it is made."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from _server import Serve, StartServe

from pylucebox import Engine, SamplingParams

CONTEXT = ("--ctx-size", 2048, "--parallel", 4)
PROMPT = "def add(a, b):"
MORE = "Once upon a time there was a clock that"
TEMPERATURES = (0.3, 0.7, 1.0, 1.3)


@pytest.fixture(scope="module")
def plain(serve: StartServe, demo_model: Path) -> Serve:
    return serve(demo_model, *CONTEXT, "--mtp", "off")


@pytest.fixture(scope="module")
def drafting(serve: StartServe, demo_model: Path) -> Serve:
    return serve(demo_model, *CONTEXT)


def ask(server: Serve, prompt: str = PROMPT, **body: Any) -> list[int]:
    tokens: list[int] = server.complete(prompt, **{"temperature": 1.0, "seed": 5, **body})["tokens"]
    return tokens


def test_a_reply_says_which_generator_was_used(drafting: Serve) -> None:
    for body, used in (({}, "gumbel"), ({"sampler_rng": "mt19937"}, "mt19937"), ({"mirostat": 2}, "mt19937")):
        reply = drafting.complete(PROMPT, temperature=0.8, seed=1, n_predict=4, **body)
        assert reply["generation_settings"]["sampler_rng"] == reply["timings"]["sampler_rng"] == used
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    assert drafting.post("/v1/chat/completions", **chat, temperature=1)["timings"]["sampler_rng"] == "gumbel"
    assert "sampler_rng" not in drafting.post("/v1/chat/completions", **chat, temperature=0)["timings"]
    assert ask(drafting) != ask(drafting, sampler_rng="mt19937")


def test_the_generator_of_all_requests_can_be_set(serve: StartServe, demo_model: Path, drafting: Serve) -> None:
    server = serve(demo_model, *CONTEXT, "--sampler-rng", "mt19937")
    assert ask(server) == ask(drafting, sampler_rng="mt19937")


def test_an_unknown_generator_is_refused(drafting: Serve) -> None:
    status, reply = drafting.send("/completion", json.dumps({"prompt": "a", "sampler_rng": "dice"}).encode())
    assert status == 400
    assert b"sampler_rng" in reply


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_text_is_that_without_drafts_and_that_of_an_engine(
    plain: Serve, drafting: Serve, temperature: float
) -> None:
    with Engine.demo(n_ctx=512, mtp="off") as engine:
        for seed in (1, 2):
            sampling = SamplingParams(temperature=temperature, seed=seed)
            wanted = list(engine.generate(PROMPT, max_tokens=32, sampling=sampling).token_ids)
            for server, width in ((plain, 1), *((drafting, width) for width in range(2, 9))):
                got = ask(server, temperature=temperature, seed=seed, verify_width=width)
                assert got[: len(wanted)] == wanted


def test_a_cached_beginning_changes_nothing(drafting: Serve) -> None:
    wanted = ask(drafting, MORE)
    ask(drafting, MORE[:20], cache_prompt=True)
    assert ask(drafting, MORE, cache_prompt=True) == wanted
    assert ask(drafting, MORE, cache_prompt=True) == wanted


def test_requests_that_run_together_have_the_replies_they_have_alone(drafting: Serve) -> None:
    prompts = [PROMPT, MORE, PROMPT, "The sum of 1 and 2 is"]
    wanted = [ask(drafting, prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(lambda prompt: ask(drafting, prompt), prompts)) == wanted


@pytest.mark.exactness_full
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_text_is_that_without_drafts_for_every_seed_and_width(
    plain: Serve, drafting: Serve, temperature: float
) -> None:
    for seed in range(200):
        wanted = ask(plain, temperature=temperature, seed=seed)
        for width in range(2, 9):
            assert ask(drafting, temperature=temperature, seed=seed, verify_width=width) == wanted
