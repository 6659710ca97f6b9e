"""Chat on top of generation: upstream's templates render the request and read the reply."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from pylucebox._errors import InvalidArgumentError
from pylucebox._result import ChatCompletion, Completion, Step
from pylucebox._sampling import SamplingParams

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStep(Step):
    """A step of a chat turn.

    Attributes
    ----------
    delta
        What the step added to the message, in the OpenAI form: ``content``, ``reasoning_content``; ``tool_calls`` come
        whole with the last step. Empty when nothing was added yet.
    """

    delta: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {**Step.as_dict(self), "delta": dict(self.delta)}


class ChatOptions(TypedDict, total=False):
    """Keywords of `Engine.chat`, for its overloads."""

    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    response_format: Mapping[str, Any] | None
    enable_thinking: bool | None
    max_tokens: int
    stop: str | Sequence[str]
    sampling: SamplingParams | None
    logprobs: int | None
    verify_width: int | None


class ChatModel(Protocol):
    """The part of a model that chats need."""

    def grammar_of_schema(self, argument: str, schema: str) -> str:
        """Return the grammar of a JSON schema that came as `argument`."""

    def chat_render(self, request: Mapping[str, Any]) -> str:
        """Return the rendered request as JSON."""

    def chat_parse(self, render_json: str, text: str, *, is_partial: bool) -> dict[str, Any]:
        """Return the message in a reply."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of a text."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chat request as the template wants it.

    Attributes
    ----------
    json
        All that the template code returned, for the sampler and the parser.
    prompt
        Token ids.
    stops
        Stop strings of the template.
    visible
        Control tokens that the parser needs to see in the text.
    """

    json: str
    prompt: list[int]
    stops: tuple[str, ...]
    visible: frozenset[int]


def render(model: ChatModel, request: Mapping[str, Any], *, schema_from: str = "response_format") -> Rendered:
    """Render a request made by `chat_request`.

    Parameters
    ----------
    model
        Whose template.
    request
        What to render.
    schema_from
        The argument that brought the JSON schema, if there is one.

    Raises
    ------
    InvalidArgumentError
        The template cannot express it, or the schema cannot be read.
    ModelFormatError
        The model has no usable template.
    """
    if "json_schema" in request:  # the template code would blame the request as a whole
        model.grammar_of_schema(schema_from, request["json_schema"])
    text = model.chat_render(request)
    fields = json.loads(text)
    visible = set()
    for word in fields.get("preserved_tokens", ()):
        ids = model.tokenize(word, add_special=False, parse_special=True)
        if len(ids) == 1:
            visible.add(ids[0])
    return Rendered(
        json=text,
        prompt=model.tokenize(fields["prompt"], add_special=True, parse_special=True),
        stops=tuple(fields.get("additional_stops", ())),
        visible=frozenset(visible),
    )


def chat_request(
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None,
    response_format: Mapping[str, Any] | None,
    enable_thinking: bool | None,
    sampling: SamplingParams | None,
) -> tuple[dict[str, Any], SamplingParams | None]:
    """Return the request for the template code, and the sampling settings without what moved into the request.

    The template decides how a schema goes together with reasoning and tool calls, so it gets the schema.

    Raises
    ------
    InvalidArgumentError
        An argument has the wrong form.
    """
    request: dict[str, Any] = {"messages": _checked_messages(messages)}
    if sampling is not None and not isinstance(sampling, SamplingParams):
        raise InvalidArgumentError(argument="sampling", value=sampling, allowed="SamplingParams, or None for greedy")
    tools = _checked_tools(tools)
    if tools:
        request["tools"], request["tool_choice"] = _tools(tools, tool_choice)
    if enable_thinking is not None:
        request["enable_thinking"] = bool(enable_thinking)
    schema = _response_schema(response_format)
    if sampling is not None and (sampling.grammar or sampling.json_schema):
        if schema is not None:
            allowed = "response_format, or a grammar or json_schema in sampling, not both"
            raise InvalidArgumentError(argument="response_format", value=response_format, allowed=allowed)
        schema = None if sampling.json_schema is None else str(sampling.json_schema)
        sampling = dataclasses.replace(sampling, json_schema=None)
    if schema is not None:
        request["json_schema"] = schema
    return request, sampling


def _checked_messages(messages: object) -> list[Message]:
    allowed = "a sequence of at least one message"
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InvalidArgumentError(argument="messages", value=messages, allowed=allowed)
    return list(messages)


def _checked_tools(tools: object) -> list[Mapping[str, Any]]:
    listed = [] if tools is None else tools
    if not isinstance(listed, Sequence) or not all(isinstance(tool, Mapping) for tool in listed):
        raise InvalidArgumentError(argument="tools", value=tools, allowed="a sequence of OpenAI tools, or None")
    return list(listed)


def _tools(
    tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any] | None
) -> tuple[list[Mapping[str, Any]], str]:
    """Return the tools on offer, and how the template code spells the choice."""
    if choice is None:
        return list(tools), "auto"
    if choice in ("auto", "none", "required"):
        return list(tools), str(choice)
    allowed = '"auto", "none", "required", or {"type": "function", "function": {"name": one of the tools}}'
    try:
        name = choice["function"]["name"]  # type: ignore[index]
        named = [tool for tool in tools if tool["function"]["name"] == name]
    except (TypeError, KeyError, IndexError) as error:
        raise InvalidArgumentError(argument="tool_choice", value=choice, allowed=allowed) from error
    if not named:
        raise InvalidArgumentError(argument="tool_choice", value=choice, allowed=allowed)
    # Upstream knows no choice by name; being required to call the only tool on offer is the same.
    return named, "required"


def _response_schema(response_format: Mapping[str, Any] | None) -> str | None:
    if response_format is None:
        return None
    allowed = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": {...}}}'
    try:
        kind = response_format["type"]
        if kind == "text":
            return None
        schema = None
        if kind == "json_object":
            schema = response_format.get("schema", {"type": "object"})
        elif kind == "json_schema":
            schema = response_format["json_schema"]["schema"]
        if isinstance(schema, Mapping):
            return json.dumps(schema, allow_nan=False)
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError) as error:
        allowed = f"{allowed}, with a schema that JSON can express"
        raise InvalidArgumentError(argument="response_format", value=response_format, allowed=allowed) from error
    raise InvalidArgumentError(argument="response_format", value=response_format, allowed=allowed)


def read_reply(model: ChatModel, rendered: Rendered, completion: Completion) -> ChatCompletion:
    """Return a completion together with the message in it.

    A reply that was cut off, or that does not follow the template's form, is read as far as it goes; one that cannot be
    read at all is content as it stands.
    """
    text = completion.text
    message: dict[str, Any] | None = None
    if completion.finish_reason == "stop":
        message = _parsed(model, rendered, text, is_partial=False)
    if message is None:
        message = _parsed(model, rendered, text, is_partial=True)
    for call in (message or {}).get("tool_calls") or ():
        # Clients answer a call by its id; the model writes none.
        call["id"] = call.get("id") or f"call_{secrets.token_hex(12)}"
    fields = {field.name: getattr(completion, field.name) for field in dataclasses.fields(Completion)}
    return ChatCompletion(message=message or {"role": "assistant", "content": text}, **fields)


def _parsed(model: ChatModel, rendered: Rendered, text: str, *, is_partial: bool) -> dict[str, Any] | None:
    """Return the message in a text, or None if the template's parser cannot read it."""
    try:
        return model.chat_parse(rendered.json, text, is_partial=is_partial)
    except InvalidArgumentError:
        return None


