"""Clients that people use: what they get with drafts is what they get without. What is not installed is skipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _server import Serve, StartServe

WIDTHS = (0, 5)  # the policy's, and drafts in every pass
USER = [{"role": "user", "content": "Add 2 and 3."}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": PARAMETERS}}


Same = Callable[[Callable[[Any, dict[str, Any]], Any]], Any]


@pytest.fixture(scope="module")
def openai() -> Any:
    return pytest.importorskip("openai", reason="the openai client is not installed")


def url_of(server: Serve) -> str:
    return f"http://127.0.0.1:{server.port}/v1"


@pytest.fixture(scope="module")
def client(openai: Any, server: Serve) -> Any:
    with openai.OpenAI(base_url=url_of(server), api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def same(openai: Any, client: Any, plain_server: Serve) -> Iterator[Same]:
    """Return the reply, which is the same with MTP off and for every width."""
    with openai.OpenAI(base_url=url_of(plain_server), api_key="none", max_retries=0) as plain:

        def ask_all(ask: Callable[[Any, dict[str, Any]], Any]) -> Any:
            wanted = ask(plain, {"cache_prompt": False})
            for width in WIDTHS:
                assert ask(client, {"verify_width": width, "cache_prompt": False}) == wanted
            return wanted

        yield ask_all


def test_chat(same: Same) -> None:
    def ask(client: Any, body: dict[str, Any]) -> Any:
        reply = client.chat.completions.create(
            model="any", messages=USER, max_tokens=32, temperature=0.8, seed=3, extra_body=body
        )
        return reply.choices[0].message.content, reply.choices[0].finish_reason, reply.usage.completion_tokens

    assert same(ask)[0]


def test_stream(same: Same) -> None:
    def ask(client: Any, body: dict[str, Any]) -> Any:
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


def test_tool(same: Same) -> None:
    def ask(client: Any, body: dict[str, Any]) -> Any:
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


def test_schema(same: Same) -> None:
    def ask(client: Any, body: dict[str, Any]) -> Any:
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


def test_logprobs_n_and_stop(same: Same) -> None:
    def ask(client: Any, body: dict[str, Any]) -> Any:
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


def test_stop(client: Any, same: Same) -> None:
    request = {"model": "any", "prompt": "def add(a, b):", "max_tokens": 48, "temperature": 0}
    whole = client.completions.create(**request).choices[0].text
    stop = whole[20:24]

    def ask(client: Any, body: dict[str, Any]) -> Any:
        reply = client.completions.create(**request, stop=[stop, "never said"], extra_body=body)
        return reply.choices[0].text, reply.choices[0].finish_reason, reply.usage.completion_tokens

    text, reason, n_tokens = same(ask)
    assert (text, reason) == (whole[: whole.index(stop)], "stop")
    assert n_tokens < 48


def test_streamed_tool(same: Same) -> None:
    def ask(client: Any, body: dict[str, Any]) -> Any:
        name, arguments = "", ""
        with client.chat.completions.create(
            model="any",
            messages=USER,
            max_tokens=100,
            temperature=0.5,
            seed=2,
            tools=[TOOL],
            tool_choice="required",
            stream=True,
            extra_body=body,
        ) as stream:
            for chunk in stream:
                for call in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
        return name, arguments

    name, arguments = same(ask)
    assert (name, list(json.loads(arguments))) == ("add", ["a"])


def test_responses(same: Same) -> None:
    def ask(client: Any, body: dict[str, Any]) -> Any:
        reply = client.responses.create(
            model="any", input="Add 2 and 3.", max_output_tokens=32, temperature=0, extra_body=body
        )
        return reply.output_text, reply.usage.output_tokens

    assert same(ask)[1]


def test_embeddings(openai: Any, serve: StartServe, demo_model: Path) -> None:
    server = serve(demo_model, "--ctx-size", 512, "--parallel", 2, "--embeddings", "--pooling", "mean")
    with openai.OpenAI(base_url=url_of(server), api_key="none", max_retries=0) as client:
        texts = ["two words", "and more of them"]
        together = client.embeddings.create(model="any", input=texts)
        alone = [client.embeddings.create(model="any", input=text).data[0].embedding for text in texts]
        assert [entry.index for entry in together.data] == [0, 1]
        for entry, vector in zip(together.data, alone, strict=True):
            assert entry.embedding == pytest.approx(vector, abs=1e-5)
    assert server.get("/health")["speculative"]["reason_code"] == "unsupported-mode"


def test_image_for_a_model_without_eyes(openai: Any, client: Any) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.BadRequestError, match="mmproj"):
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": [image]}])
