"""The workloads of `lucebox ab` on the built-in model's tokenizer."""

from __future__ import annotations

import pytest

from pylucebox import Engine
from pylucebox.ab import workloads
from pylucebox.ab.records import Suite
from pylucebox.ab.workloads._catalog import RECIPES
from pylucebox.ab.workloads._desk import fingerprint
from pylucebox.ab.workloads._pins import prompt_hashes


@pytest.fixture(scope="module")
def full() -> Suite:
    with Engine.demo(mtp="off", n_ctx=256) as engine:
        pinned = workloads.pins()["built-in"]
        assert fingerprint(engine.tokenize) == pinned["tokenizer"]
        assert engine.info.n_ctx_train == pinned["n_ctx"]
        names = [name for name, recipe in RECIPES.items() if not recipe.needs_chat]
        return workloads.build_suite("full", only=names, tokenize=engine.tokenize, n_ctx=engine.info.n_ctx_train)


def test_every_prompt_is_the_pinned_one(full: Suite) -> None:
    pinned = workloads.pins()["built-in"]["prompts"]
    assert {each.name: prompt_hashes(each) for each in full.workloads} == pinned


def test_prompts_are_counted_with_the_models_tokenizer(full: Suite) -> None:
    with Engine.demo(mtp="off", n_ctx=256) as engine:
        for each in full.workloads[:4]:
            assert each.requests[0].n_prompt == len(engine.tokenize(each.requests[0].prompt, add_special=True))


def test_last_tokens_of_a_context_can_be_had(full: Suite) -> None:
    edge = next(each for each in full.workloads if each.name == "edges-context")
    request = edge.requests[0]
    with Engine.demo(n_ctx=edge.n_ctx) as engine:
        assert engine.session_info.n_ctx == edge.n_ctx
        done = engine.generate(request.prompt, max_tokens=request.max_tokens)
    assert done.finish_reason == "length"
    assert len(done.token_ids) == request.max_tokens
