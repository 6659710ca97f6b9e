"""Forced along texts of the PyTorch reference, the engine drafts what the reference drafts, and as well.

Step j of a text has read ``ids[: n_prompt + j]`` and drafts after ``ids[n_prompt + j]``;
`scripts/demo_model/acceptance.py` describes the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from _parity import DATA, Pair, f32_pair, open_session, shipped_pair

from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask

REFERENCE: dict[str, Any] = json.loads((DATA / "acceptance_reference.json").read_text(encoding="utf-8"))
TEXTS: list[dict[str, Any]] = REFERENCE["texts"]
DEPTH: int = REFERENCE["depth"]
KINDS = ("greedy", "sampled")


class Choices(NamedTuple):
    """What was chosen at the steps of one text: the trunk's token, and the chain of drafts."""

    trunk: list[int]
    chains: list[list[int]]


def force_along(pair: Pair, *, cache_type: str) -> Iterator[Choices]:
    """Let the engine draft at every step of every text."""
    session = open_session(pair, cache_type=cache_type)
    for text in TEXTS:
        ids, n_prompt = text["ids"], text["n_prompt"]
        session.clear(0)
        sampler = session.open_sampler(SamplingParams(temperature=0, seed=0), None)
        session.prefill(0, ids[:n_prompt], sampler, use_mtp=True)
        choices = Choices([], [])
        for step in range(len(text["draft_tokens"])):
            session.force(0, ids[n_prompt + step])
            choices.chains.append(session.draft(0, DEPTH)[0])
            choices.trunk.extend(session.cycle([Ask(0, 1, len(ids))])[0][0].tokens)
        yield choices
    session.close()


def match_length(drafts: Sequence[int], text: Sequence[int]) -> int:
    """Count the drafts that equal the text before the first that does not."""
    return next((i for i, (a, b) in enumerate(zip(drafts, text, strict=False)) if a != b), len(drafts))


def accepted_lengths(kind: str, chains_per_text: Sequence[Sequence[Sequence[int]]]) -> list[int]:
    """Return how many drafts of each chain hold, over the texts of one kind."""
    return [
        match_length(chain, text["ids"][text["n_prompt"] + step + 1 :])
        for text, chains in zip(TEXTS, chains_per_text, strict=True)
        if text["name"].endswith(kind)
        for step, chain in enumerate(chains)
    ]


def acceptance(lengths: Sequence[int], depth: int) -> tuple[float, int]:
    """Return the share of drafts that hold at a depth, of those whose chain held so far, and how many these are."""
    n_tried = sum(length >= depth - 1 for length in lengths)
    return sum(length >= depth for length in lengths) / n_tried, n_tried


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> list[Choices]:
    """The same weights without any rounding."""
    return list(force_along(f32_pair(tmp_path_factory.mktemp("acceptance")), cache_type="f32"))


@pytest.fixture(scope="module")
def shipped() -> list[Choices]:
    """The files as shipped, with the caches that are the default."""
    return list(force_along(shipped_pair(), cache_type="f16"))


def cut_at_ties(text: dict[str, Any], choices: Choices) -> list[list[int]]:
    """Return the trunk's token and the drafts of each step, up to where the reference's choice was a near tie.

    The reference lists where its two best logits are within 1e-3, far more than the 2e-5 that logits are off by: there
    the order of a sum may decide, and what follows in a chain hangs on it.
    """
    ties = {(step, depth) for step, depth, _ in text["near_ties"]}
    rows = []
    for step, (token, chain) in enumerate(zip(choices.trunk, choices.chains, strict=True)):
        end = next((depth for depth in range(1, DEPTH + 1) if (step, depth) in ties), DEPTH + 1)
        rows.append([-1 if (step, 0) in ties else token, *chain[: end - 1]])
    return rows


def test_near_ties_of_the_reference_are_few() -> None:
    assert sum(len(text["near_ties"]) for text in TEXTS) <= 0.005 * sum(len(text["draft_tokens"]) for text in TEXTS)


@pytest.mark.parametrize("index", range(len(TEXTS)), ids=[text["name"] for text in TEXTS])
def test_every_choice_is_the_references_token_for_token(exact: list[Choices], index: int) -> None:
    text = TEXTS[index]
    assert len(exact[index].chains) > 0
    expected = Choices(text["trunk_argmax"], text["draft_tokens"])
    assert cut_at_ties(text, exact[index]) == cut_at_ties(text, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", range(1, DEPTH + 1))
def test_shipped_files_accept_at_each_depth_as_the_reference_does(
    shipped: list[Choices], kind: str, depth: int
) -> None:
    expected, n_expected = acceptance(accepted_lengths(kind, [text["draft_tokens"] for text in TEXTS]), depth)
    found, _ = acceptance(accepted_lengths(kind, [choices.chains for choices in shipped]), depth)
    assert abs(found - expected) < 3 * math.sqrt(expected * (1 - expected) / n_expected)
