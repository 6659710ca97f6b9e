"""Drafts that share the sampler's noise: what they pick, that more of them hold, and that the text does not change.

``-m exactness_full`` runs 200 seeds at every width, setting and temperature, alone and four sequences together, in
about a quarter of an hour on one core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from _parity import shipped_pair

from pylucebox import Engine, SamplingParams
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampler import gumbel_noise
from pylucebox._session import FINISH_NONE, Ask

PROMPTS = ("def add(a, b):", "Once upon a time", "| name | age |\n|---|---|\n", "The sum of 1, 2 and 3 is")
N_SEQ = len(PROMPTS)
N_TOKENS = 24
N_TOKENS_FULL = 16  # of each text of the full matrix; 5,600 of these are decoded nine times
TEMPERATURES = (0.3, 0.7, 1.0, 1.3)
SETTINGS: dict[str, dict[str, Any]] = {
    "card": {"top_k": 20, "top_p": 0.95, "min_p": 0.0},
    "open": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "min-p": {"top_k": 0, "top_p": 1.0, "min_p": 0.1},
    "penalties": {"penalty_repeat": 1.2, "penalty_freq": 0.3, "dry_multiplier": 0.5},
    "sigma": {"top_n_sigma": 1.0, "xtc_probability": 0.3, "xtc_threshold": 0.1},
    "temperature first": {"samplers": ("temperature", "top_k", "top_p"), "top_k": 30},
    "grammar": {"grammar": 'root ::= [a-z ,.]+ "!" root | "."'},
}


@dataclass(frozen=True)
class Bench:
    """A model with sessions for one sequence and for four."""

    model: Model
    alone: NativeSession
    together: NativeSession
    plain: NativeSession  # drafts the likeliest token
    stepwise: NativeSession  # each draft has a launch of its own
    prompts: tuple[list[int], ...]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    pair = shipped_pair()
    model = Model(ModelOptions(path=pair.model, mtp_path=pair.mtp))
    alone = SessionOptions(n_ctx=256, max_width=8)
    sessions = [
        NativeSession(model, options)
        for options in (
            alone,
            replace(alone, n_seq=N_SEQ),
            replace(alone, coupled_drafts=False),
            replace(alone, draft_chain=False),
        )
    ]
    prompts = tuple(model.tokenize(text, add_special=True, parse_special=False) for text in PROMPTS)
    yield Bench(model, *sessions, prompts)
    for session in sessions:
        session.close()
    model.close()


def start(
    session: NativeSession, seq: int, prompt: Sequence[int], sampling: SamplingParams, *, mtp: bool = True
) -> int:
    session.clear(seq)
    token, finish = session.prefill(seq, prompt, session.open_sampler(sampling, None), use_mtp=mtp)
    return token if finish == FINISH_NONE else -1 - token


def decode(
    session: NativeSession, prompt: Sequence[int], sampling: SamplingParams, width: int, n_tokens: int = N_TOKENS
) -> tuple[list[int], int]:
    """Return the tokens of a request alone in a session, and how many drafts held."""
    first = start(session, 0, prompt, sampling, mtp=width > 1)
    tokens, n_held = [abs(first + (first < 0))], 0
    while first >= 0 and len(tokens) < n_tokens:
        (result,), _ = session.cycle([Ask(0, width, n_tokens - len(tokens))])
        tokens += result.tokens
        n_held += result.n_accepted
        if result.finish != FINISH_NONE:
            break
    return tokens, n_held


def decode_together(
    session: NativeSession, prompts: Sequence[Sequence[int]], samplings: Sequence[SamplingParams], n_tokens: int
) -> list[list[int]]:
    """Return the tokens of several requests, decoded together at changing widths."""
    texts, active = [], set()
    for seq, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
        first = start(session, seq, prompt, sampling)
        texts.append([abs(first + (first < 0))])
        active |= {seq} if first >= 0 else set()
    turn = 0
    while active:
        turn += 1
        asks = [Ask(seq, 1 + (seq + turn) % (8 // len(active)), n_tokens - len(texts[seq])) for seq in sorted(active)]
        for result in session.cycle(asks)[0]:
            texts[result.seq] += result.tokens
            if result.finish != FINISH_NONE or len(texts[result.seq]) >= n_tokens:
                active.discard(result.seq)
    return texts


def check_identity(bench: Bench, samplings: Sequence[SamplingParams], widths: Sequence[int], n_tokens: int) -> None:
    """Compare each prompt with its sampler alone at each width, and all together, with decoding token by token."""
    requests = list(zip(bench.prompts, samplings, strict=True))
    wanted = [decode(bench.alone, prompt, sampling, 1, n_tokens)[0] for prompt, sampling in requests]
    for width in widths:
        for (prompt, sampling), text in zip(requests, wanted, strict=True):
            assert decode(bench.alone, prompt, sampling, width, n_tokens)[0] == text, (width, sampling)
    assert decode_together(bench.together, bench.prompts, samplings, n_tokens) == wanted, samplings


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_text_is_that_without_drafts(bench: Bench, temperature: float, name: str) -> None:
    at = len(SETTINGS) * TEMPERATURES.index(temperature) + list(SETTINGS).index(name)
    widths = (2 + at % 7, 2 + (at + 3) % 7)  # each with each setting is in the full matrix
    sampling = SamplingParams(temperature=temperature, seed=2**32 - 2 - at, **SETTINGS[name])
    check_identity(bench, [sampling] * N_SEQ, widths, N_TOKENS)


@pytest.mark.exactness_full
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_text_is_that_without_drafts_for_every_seed_and_width(bench: Bench, temperature: float, name: str) -> None:
    for seed in range(100, 300, N_SEQ):
        # each seed with one of the prompts, alone at every width and in a batch with three others
        samplings = [SamplingParams(temperature=temperature, seed=seed + i, **SETTINGS[name]) for i in range(N_SEQ)]
        check_identity(bench, samplings, range(2, 9), N_TOKENS_FULL)


def test_more_drafts_hold_than_of_the_likeliest_tokens(bench: Bench) -> None:
    held = {"coupled": 0, "likeliest": 0}
    for seed in range(1, 9):
        sampling = SamplingParams(temperature=1.0, seed=seed, **SETTINGS["card"])
        for prompt in bench.prompts:
            text, n_coupled = decode(bench.alone, prompt, sampling, 8)
            same, n_plain = decode(bench.plain, prompt, sampling, 8)
            assert text == same
            held["coupled"] += n_coupled
            held["likeliest"] += n_plain
    assert held["coupled"] > 1.05 * held["likeliest"], held


def pick(logits: Any, sampling: SamplingParams, position: int) -> int:
    """Pick a draft by the rule, in double precision."""
    kept = np.argsort(-logits, kind="stable")
    scores = logits.astype(float)
    if sampling.top_k:
        kept = kept[: sampling.top_k]
    if sampling.top_p < 1:
        weights = np.exp(scores[kept] - scores[kept[0]])
        kept = kept[: int(np.searchsorted(np.cumsum(weights) / weights.sum(), sampling.top_p)) + 1]
    if sampling.min_p > 0:
        kept = kept[scores[kept] >= scores[kept[0]] + np.log(sampling.min_p)]
    noise = np.array(gumbel_noise(sampling.seed or 0, position, len(logits)))
    return int(kept[np.argmax(scores[kept] / sampling.temperature + noise[kept])])


@pytest.mark.parametrize("name", ["card", "open", "min-p"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_draft_is_the_argmax_with_the_noise_of_its_position(bench: Bench, temperature: float, name: str) -> None:
    sampling = SamplingParams(temperature=temperature, seed=17, **SETTINGS[name])
    for prompt in bench.prompts[:2]:
        start(bench.alone, 0, prompt, sampling)
        for n_before in range(6):
            logits = bench.alone.draft_logits(0)
            # after the prompt comes the token that prefill drew, and then the draft
            assert bench.alone.draft(0, 1)[0] == [pick(logits, sampling, len(prompt) + 1 + n_before)]
            bench.alone.cycle([Ask(0, 1, 100)])


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_chain_in_one_launch_is_what_single_launches_give(bench: Bench, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=23, **SETTINGS["card"])
    for prompt in bench.prompts:
        for session in (bench.alone, bench.stepwise):
            start(session, 0, prompt, sampling)
        for _ in range(4):
            chains = [session.draft(0, 7) for session in (bench.alone, bench.stepwise)]
            assert chains[0][0] == chains[1][0]
            assert chains[0][1] == pytest.approx(chains[1][1], abs=1e-5)
            for session in (bench.alone, bench.stepwise):
                session.cycle([Ask(0, 1, 100)])


def test_greedy_and_stock_requests_draft_the_likeliest_token(bench: Bench) -> None:
    for sampling in (SamplingParams(temperature=0, seed=1), SamplingParams(seed=1, sampler_rng="mt19937")):
        start(bench.alone, 0, bench.prompts[0], sampling)
        start(bench.plain, 0, bench.prompts[0], sampling)
        assert bench.alone.draft(0, 7) == bench.plain.draft(0, 7)
        logits = bench.alone.draft_logits(0)
        assert bench.alone.draft(0, 1)[0] == [int(np.argmax(logits))]


def test_a_sequence_that_is_restored_goes_on_with_the_draws_it_would_have_had(bench: Bench) -> None:
    sampling = SamplingParams(temperature=1.0, seed=29, **SETTINGS["card"])
    start(bench.alone, 0, bench.prompts[1], sampling)
    bench.alone.cycle([Ask(0, 4, 50)])
    state = bench.alone.state_save(0)

    def go_on() -> list[int]:
        tokens: list[int] = []
        while len(tokens) < 12:
            tokens += bench.alone.cycle([Ask(0, 3, 12 - len(tokens))])[0][0].tokens
        return tokens

    wanted = go_on()
    bench.alone.state_load(0, state, bench.alone.open_sampler(sampling, None))
    assert go_on() == wanted


def test_the_completion_says_which_generator_was_used() -> None:
    with Engine.demo(n_ctx=256) as engine:
        found = [
            engine.generate("def", max_tokens=4, sampling=sampling).sampler_rng
            for sampling in (
                None,
                SamplingParams(seed=1),
                SamplingParams(seed=1, sampler_rng="mt19937"),
                SamplingParams(seed=1, mirostat=2),
            )
        ]
    assert found == [None, "gumbel", "mt19937", "mt19937"]