def chat_steps(
    steps: Generator[Step, None, Completion], model: ChatModel, rendered: Rendered
) -> Generator[ChatStep, None, ChatCompletion]:
    """Turn the steps of a generation into steps of a chat turn.

    Parameters
    ----------
    steps
        The generation; it is closed when the chat is.
    model, rendered
        What reads the reply.
    """
    text = ""
    told: dict[str, str] = {}
    with contextlib.closing(steps):
        step = next(steps)
        while step.finish_reason is None:
            text += step.text
            message = _parsed(model, rendered, text, is_partial=True) if step.text else None
            yield _chat_step(step, _delta(message or {}, told))
            step = next(steps)
        try:
            next(steps)
        except StopIteration as end:
            completion = read_reply(model, rendered, end.value)
        else:
            raise RuntimeError("a generation went on after its last step")
        delta = _delta(completion.message, told)
        if completion.message.get("tool_calls"):
            delta["tool_calls"] = completion.message["tool_calls"]
        yield _chat_step(step, delta)
    return completion


def _delta(message: Message, told: dict[str, str]) -> dict[str, Any]:
    """Return what `message` adds to the texts told so far, and note it as told."""
    delta: dict[str, Any] = {}
    for name in ("reasoning_content", "content"):
        now, before = message.get(name) or "", told.get(name, "")
        # A partial reading may take text back, for example when it turns out to open a tool call: then wait.
        if isinstance(now, str) and len(now) > len(before) and now.startswith(before):
            delta[name] = now[len(before) :]
            told[name] = now
    return delta


def _chat_step(step: Step, delta: Mapping[str, Any]) -> ChatStep:
    fields = {field.name: getattr(step, field.name) for field in dataclasses.fields(Step)}
    return ChatStep(delta=delta, **fields)
