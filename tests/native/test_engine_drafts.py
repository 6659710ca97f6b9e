"""Policies that plan drafts and look at them, on real models: what they do never shows in the text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from _models import OpenEngine

from pylucebox import SamplingParams, SpecReason
from pylucebox.width import CycleContext, CycleObservation, CyclePlan

PROMPTS = ("def add(a, b):", "The sum of 1, 2 and 3 is", "a b a b a b a")
N_TOKENS = 64


class Arbitrary:
    """Plans and decides at random, and checks what it is told."""

    def __init__(self, against: str | None = None) -> None:
        self.rng = random.Random(0)
        self.against = against
        self.n_shadows = self.n_shown = 0
        self.widest: dict[int, int] = {}

    def begin(self, n_seq: int, max_width: int) -> None:
        """Nothing to prepare."""

    def choose(self, seq: int, context: CycleContext) -> int:  # noqa: ARG002 - not to be called
        raise AssertionError("a policy with plans is asked for those")

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:
        self.widest[seq] = context.max_width
        width = self.rng.randint(1, context.max_width)
        return CyclePlan(width, self.rng.randint(width - 1, 7), ask=self.rng.random() < 0.5)

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:  # noqa: ARG002
        assert all(0 < prob <= 1 for prob in probs)
        self.n_shown += 1
        return self.rng.randint(1, self.widest[seq]), self.rng.choice((0, 0, 1, 3))

    def observe(self, seq: int, observation: CycleObservation) -> None:
        assert seq == observation.seq
        assert observation.width == observation.n_verified + 1 <= observation.n_rows
        assert observation.n_accepted <= observation.n_verified <= observation.n_drafted
        assert len(observation.draft_probs) == len(observation.draft_tokens) == observation.n_drafted
        assert observation.tokens[: observation.n_accepted] == observation.draft_tokens[: observation.n_accepted]
        self.n_shadows += observation.n_drafted > observation.n_verified

    def worth_drafting(self, prompt_tokens: int, max_tokens: int) -> str | None:
        assert prompt_tokens > 0
        assert max_tokens == N_TOKENS
        return self.against

    def telemetry(self) -> Any:
        """Nothing to tell."""


@pytest.mark.parametrize("settings", [None, SamplingParams(temperature=0.8, seed=11)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", ["built-in", "mixed, in-file", "agree, in-file", "mixed, borrowing sidecar"])
def test_tokens_are_those_of_mtp_off(open_model: OpenEngine, name: str, settings: SamplingParams | None) -> None:
    policy = Arbitrary()
    with (
        open_model(name, n_ctx=512, width_policy=policy) as drafting,
        open_model(name, n_ctx=512, mtp="off") as plain,
    ):
        for prompt in PROMPTS:
            got = drafting.generate(prompt, max_tokens=N_TOKENS, sampling=settings)
            assert got.token_ids == plain.generate(prompt, max_tokens=N_TOKENS, sampling=settings).token_ids
    assert policy.n_shadows > 5
    assert policy.n_shown > 5


def test_sequences_together_have_the_tokens_they_have_alone(open_model: OpenEngine) -> None:
    policy = Arbitrary()
    with (
        open_model("mixed, in-file", n_ctx=512, n_seq=3, width_policy=policy) as drafting,
        open_model("mixed, in-file", n_ctx=512, mtp="off") as plain,
    ):
        got = drafting.generate_many(PROMPTS * 2, max_tokens=N_TOKENS)
        wanted = [plain.generate(prompt, max_tokens=N_TOKENS) for prompt in PROMPTS * 2]
    assert [one.token_ids for one in got] == [one.token_ids for one in wanted]
    assert policy.n_shadows > 5


def test_request_not_worth_it_is_spared_the_mtp_block(open_model: OpenEngine) -> None:
    with open_model("mixed, in-file", n_ctx=512, width_policy=Arbitrary(against="64 tokens are too few")) as engine:
        completion = engine.generate(PROMPTS[0], max_tokens=N_TOKENS)
        assert (completion.spec.effective, completion.spec.reason_code) == (False, SpecReason.NOT_WORTH_IT)
        assert completion.spec.reason == "64 tokens are too few"
        assert completion.stats.num_drafts == 0
        assert engine.spec.effective  # others are not concerned
