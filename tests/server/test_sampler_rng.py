"""Requests choose where random numbers come from; with noise by position a reply is the same however it is made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from _server import Serve, StartServe

from pylucebox import Engine, SamplingParams

CONTEXT = ("--ctx-size", 2048, "--parallel", 4)
CARD = {"top_k": 20, "top_p": 0.95, "min_p": 0.0}
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


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("width", [0, 8, 3])
def test_slots_that_draft_together_reply_as_without_drafts(
    plain: Serve, drafting: Serve, temperature: float, width: int
) -> None:
    """At the width that the server chooses, and at a fixed one; each slot draws with a seed of its own."""
    asked = [(PROMPT, 11), (MORE, 12), ("| name | age |", 13), ("The sum of 1 and 2 is", 14)]
    wanted = [ask(plain, prompt, temperature=temperature, seed=seed) for prompt, seed in asked]
    body = {"temperature": temperature, **({"verify_width": width} if width else {})}
    with ThreadPoolExecutor(len(asked)) as pool:
        got = list(pool.map(lambda request: ask(drafting, request[0], seed=request[1], **body), asked))
    assert got == wanted


def run_wide(server: Serve, prompt: str, seed: int, **body: Any) -> tuple[list[int], list[int]]:
    """Return the tokens of a reply in passes of eight rows, and how many drafts held by depth."""
    reply = server.complete(
        prompt, temperature=1.0, seed=seed, n_predict=64, ignore_eos=True, verify_width=8, **CARD, **body
    )
    return reply["tokens"], reply["timings"]["draft_n_accepted_per_pos"]


def differ_by_the_last_pass(first: Sequence[int], second: Sequence[int]) -> bool:
    """A server lets the last pass draft less, and counts what it did not need."""
    return all(abs(ours - theirs) <= 1 for ours, theirs in zip(first, second, strict=True))


def test_drafts_are_those_of_an_engine_and_hold_more_often_than_likeliest_tokens(drafting: Serve) -> None:
    n_held, n_same = {"shared noise": 0, "likeliest": 0}, 0
    engine = {"n_ctx": 512, "verify_width": 8, "n_threads": 1, "device": "cpu"}
    with Engine.demo(**engine) as coupled, Engine.demo(**engine, coupled_drafts=False) as likeliest:
        for prompt in (PROMPT, MORE, "| name | age |"):
            for seed in (1, 2, 3, 4):
                sampling = SamplingParams(temperature=1.0, seed=seed, ignore_eos=True, **CARD)
                tokens, by_depth = run_wide(drafting, prompt, seed)
                ours = coupled.generate(prompt, max_tokens=64, sampling=sampling)
                if tokens != list(ours.token_ids):
                    continue  # a server computes a prompt in other pieces, so a draw may fall otherwise
                n_same += 1
                assert differ_by_the_last_pass(by_depth, ours.stats.num_accepted_tokens_per_pos)
                n_held["shared noise"] += sum(by_depth)
                theirs = likeliest.generate(prompt, max_tokens=64, sampling=sampling).stats
                n_held["likeliest"] += theirs.num_accepted_tokens
    assert n_same >= 8
    assert n_held["shared noise"] > 1.05 * n_held["likeliest"], n_held


def test_a_slot_that_goes_on_with_a_cached_beginning_foresees_its_draws(drafting: Serve) -> None:
    beginning = MORE * 3
    tokens, fresh = run_wide(drafting, beginning, 3)
    ask(drafting, beginning[:-20], cache_prompt=True)
    same, cached = run_wide(drafting, beginning, 3, cache_prompt=True)
    assert same == tokens
    assert abs(sum(cached) - sum(fresh)) <= 3  # the block's text may begin later


def test_requests_of_other_generators_draft_the_likeliest_token(drafting: Serve) -> None:
    with Engine.demo(n_ctx=512, verify_width=8, n_threads=1, device="cpu", coupled_drafts=False) as engine:
        sampling = SamplingParams(temperature=1.0, seed=4, ignore_eos=True, sampler_rng="mt19937", **CARD)
        ours = engine.generate(PROMPT, max_tokens=64, sampling=sampling)
    tokens, by_depth = run_wide(drafting, PROMPT, 4, sampler_rng="mt19937")
    assert tokens == list(ours.token_ids)
    assert differ_by_the_last_pass(by_depth, ours.stats.num_accepted_tokens_per_pos)


@pytest.mark.exactness_full
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_text_is_that_without_drafts_for_every_seed_and_width(
    plain: Serve, drafting: Serve, temperature: float
) -> None:
    for seed in range(200):
        wanted = ask(plain, temperature=temperature, seed=seed)
        for width in range(2, 9):
            assert ask(drafting, temperature=temperature, seed=seed, verify_width=width) == wanted
