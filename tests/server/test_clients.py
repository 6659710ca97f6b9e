"""Clients that people use. They are no requirement of this package; what is not installed is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from _server import Serve, StartServe

WIDTHS = (1, 0, 5)
USER = [{"role": "user", "content": "Add 2 and 3."}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": PARAMETERS}}


@pytest.fixture(scope="module")
def server(serve: StartServe, demo_model: Path) -> Serve:
    return serve(demo_model, "--ctx-size", 4096, "--parallel", 4, "--jinja")


@pytest.fixture(scope="module")
def openai() -> Any:
    return pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(openai: Any, server: Serve) -> Any:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        yield client


def same(ask: Any) -> Any:
    """Return the reply, which is the same for every width."""
    replies = [ask({"verify_width": width, "cache_prompt": False}) for width in WIDTHS]
    assert replies[1:] == replies[:1] * 2
    return replies[0]


def test_chat(client: Any) -> None:
    def ask(body: dict[str, Any]) -> Any:
        reply = client.chat.completions.create(
            model="any", messages=USER, max_tokens=32, temperature=0.8, seed=3, extra_body=body
        )
        return reply.choices[0].message.content, reply.choices[0].finish_reason, reply.usage.completion_tokens

    assert same(ask)[0]


def test_stream(client: Any) -> None:
    def ask(body: dict[str, Any]) -> Any:
        text, n_tokens = "", 0
        with client.chat.completions.create(
            model="any",
            messages=USER,
            max_tokens=32,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=body,
        ) as stream:
            for chunk in stream:
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
                n_tokens = chunk.usage.completion_tokens if chunk.usage else n_tokens
        return text, n_tokens

    assert all(same(ask))


def test_tool(client: Any) -> None:
    def ask(body: dict[str, Any]) -> Any:
        reply = client.chat.completions.create(
            model="any",
            messages=USER,
            max_tokens=100,
            temperature=0.5,
            seed=1,
            tools=[TOOL],
            tool_choice="required",
            extra_body=body,
        )
        call = reply.choices[0].message.tool_calls[0].function
        return call.name, call.arguments

    name, arguments = same(ask)
    assert (name, list(json.loads(arguments))) == ("add", ["a"])


def test_schema(client: Any) -> None:
    def ask(body: dict[str, Any]) -> Any:
        reply = client.chat.completions.create(
            model="any",
            messages=USER,
            max_tokens=100,
            temperature=0.5,
            seed=1,
            response_format={"type": "json_schema", "json_schema": {"name": "sum", "schema": PARAMETERS}},
            extra_body=body,
        )
        return reply.choices[0].message.content

    assert "a" in json.loads(same(ask))


def test_logprobs_n_and_stop(client: Any) -> None:
    def ask(body: dict[str, Any]) -> Any:
        reply = client.chat.completions.create(
            model="any",
            messages=USER,
            max_tokens=24,
            temperature=0.9,
            seed=5,
            n=2,
            logprobs=True,
            top_logprobs=2,
            stop=["9"],
            extra_body=body,
        )
        return [
            (choice.message.content, [(token.token, token.logprob) for token in choice.logprobs.content])
            for choice in reply.choices
        ]

    choices = same(ask)
    assert len(choices) == 2
    assert all(logprob <= 0 for _, tokens in choices for _, logprob in tokens)


def test_cancelled_stream_frees_its_slot(client: Any, server: Serve) -> None:
    for _ in range(6):  # more than there are slots
        stream = client.completions.create(model="any", prompt="a", max_tokens=2000, temperature=0, stream=True)
        next(iter(stream))
        stream.close()
    assert server.complete("a", n_predict=4)["tokens_predicted"] == 4


def test_errors_are_those_of_the_api(openai: Any, client: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="any", messages=USER, extra_body={"verify_width": 99})
    with pytest.raises(openai.NotFoundError):
        client.files.list()


def test_models(client: Any) -> None:
    assert len(client.models.list().data) == 1


def test_langchain(server: Serve) -> None:
    langchain = pytest.importorskip("langchain_openai")
    replies = []
    for width in WIDTHS:
        chat = langchain.ChatOpenAI(
            base_url=f"http://127.0.0.1:{server.port}/v1",
            api_key="none",
            model="any",
            temperature=0,
            max_tokens=24,
            extra_body={"verify_width": width, "cache_prompt": False},
        )
        replies.append(
            (chat.invoke("Add 2 and 3.").content, "".join(part.content for part in chat.stream("Add 2 and 3.")))
        )
    assert replies == replies[:1] * len(WIDTHS)
    assert replies[0][0] == replies[0][1] != ""
