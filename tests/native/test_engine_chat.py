"""Chats on the built-in model: form, not wit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pylucebox import ChatCompletion, Engine, InvalidArgumentError, SamplingParams

MESSAGES = [{"role": "user", "content": "What is two and three?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2, 3]}, "b": {"enum": [1, 2, 3]}},
            "required": ["a", "b"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["red", "green"]}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


def chat(engine: Engine, **options: Any) -> ChatCompletion:
    return engine.chat(MESSAGES, **{"max_tokens": 120, "enable_thinking": False, **options})


def test_reply_is_an_assistant_message(demo: Engine) -> None:
    done = chat(demo)
    assert done.message["role"] == "assistant"
    assert isinstance(done.message["content"], str)
    assert done.prompt_tokens > len(demo.tokenize(MESSAGES[0]["content"]))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_json_schema_gives_json_of_that_form_whatever_the_width(demo: Engine, width: int) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    done = chat(demo, response_format=form, verify_width=width)
    assert done.finish_reason == "stop"
    value = json.loads(done.message["content"])
    assert value["name"] in {"red", "green"}
    assert isinstance(value["ok"], bool)
    assert set(value) == {"name", "ok"}
    assert done.token_ids == chat(demo, response_format=form, verify_width=1).token_ids


def test_json_object_gives_an_object(demo: Engine) -> None:
    form = {"type": "json_object", "schema": {"type": "object", "additionalProperties": False}}
    assert json.loads(chat(demo, response_format=form).message["content"]) == {}


def test_schema_in_the_settings_does_the_same(demo: Engine) -> None:
    done = chat(demo, sampling=SamplingParams(temperature=0, json_schema=SCHEMA))
    assert set(json.loads(done.message["content"])) == {"name", "ok"}


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_required_tool_is_called_with_arguments_of_its_schema(demo: Engine, choice: Any, width: int) -> None:
    # The template lets the model talk before the call, and this one would use up all its tokens: make it call at once.
    (tag,) = demo.tokenize("<tool_call>")
    sampling = SamplingParams(temperature=0, logit_bias={tag: 100.0})
    done = chat(demo, tools=[TOOL], tool_choice=choice, verify_width=width, sampling=sampling)
    (call,) = done.message["tool_calls"]
    assert call["id"]
    assert call["function"]["name"] == "add"
    arguments = json.loads(call["function"]["arguments"])
    assert set(arguments) == {"a", "b"}
    assert all(value in {1, 2, 3} for value in arguments.values())


def test_tools_and_grammar_exclude_each_other(demo: Engine) -> None:
    with pytest.raises(InvalidArgumentError):
        chat(demo, tools=[TOOL], tool_choice="required", sampling=SamplingParams(grammar='root ::= "a"'))


def test_tools_that_must_not_be_called_are_not(demo: Engine) -> None:
    assert not chat(demo, tools=[TOOL], tool_choice="none").message.get("tool_calls")


def test_streamed_deltas_join_to_the_message(demo: Engine) -> None:
    whole = chat(demo)
    stream = demo.chat(MESSAGES, max_tokens=120, enable_thinking=False, stream=True)
    deltas = []
    while True:
        try:
            deltas.append(next(stream).delta)
        except StopIteration as end:
            done = end.value
            break
    assert done.message == whole.message
    assert "".join(delta.get("content", "") for delta in deltas) == whole.message["content"]


def test_grammar_shapes_the_content(demo: Engine) -> None:
    done = chat(demo, sampling=SamplingParams(temperature=0, grammar='root ::= "yes" | "no"'))
    assert done.message["content"] in {"yes", "no"}


def test_chat_cut_off_by_the_limit_is_read_as_far_as_it_goes(demo: Engine) -> None:
    done = chat(demo, max_tokens=3)
    assert len(done.token_ids) <= 3
    assert done.message["role"] == "assistant"
