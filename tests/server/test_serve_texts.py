"""The API with drafts and without: the same request with the same seed has the same reply, whatever it asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from _server import Serve, StartServe

CONTEXT = ("--ctx-size", 2048, "--parallel", 4, "--jinja")
WIDTHS = (0, 5)  # the policy's, and drafts in every pass

USER = [{"role": "user", "content": "Add 2 and 3."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHAT = {"messages": USER, "max_tokens": 40}
COMPLETION = {"prompt": "def add(a, b):", "max_tokens": 40}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", COMPLETION),
    "completion-logprobs": ("/v1/completions", {**COMPLETION, "logprobs": 3}),
    "completion-stop": ("/v1/completions", {**COMPLETION, "stop": ["return", "\n\n", "b"]}),
    "completion-n": ("/v1/completions", {**COMPLETION, "n": 2}),
    "completion-penalties": ("/v1/completions", {**COMPLETION, "frequency_penalty": 0.7, "presence_penalty": 0.3}),
    "completion-bias": ("/v1/completions", {**COMPLETION, "logit_bias": {"25": -5, "30": 2}}),
    "several-prompts": ("/v1/completions", {**COMPLETION, "prompt": ["def add(a, b):", "The sum is"]}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat-logprobs": ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 3}),
    "chat-n": ("/v1/chat/completions", {**CHAT, "n": 3}),
    "chat-stop": ("/v1/chat/completions", {**CHAT, "stop": ["."]}),
    "chat-tool": (
        "/v1/chat/completions",
        {**CHAT, "tools": [TOOL], "tool_choice": "required", "max_tokens": 120},
    ),
    "chat-schema": (
        "/v1/chat/completions",
        {
            **CHAT,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": SCHEMA, "strict": True},
            },
            "max_tokens": 120,
        },
    ),
    "chat-json": ("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}}),
    "responses": ("/v1/responses", {"input": "Add 2 and 3.", "max_output_tokens": 32}),
    "messages": ("/v1/messages", {"messages": USER, "max_tokens": 32}),
    "grammar": ("/completion", {**COMPLETION, "grammar": 'root ::= [a-c]+ "!" root | "."'}),
}
SEEDS = [{"temperature": 0}, {"temperature": 0.8, "seed": 11}]
CHANGING = {
    "id",
    "created",
    "created_at",
    "completed_at",
    "timings",
    "id_slot",
    "system_fingerprint",
    "generation_settings",
    "call_id",
}


@pytest.fixture(scope="module")
def plain(serve: StartServe, demo_model: Path) -> Serve:
    return serve(demo_model, *CONTEXT, "--mtp", "off")


@pytest.fixture(scope="module")
def drafting(serve: StartServe, demo_model: Path) -> Serve:
    return serve(demo_model, *CONTEXT)


def lasting(reply: Any) -> Any:
    """Return a reply without what differs from one request to the next."""
    if isinstance(reply, dict):
        return {name: lasting(value) for name, value in reply.items() if name not in CHANGING}
    return [lasting(value) for value in reply] if isinstance(reply, list) else reply


@pytest.mark.parametrize("sampling", SEEDS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("case", CASES)
def test_reply_is_that_without_drafts(plain: Serve, drafting: Serve, case: str, sampling: dict[str, Any]) -> None:
    path, body = CASES[case]
    if case == "messages" and sampling["temperature"]:
        pytest.skip("this API has no seed")
    body = {**body, **sampling, "cache_prompt": False}
    wanted = lasting(plain.post(path, **body))
    for width in WIDTHS:
        assert lasting(drafting.post(path, **body, verify_width=width)) == wanted


@pytest.mark.parametrize("sampling", SEEDS, ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "case", ["completion", "completion-logprobs", "completion-stop", "chat", "chat-tool", "chat-schema"]
)
def test_stream_is_the_reply_in_pieces(drafting: Serve, case: str, sampling: dict[str, Any]) -> None:
    path, body = CASES[case]
    body = {**body, **sampling, "cache_prompt": False}
    whole = drafting.post(path, **body, verify_width=1)
    for width in WIDTHS:
        events = list(drafting.stream(path, **body, verify_width=width, stream_options={"include_usage": True}))
        choices = [choice for event in events for choice in event.get("choices", ())]
        wanted = whole["choices"][0]
        assert "".join(choice["text"] for choice in choices if "text" in choice) == wanted.get("text", "")
        deltas = [choice["delta"] for choice in choices if "delta" in choice]
        message = wanted.get("message", {})
        assert "".join(delta.get("content") or "" for delta in deltas) == (message.get("content") or "")
        called = "".join(
            call["function"].get("arguments", "") for delta in deltas for call in delta.get("tool_calls", ())
        )
        assert called == "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))
        # tokens are counted, not pieces
        assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_schema_and_tool_are_kept_to(drafting: Serve) -> None:
    for width in WIDTHS:
        path, body = CASES["chat-schema"]
        reply = drafting.post(path, **body, temperature=0.8, seed=3, verify_width=width)
        person = json.loads(reply["choices"][0]["message"]["content"])
        assert set(person) == {"name", "age"}
        path, body = CASES["chat-tool"]
        reply = drafting.post(path, **body, temperature=0.8, seed=3, sampler_rng="mt19937", verify_width=width)
        call = reply["choices"][0]["message"]["tool_calls"][0]["function"]
        assert call["name"] == "add"
        assert set(json.loads(call["arguments"])) == {"a", "b"}


def test_drafts_were_made(drafting: Serve) -> None:
    timings = drafting.post("/v1/chat/completions", **CHAT, temperature=0, verify_width=5)["timings"]
    assert timings["draft_n_accepted"] > 0
    assert timings["speculative"] == "active"


def test_full_context_ends_the_reply_at_the_same_token(plain: Serve, drafting: Serve) -> None:
    n_ctx = plain.get("/props")["default_generation_settings"]["n_ctx"]
    prompt = (n_ctx - 40) * [5]
    wanted = plain.complete(prompt, n_predict=100, ignore_eos=True)
    assert wanted["tokens_predicted"] < 100
    for width in WIDTHS:
        got = drafting.complete(prompt, n_predict=100, ignore_eos=True, verify_width=width)
        assert got["tokens"] == wanted["tokens"]


def test_embeddings_go_without_drafts(serve: StartServe, demo_model: Path) -> None:
    server = serve(demo_model, "--ctx-size", 256, "--parallel", 1, "--embeddings", "--pooling", "mean")
    state = server.get("/health")["speculative"]
    assert (state["requested"], state["effective"], state["reason_code"]) == (True, False, "unsupported-mode")
    vectors = [server.post("/v1/embeddings", input="two words")["data"][0]["embedding"] for _ in range(2)]
    assert vectors[0] == vectors[1]
    assert len(vectors[0]) > 1


def test_rankings_go_without_drafts(serve: StartServe, demo_model: Path) -> None:
    """The model has no head for it, so the scores mean nothing; that there is one for each document is what counts."""
    server = serve(demo_model, "--ctx-size", 512, "--parallel", 2, "--rerank")
    assert server.get("/health")["speculative"]["reason_code"] == "unsupported-mode"
    body = {"query": "two words", "documents": ["a b", "two words", "and more of them"]}
    found = [server.post("/v1/rerank", **body)["results"] for _ in range(2)]
    assert found[0] == found[1]
    assert sorted(entry["index"] for entry in found[0]) == [0, 1, 2]
    scores = [entry["relevance_score"] for entry in found[0]]
    assert scores == sorted(scores, reverse=True)
