"""LangChain's OpenAI classes as a second client: with drafts they give what they give without.

``pip install '.[clients]'`` brings it; where it is missing these tests are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _server import Serve, StartServe

langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")

ARMS = ({"verify_width": 0}, {"verify_width": 5})  # the policy's width, and drafts in every pass
ADD = {
    "title": "add",
    "description": "Add two numbers.",
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
}

Make = Callable[..., Any]
Same = Callable[[Callable[[Make], Any]], Any]


def address(server: Serve) -> dict[str, Any]:
    return {"base_url": f"http://127.0.0.1:{server.port}/v1", "api_key": "none", "model": "any", "max_retries": 0}


def chat_of(server: Serve, body: dict[str, Any]) -> Make:
    """Return what makes chats that talk to a server, with settings of their own."""

    def make(**settings: Any) -> Any:
        settings = {"temperature": 0.8, "seed": 3, "max_tokens": 32, **settings}
        return langchain.ChatOpenAI(**address(server), extra_body={"cache_prompt": False, **body}, **settings)

    return make


@pytest.fixture(scope="module")
def same(server: Serve, plain_server: Serve) -> Same:
    """Return what is found with MTP off, which is found with each kind of drafts as well."""

    def ask_all(ask: Callable[[Make], Any]) -> Any:
        wanted = ask(chat_of(plain_server, {}))
        for body in ARMS:
            assert ask(chat_of(server, body)) == wanted
        return wanted

    return ask_all


def test_chat(same: Same) -> None:
    def ask(make: Make) -> Any:
        reply = make().invoke([("system", "Be brief."), ("user", "Add 2 and 3.")])
        return reply.content, reply.usage_metadata["output_tokens"], reply.response_metadata["finish_reason"]

    text, n_tokens, _ = same(ask)
    assert text
    assert n_tokens > 1


def test_stream(same: Same) -> None:
    def ask(make: Make) -> Any:
        chat = make(stream_usage=True)
        parts = list(chat.stream("Add 2 and 3."))
        n_tokens = sum(part.usage_metadata["output_tokens"] for part in parts if part.usage_metadata)
        whole = chat.invoke("Add 2 and 3.")
        assert "".join(part.content for part in parts) == whole.content
        assert n_tokens == whole.usage_metadata["output_tokens"]
        return whole.content, n_tokens

    assert same(ask)[1] > 1


def test_tool(same: Same) -> None:
    def ask(make: Make) -> Any:
        chat = make(max_tokens=100, temperature=0.5, seed=1).bind_tools([ADD], tool_choice="required")
        whole = chat.invoke("Add 2 and 3.").tool_calls[0]
        streamed = None
        for part in chat.stream("Add 2 and 3."):
            streamed = part if streamed is None else streamed + part
        assert streamed is not None
        assert streamed.tool_calls[0]["args"] == whole["args"]
        return whole["name"], whole["args"]

    name, arguments = same(ask)
    assert (name, list(arguments)) == ("add", ["a"])


def test_schema(same: Same) -> None:
    def ask(make: Make) -> Any:
        return make(max_tokens=100).with_structured_output(ADD, method="json_schema").invoke("Add 2 and 3.")

    assert isinstance(same(ask)["a"], int)


def test_logprobs(same: Same) -> None:
    def ask(make: Make) -> Any:
        found = make(logprobs=True, top_logprobs=2).invoke("Add 2 and 3.").response_metadata["logprobs"]["content"]
        return [(token["token"], token["logprob"], len(token["top_logprobs"])) for token in found]

    tokens = same(ask)
    assert len(tokens) > 1
    assert all(logprob <= 0 and n == 2 for _, logprob, n in tokens)


def test_n(same: Same) -> None:
    from langchain_core.messages import HumanMessage

    def ask(make: Make) -> Any:
        generations = make(n=3).generate([[HumanMessage("Add 2 and 3.")]]).generations[0]
        return [generation.text for generation in generations]

    assert len(same(ask)) == 3


def test_stop(same: Same) -> None:
    whole: str = same(lambda make: make(max_tokens=64, temperature=0).invoke("Count to nine.").content)
    stop = whole[len(whole) // 2 :][:3]

    def ask(make: Make) -> Any:
        return make(max_tokens=64, temperature=0).invoke("Count to nine.", stop=[stop, "never said"]).content

    assert stop
    assert same(ask) == whole[: whole.index(stop)]


def test_completion(server: Serve, plain_server: Serve) -> None:
    """The class for plain text, several prompts at once."""
    found = [
        langchain.OpenAI(**address(place), temperature=0, max_tokens=24, extra_body=body).batch(
            ["def add(a, b):", "The sum is"]
        )
        for place, body in ((plain_server, {}), *((server, body) for body in ARMS))
    ]
    assert all(found[0])
    assert found == found[:1] * len(found)


def test_cancelled_stream_frees_its_slot(server: Serve) -> None:
    for _ in range(6):  # more than there are slots
        stream = chat_of(server, {"ignore_eos": True})(max_tokens=3000).stream("a")
        next(stream)
        stream.close()
    assert server.complete("a", n_predict=4)["tokens_predicted"] == 4


def test_embeddings(serve: StartServe, demo_model: Path) -> None:
    server = serve(demo_model, "--ctx-size", 512, "--parallel", 2, "--embeddings", "--pooling", "mean")
    # without the check it sends texts, not numbers of another model's tokens
    made = langchain.OpenAIEmbeddings(**address(server), check_embedding_ctx_length=False)
    together = made.embed_documents(["two words", "and more of them"])
    assert together[0] == pytest.approx(made.embed_query("two words"), abs=1e-5)
    assert together[0] != together[1]


def test_errors_are_those_of_the_api(server: Serve) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="verify_width"):
        chat_of(server, {"verify_width": 99})().invoke("a")
    with pytest.raises(openai.BadRequestError, match="mmproj"):
        chat_of(server, {})().invoke(
            [("user", [{"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}}])]
        )
