"""The engine computes what an independent PyTorch implementation computes on the same weights.

Measured over all prompts: logits differ by at most 2.1e-5, probabilities of drafts by at most 1.9e-5. Other readings of
the model differ by more than `BOUND`: on every prompt the norm of each residual stream by itself (2.5e-3 or more in a
chain's probabilities), on prompts that are long enough dense attention in the trunk (0.017 to 1 in the logits) or in
the MTP block (2.6e-3 to 0.11), and on most an extra entry before the first one of the MTP block (up to 0.07).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _parity import DATA, Pair, f32_pair, open_session

from pylucebox import Engine
from pylucebox._native_session import NativeSession
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask

BOUND = 3e-4
PROMPTS = Path(__file__).resolve().parents[2] / "scripts" / "demo_model" / "prompts.json"

Outputs = dict[str, "np.ndarray[Any, Any]"]


def load_reference() -> dict[str, Outputs]:
    """Return the arrays of ``reference.npz`` by prompt; `scripts/demo_model/reference.py` describes them."""
    prompts: dict[str, Outputs] = {}
    with np.load(DATA / "reference.npz") as arrays:
        for key in arrays:
            name, _, what = key.partition(".")
            prompts.setdefault(name, {})[what] = arrays[key]
    return prompts


REFERENCE = load_reference()

every_prompt = pytest.mark.parametrize("reference", REFERENCE.values(), ids=REFERENCE)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return f32_pair(tmp_path_factory.mktemp("parity"))


@pytest.fixture(scope="module")
def session(pair: Pair) -> Iterator[NativeSession]:
    """The reading of the norm that the file asks for."""
    session = open_session(pair)
    yield session
    session.close()


@pytest.fixture(scope="module")
def per_stream(pair: Pair) -> Iterator[NativeSession]:
    session = open_session(pair, hidden_norm="per-stream")
    yield session
    session.close()


def prefill(session: NativeSession, ids: list[int]) -> int:
    session.clear(0)
    return session.prefill(0, ids, session.open_sampler(SamplingParams(temperature=0, seed=0), None), use_mtp=True)[0]


def drafts(session: NativeSession, reference: Outputs) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Draft after the prompt and the first greedy token."""
    prefill(session, reference["ids"].tolist())
    session.force(0, int(reference["greedy"][0]))
    tokens, probabilities = session.draft(0, len(reference["draft_tokens_full"]))
    return tokens, np.asarray(probabilities)


def largest_difference(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    assert left.shape == right.shape
    return float(np.abs(left - right).max())


def test_two_prompts_are_longer_than_sparse_attention_sees() -> None:
    lengths = sorted(len(reference["ids"]) for reference in REFERENCE.values())
    assert lengths[-1] > 500
    assert lengths[-2] > 131  # 32 blocks of 4, and an incomplete one


def test_texts_have_the_tokens_that_the_reference_read(demo: Engine) -> None:
    prompts = json.loads(PROMPTS.read_text(encoding="utf-8"))
    texts = {name: prompts[name]["text"] for name in REFERENCE if "text" in prompts[name]}
    assert len(texts) > 3
    assert {name: demo.tokenize(text) for name, text in texts.items()} == {
        name: REFERENCE[name]["ids"].tolist() for name in texts
    }


@every_prompt
def test_trunk_logits_of_a_whole_prompt_are_the_references(session: NativeSession, reference: Outputs) -> None:
    prefill(session, reference["ids"].tolist())
    assert largest_difference(session.logits(0, 0), reference["trunk_logits"][-1]) < BOUND


@every_prompt
def test_trunk_logits_of_a_step_after_the_prompt_are_the_references(session: NativeSession, reference: Outputs) -> None:
    *ids, last = reference["ids"].tolist()
    prefill(session, ids)
    assert largest_difference(session.logits(0, 0), reference["trunk_logits"][-2]) < BOUND
    session.force(0, last)
    session.cycle([Ask(0, 1, 1)])
    assert largest_difference(session.logits(0, 0), reference["trunk_logits"][-1]) < BOUND


@every_prompt
@pytest.mark.parametrize("width", [1, 8])
def test_greedy_tokens_are_the_references(session: NativeSession, reference: Outputs, width: int) -> None:
    expected = reference["greedy"].tolist()
    tokens = [prefill(session, reference["ids"].tolist())]
    while len(tokens) < len(expected):
        tokens += session.cycle([Ask(0, width, len(expected) - len(tokens))])[0][0].tokens
    assert tokens == expected


@every_prompt
def test_chained_drafts_are_the_references(session: NativeSession, reference: Outputs) -> None:
    tokens, probabilities = drafts(session, reference)
    assert tokens == reference["draft_tokens_full"].tolist()
    assert largest_difference(probabilities, reference["draft_probability_full"]) < BOUND


@every_prompt
def test_the_other_reading_of_the_norm_is_the_references_too(per_stream: NativeSession, reference: Outputs) -> None:
    tokens, probabilities = drafts(per_stream, reference)
    assert tokens == reference["draft_tokens_per_stream"].tolist()
    assert largest_difference(probabilities, reference["draft_probability_per_stream"]) < BOUND
    assert largest_difference(probabilities, reference["draft_probability_full"]) > BOUND
