"""The numbers that the policy foresees are those that the native sampler draws."""

from __future__ import annotations

import math

import pytest

from pylucebox import Engine, SamplingParams
from pylucebox.width.hints import Draws


@pytest.mark.parametrize("seed", [1, 4_000_000_000])
def test_number_of_each_token_tells_whether_the_likeliest_is_drawn(seed: int) -> None:
    top_k = 20
    sampling = SamplingParams(temperature=1.0, seed=seed, top_k=top_k, top_p=1.0, min_p=0.0, sampler_rng="mt19937")
    with Engine.demo(mtp="off", n_ctx=256) as engine:
        done = engine.generate("The sum of 1, 2 and 3 is", max_tokens=60, sampling=sampling, logprobs=top_k)
    assert done.logprobs is not None
    draws, n_likeliest = Draws(seed, 1.0), 0
    for index, token in enumerate(done.logprobs):
        chances = sorted((math.exp(top.logprob) for top in token.top), reverse=True)
        share = chances[0] / sum(chances)
        number = 1.0 / (1.0 + math.exp(draws.luck(index)))
        if abs(number - share) < 1e-3:
            continue  # the last digits decide
        likeliest = token.logprob >= max(top.logprob for top in token.top) - 1e-6
        assert likeliest == (number < share), index
        n_likeliest += likeliest
    assert 0 < n_likeliest < len(done.logprobs)
