"""Many prompts together give what each gives alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _models import OpenEngine

from pylucebox import Engine, SamplingError, SamplingParams

PROMPTS = ["def add(a, b):", "The sum is", "x", "a b a b a b", "one two three four five", "import os\n", "{"]
LIMIT = 24


@pytest.fixture(scope="module", params=["built-in", "mixed, in-file"])
def engines(request: pytest.FixtureRequest, open_model: OpenEngine) -> Iterator[tuple[Engine, dict[int, Engine]]]:
    """A plain engine, and engines with drafts by their number of sequences."""
    with open_model(request.param, mtp="off", n_ctx=256) as single:
        several = {n_seq: open_model(request.param, n_seq=n_seq, n_ctx=256) for n_seq in (1, 2, 3, 8)}
        yield single, several
        for engine in several.values():
            engine.close()


@pytest.mark.parametrize("n_seq", [1, 2, 3, 8])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 0])
def test_tokens_are_those_of_single_requests(engines: tuple[Engine, dict[int, Engine]], n_seq: int, width: int) -> None:
    single, several = engines
    together = several[n_seq].generate_many(PROMPTS, max_tokens=LIMIT, verify_width=width)
    alone = [single.generate(prompt, max_tokens=LIMIT) for prompt in PROMPTS]
    assert [done.token_ids for done in together] == [done.token_ids for done in alone]
    assert [done.text for done in together] == [done.text for done in alone]
    assert [done.finish_reason for done in together] == [done.finish_reason for done in alone]


def test_each_request_has_its_own_settings_and_random_stream(engines: tuple[Engine, dict[int, Engine]]) -> None:
    single, several = engines
    settings = [SamplingParams(seed=seed, temperature=0.7 + seed / 10) for seed in range(6)] + [None]
    together = several[3].generate_many(PROMPTS, max_tokens=LIMIT, sampling=settings, verify_width=3, logprobs=2)
    for prompt, params, done in zip(PROMPTS, settings, together, strict=True):
        alone = single.generate(prompt, max_tokens=LIMIT, sampling=params, logprobs=2)
        assert done.token_ids == alone.token_ids
        assert done.seed == alone.seed
        assert done.logprobs == alone.logprobs


@pytest.mark.parametrize("n_seq", [1, 3])
@pytest.mark.parametrize("width", [1, 4])
def test_grammar_without_a_way_on_ends_its_own_request_only(
    engines: tuple[Engine, dict[int, Engine]], n_seq: int, width: int
) -> None:
    """One is stuck at its first token, which prefill samples, one at its third, in a cycle with others."""
    single, several = engines
    settings = [SamplingParams(seed=seed, temperature=0.8) for seed in range(len(PROMPTS))]
    settings[1] = SamplingParams(grammar="root ::= [z-a]")
    settings[4] = SamplingParams(grammar='root ::= "a" "b" [z-a]')
    together = several[n_seq].generate_many(PROMPTS, max_tokens=LIMIT, sampling=settings, verify_width=width)
    for index, (prompt, params, done) in enumerate(zip(PROMPTS, settings, together, strict=True)):
        if index in (1, 4):
            assert (done.finish_reason, done.text) == ("error", "" if index == 1 else "ab")
            assert isinstance(done.error, SamplingError)
            with pytest.raises(SamplingError) as caught:
                several[n_seq].generate(prompt, max_tokens=LIMIT, sampling=params, verify_width=width)
            assert caught.value.seen == done.error.seen
        else:
            assert done.token_ids == single.generate(prompt, max_tokens=LIMIT, sampling=params).token_ids
            assert done.error is None


def test_same_prompt_many_times_gives_one_text(engines: tuple[Engine, dict[int, Engine]]) -> None:
    _, several = engines
    together = several[8].generate_many(["def add(a, b):"] * 12, max_tokens=LIMIT)
    assert len({done.digest for done in together}) == 1


def test_single_request_after_a_batch_is_not_touched_by_it(engines: tuple[Engine, dict[int, Engine]]) -> None:
    single, several = engines
    several[3].generate_many(PROMPTS, max_tokens=LIMIT)
    again = several[3].generate(PROMPTS[0], max_tokens=LIMIT)
    assert again.token_ids == single.generate(PROMPTS[0], max_tokens=LIMIT).token_ids


def test_no_prompts_give_no_completions(demo: Engine) -> None:
    assert demo.generate_many([]) == []
