"""Faults of upstream's server that the patch series mends; each of these fails on the unpatched base."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from _server import Server, StartServer

from pylucebox.testing import TinySpec, write_tiny_model

PROMPTS = ["def add(a, b):", "The sum is", "a b a b a b", '{"name": "alpha", ']
N_CTX = 256  # the least that a context is padded to
ONE_SLOT = ("--ctx-size", N_CTX, "--parallel", 1, "--ctx-checkpoints", 0)


@pytest.fixture(scope="module")
def plain(start: StartServer, demo_model: Path) -> Server:
    return start(demo_model, *ONE_SLOT)


@pytest.fixture(scope="module")
def drafting(start: StartServer, demo_model: Path, demo_mtp: Path) -> Server:
    return start(demo_model, *ONE_SLOT, "--model-draft", demo_mtp, "--spec-type", "draft-mtp", "--spec-draft-n-max", 4)


# ---- log-probabilities -------------------------------------------------------------------------------------------


def test_logprobs_of_drafted_tokens_are_those_without_drafts(plain: Server, drafting: Server) -> None:
    accepted = 0
    for prompt in PROMPTS:
        wanted = plain.complete(prompt, n_probs=3)
        got = drafting.complete(prompt, n_probs=3)
        accepted += got["timings"]["draft_n_accepted"]
        assert got["tokens"] == wanted["tokens"]
        # every number, not nearly so: a verify step gives each row the bits it has alone
        assert got["completion_probabilities"] == wanted["completion_probabilities"]
        assert len(got["completion_probabilities"]) == len(got["tokens"])
    assert accepted > len(PROMPTS)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.8, "seed": 5, "top_k": 8},
        {"temperature": 1.0, "seed": 6, "top_k": 0, "min_p": 0.02, "repeat_penalty": 1.3},
    ],
)
def test_probabilities_after_sampling_are_those_without_drafts(
    plain: Server, drafting: Server, sampling: dict[str, Any]
) -> None:
    accepted = 0
    for prompt in PROMPTS:
        wanted = plain.complete(prompt, n_probs=3, post_sampling_probs=True, **sampling)
        got = drafting.complete(prompt, n_probs=3, post_sampling_probs=True, **sampling)
        accepted += got["timings"]["draft_n_accepted"]
        assert got["tokens"] == wanted["tokens"]
        assert got["completion_probabilities"] == wanted["completion_probabilities"]
    assert accepted > 0


def test_logprobs_of_a_chat(plain: Server, drafting: Server) -> None:
    request = {"messages": [{"role": "user", "content": "hello"}], "logprobs": True, "top_logprobs": 2}
    request |= {"max_tokens": 24, "temperature": 0, "cache_prompt": False}
    wanted, got = (server.post("/v1/chat/completions", **request) for server in (plain, drafting))
    assert got["timings"]["draft_n_accepted"] > 0
    entries = got["choices"][0]["logprobs"]["content"]
    assert entries == wanted["choices"][0]["logprobs"]["content"]
    assert len({entry["logprob"] for entry in entries}) > 1


# ---- the end of the context --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_more", range(5))
def test_drafts_fill_the_context_to_its_last_token(plain: Server, drafting: Server, n_more: int) -> None:
    """The reply ends at other places of a draft for other lengths of the prompt."""
    ids = plain.post("/tokenize", content="def add(a, b):" + " x" * n_more)["tokens"]
    wanted, got = (server.complete(ids, n_predict=-1, ignore_eos=True) for server in (plain, drafting))
    assert got["timings"]["draft_n_accepted"] > 0
    assert wanted["tokens_predicted"] == N_CTX - len(ids)
    assert got["tokens"] == wanted["tokens"]
    assert got["truncated"]
    assert got["stop_type"] == "limit"


# ---- a draft model without a type --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", TinySpec(mtp="none")).model


def test_plain_draft_model_drafts_without_being_asked_to(start: StartServer, tiny: Path) -> None:
    server = start(tiny, *ONE_SLOT, "--model-draft", tiny)
    reply = server.complete("def add(a, b):")
    assert reply["timings"]["draft_n_accepted"] > 0
    assert reply["tokens"] == start(tiny, *ONE_SLOT).complete("def add(a, b):")["tokens"]


def test_mtp_file_drafts_without_being_asked_to(start: StartServer, demo_model: Path, demo_mtp: Path) -> None:
    server = start(demo_model, *ONE_SLOT, "--model-draft", demo_mtp)
    assert server.complete("def add(a, b):")["timings"]["draft_n_accepted"] > 0


def test_drafts_that_were_declined_stay_away(start: StartServer, tiny: Path) -> None:
    server = start(tiny, *ONE_SLOT, "--model-draft", tiny, "--spec-type", "none")
    assert "draft_n" not in server.complete("def add(a, b):")["timings"]


# ---- embeddings --------------------------------------------------------------------------------------------------


def embeddings(server: Server, text: str) -> list[list[float]]:
    rows: list[list[float]] = server.post("/embedding", content=text)[0]["embedding"]
    return rows


def unit(vector: list[float]) -> list[float]:
    length = math.hypot(*vector)
    return [value / length for value in vector]


@pytest.mark.parametrize("with_mtp", [False, True])
def test_embeddings_have_the_width_of_the_model(
    start: StartServer, demo_model: Path, demo_mtp: Path, with_mtp: bool
) -> None:
    drafts = ("--model-draft", demo_mtp, "--spec-type", "draft-mtp") if with_mtp else ()
    per_token = start(demo_model, *ONE_SLOT, *drafts, "--embeddings", "--pooling", "none")
    width = per_token.get("/v1/models")["data"][0]["meta"]["n_embd"]
    rows = embeddings(per_token, "def add(a, b):")
    assert len(rows) == len(per_token.post("/tokenize", content="def add(a, b):")["tokens"])
    assert {len(row) for row in rows} == {width}
    assert all(any(row) and all(map(math.isfinite, row)) for row in rows)
    assert rows == embeddings(per_token, "def add(a, b):")
    assert rows != embeddings(per_token, "The sum is so")


def test_pooled_embedding_is_the_mean_of_those_of_the_tokens(start: StartServer, demo_model: Path) -> None:
    per_token = start(demo_model, *ONE_SLOT, "--embeddings", "--pooling", "none")
    pooled = start(demo_model, *ONE_SLOT, "--embeddings", "--pooling", "mean")
    for text in PROMPTS:
        rows = embeddings(per_token, text)
        mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        assert embeddings(pooled, text) == [pytest.approx(unit(mean), abs=1e-4)]


# ---- prefixes that are used again: this one does not occur -------------------------------------------------------


@pytest.mark.parametrize("drafts", [(), ("--spec-type", "draft-mtp", "--spec-draft-n-max", 4)], ids=["plain", "mtp"])
def test_reused_prefix_gives_the_logprobs_of_a_fresh_run(
    start: StartServer, tmp_path: Path, drafts: tuple[object, ...]
) -> None:
    """A restored checkpoint is the state it was taken of, to the bit.

    It was reported that logits change after a restore. What changes is how the prompt is cut into batches, and with it
    the kernels. In batches of up to eight rows each row has the bits it has alone, and the numbers are the same.
    """
    model = write_tiny_model(tmp_path / "q8_0.gguf", TinySpec(weight_type="q8_0")).model
    server = start(model, "--ctx-size", 2 * 1024, "--parallel", 2, "--ubatch-size", 8, *drafts)
    rng = random.Random(3)
    prompt: list[int] = []
    n_restored = n_continued = 0
    reply: list[int] = []
    for turn in range(8):
        # every other time the end of the last prompt is edited, which only a checkpoint before it can serve
        edited = turn % 2 == 1
        kept = len(prompt) - 2 if edited else len(prompt)
        prompt = prompt[:kept] + ([] if edited else reply) + [rng.randrange(97, 123) for _ in range(10 * turn + 10)]
        reused = server.complete(prompt, id_slot=0, cache_prompt=True, n_predict=8, n_probs=5)
        fresh = server.complete(prompt, id_slot=1, n_predict=8, n_probs=5)
        assert fresh["timings"]["cache_n"] == 0
        assert reused["completion_probabilities"] == fresh["completion_probabilities"]
        n_cached = reused["timings"]["cache_n"]
        n_restored += edited and 0 < n_cached < kept
        n_continued += not edited and n_cached > 0
        reply = reused["tokens"]
    assert (n_restored, n_continued) == (4, 3)
