"""Chat requests, and deltas of a streamed reply, without a template engine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Mapping
from typing import Any

import pytest

from pylucebox._chat import ChatStep, Rendered, chat_request, chat_steps, read_reply, render
from pylucebox._errors import InvalidArgumentError
from pylucebox._result import ChatCompletion, Completion, FinishReason, Step
from pylucebox._sampling import SamplingParams
from pylucebox._spec import spec_active
from pylucebox._stats import RequestStats

HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("add", "mul")]


def request(**changes: Any) -> tuple[dict[str, Any], SamplingParams | None]:
    options: dict[str, Any] = {
        "tools": None,
        "tool_choice": None,
        "response_format": None,
        "enable_thinking": None,
        "sampling": None,
    }
    return chat_request(changes.pop("messages", HELLO), **{**options, **changes})


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


def completion(text: str, reason: FinishReason = "stop") -> Completion:
    return Completion(
        text=text,
        token_ids=(1,),
        finish_reason=reason,
        stop_sequence=None,
        prompt_tokens=1,
        logprobs=None,
        stats=RequestStats(),
        spec=spec_active("test"),
    )


def test_plain_chat_leaves_everything_else_to_the_template() -> None:
    assert request() == ({"messages": HELLO}, None)


def test_function_chosen_by_name_is_the_only_one_and_required() -> None:
    built, _ = request(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "mul"}})
    assert built["tools"] == [TOOLS[1]]
    assert built["tool_choice"] == "required"


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_tool_choice_words_pass_through(choice: str) -> None:
    assert request(tools=TOOLS, tool_choice=choice)[0]["tool_choice"] == choice


@pytest.mark.parametrize("choice", ["any", {"function": {"name": "sub"}}, {"name": "add"}, 3])
def test_unknown_tool_choice_is_refused(choice: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        request(tools=TOOLS, tool_choice=choice)
    assert caught.value.argument == "tool_choice"


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}}, {"type": "array"}),
    ],
)
def test_response_format_becomes_a_schema(form: Mapping[str, Any], schema: object) -> None:
    built, _ = request(response_format=form)
    assert (json.loads(built["json_schema"]) if schema else built.get("json_schema")) == schema


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"schema": [1]}},
        {"type": "json_object", "schema": 5},
        {"type": "json_object", "schema": {"const": math.nan}},
        {"type": "json_object", "schema": nested(200_000)},
        "json_object",
        5,
    ],
)
def test_bad_response_format_is_refused(form: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        request(response_format=form)
    assert caught.value.argument == "response_format"


@pytest.mark.parametrize("messages", [[], "hello", None, 4])
def test_messages_that_are_no_list_are_refused(messages: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        request(messages=messages)
    assert caught.value.argument == "messages"


def test_schema_moves_from_the_settings_into_the_request_and_a_grammar_stays() -> None:
    with_grammar = SamplingParams(grammar='root ::= "a"', seed=3)
    assert request(sampling=with_grammar) == ({"messages": HELLO}, with_grammar)
    built, sampling = request(sampling=SamplingParams(json_schema={"type": "null"}, seed=3))
    assert json.loads(built["json_schema"]) == {"type": "null"}
    assert sampling == SamplingParams(seed=3)


def test_two_schemas_are_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        request(sampling=SamplingParams(json_schema={}), response_format={"type": "json_object"})


class _Template:
    """Prompt ``P``; a reply is reasoning up to ``|`` and content after it.

    A reply with ``!`` cannot be read whole, one with ``?`` cannot be read at all.
    """

    def __init__(self, read: Callable[[str], dict[str, Any]] | None = None) -> None:
        self._read = read or by_bar

    def chat_render(self, request: Mapping[str, Any]) -> str:
        assert request["messages"]
        return json.dumps({"prompt": "P", "additional_stops": ["<end>"], "preserved_tokens": ["<t>", "long"]})

    def grammar_of_schema(self, argument: str, schema: str) -> str:
        if schema == "bad":
            raise InvalidArgumentError(argument=argument, value=schema, allowed="another schema")
        return "root ::= object"

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert parse_special
        assert add_special == (text == "P")
        return {"P": [10, 11], "<t>": [7], "long": [1, 2]}[text]

    def chat_parse(self, render_json: str, text: str, *, is_partial: bool) -> dict[str, Any]:
        assert render_json == "{}"
        if "?" in text or ("!" in text and not is_partial):
            raise InvalidArgumentError(argument="reply", value=text, allowed="another text")
        return {"role": "assistant", **self._read(text)}


def by_bar(text: str) -> dict[str, Any]:
    before, bar, after = text.partition("|")
    return {"reasoning_content": before, "content": after if bar else None}


def test_rendering_gives_prompt_stops_and_the_control_tokens_to_show() -> None:
    rendered = render(_Template(), {"messages": HELLO})
    assert rendered.prompt == [10, 11]
    assert rendered.stops == ("<end>",)
    assert rendered.visible == {7}


@pytest.mark.parametrize("argument", ["response_format", "json_schema"])
def test_bad_schema_is_blamed_on_the_argument_that_brought_it(argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        render(_Template(), {"messages": HELLO, "json_schema": "bad"}, schema_from=argument)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("argument", "value"), [("sampling", 5), ("sampling", {"seed": 1}), ("tools", 5), ("tools", [5]), ("tools", "add")]
)
def test_argument_of_another_type_is_refused(argument: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        request(**{argument: value})
    assert (caught.value.argument, caught.value.value) == (argument, value)


RENDERED = Rendered(json="{}", prompt=[1], stops=(), visible=frozenset())


@pytest.mark.parametrize(("text", "reason"), [("think|say!", "stop"), ("think|say!", "length")])
def test_reply_that_cannot_be_read_whole_is_read_as_far_as_it_goes(text: str, reason: FinishReason) -> None:
    reply = read_reply(_Template(), RENDERED, completion(text, reason))
    assert reply.message["content"] == "say!"
    assert reply.text == text


def test_reply_that_cannot_be_read_at_all_is_content_as_it_stands() -> None:
    reply = read_reply(_Template(), RENDERED, completion("what?"))
    assert reply.message == {"role": "assistant", "content": "what?"}


def stream(
    texts: list[str], read: Callable[[str], dict[str, Any]] | None = None
) -> tuple[list[ChatStep], ChatCompletion]:
    whole = completion("".join(texts))

    def steps() -> Generator[Step, None, Completion]:
        for text in texts[:-1]:
            yield Step(text=text, token_ids=(1,))
        yield Step(text=texts[-1], token_ids=(1,), finish_reason="stop")
        return whole

    out: list[ChatStep] = []
    generation = chat_steps(steps(), _Template(read), RENDERED)
    while True:
        try:
            out.append(next(generation))
        except StopIteration as end:
            return out, end.value


def test_deltas_joined_are_the_message() -> None:
    steps, done = stream(["thi", "nk|s", "", "ay", "."])
    assert "".join(step.delta.get("reasoning_content", "") for step in steps) == "think"
    assert "".join(step.delta.get("content", "") for step in steps) == "say."
    assert [step.text for step in steps] == ["thi", "nk|s", "", "ay", "."]
    assert done.message["content"] == "say."


def test_text_that_a_later_reading_takes_back_is_not_told_twice() -> None:
    readings = {"a": "a", "ab": "ab<", "abc": "ab", "abcd": "abcd"}
    steps, _ = stream(["a", "b", "c", "d"], lambda text: {"content": readings[text]})
    assert [step.delta for step in steps] == [{"content": "a"}, {"content": "b<"}, {}, {}]


def test_text_that_cannot_be_read_yet_waits() -> None:
    steps, _ = stream(["a|b?", "c", "d"], lambda text: {"content": text})
    assert [step.delta for step in steps] == [{}, {}, {"content": "a|b?cd"}]


def test_tool_calls_come_whole_with_the_last_step() -> None:
    calls = [{"type": "function", "function": {"name": "add", "arguments": "{}"}}]
    steps, _ = stream(["x", "y"], lambda _text: {"content": "", "tool_calls": calls})
    assert "tool_calls" not in steps[0].delta
    assert steps[-1].delta["tool_calls"] == calls


def test_closing_the_chat_closes_the_generation() -> None:
    closed = []

    def steps() -> Generator[Step, None, Completion]:
        try:
            while True:
                yield Step(text="x", token_ids=(1,))
        finally:
            closed.append(True)

    chat = chat_steps(steps(), _Template(), RENDERED)
    next(chat)
    chat.close()
    assert closed == [True]
