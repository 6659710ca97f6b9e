"""Requests made to end the server, to hold it up, or to fill the memory: each is refused, the next one answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from _server import Serve, StartServe

USER = {"role": "user", "content": "a"}
DEEP = 100_000


@pytest.fixture(scope="module")
def server(serve: StartServe, demo_model: Path) -> Serve:
    return serve(demo_model, "--ctx-size", 2048, "--parallel", 2, "--jinja")


@pytest.fixture(autouse=True)
def _nobody_else_notices(server: Serve) -> Any:
    """Whatever a test sends: the process is the same, and answers."""
    worker = server.worker()
    yield
    assert server.worker() == worker, server.log_text()[-2000:]
    assert server.complete("a", n_predict=2)["tokens_predicted"] == 2


def nested(before: str, after: str, middle: str = "") -> str:
    return DEEP * before + middle + DEEP * after


def refusal(server: Serve, path: str, body: bytes | dict[str, Any]) -> str:
    """Return the message of a request that is refused as the client's mistake."""
    status, reply = server.send(path, body if isinstance(body, bytes) else json.dumps(body).encode())
    error = json.loads(reply)["error"]
    assert (status, error["code"], error["type"]) == (400, 400, "invalid_request_error"), error
    message: str = error["message"]
    return message


CHAT = '{"max_tokens": 1, "messages": [{"role": "user", "content": "a"}], @}'
TOOLS = '"tools": [{"type": "function", "function": {"name": "a", "parameters": @}}]'
OBJECTS = nested('{"type": "object", "properties": {"a": ', "}}", "{}")
PLACES = {  # @ is where the depth is
    "prompt": ("/completion", '{"prompt": @}', nested("[", "]")),
    "unknown field": ("/completion", '{"prompt": "a", "unknown": @}', nested('{"a":', "}", "1")),
    "content": ("/v1/chat/completions", '{"messages": [{"role": "user", "content": @}]}', nested("[", "]")),
    "template": ("/v1/chat/completions", CHAT.replace("@", '"chat_template_kwargs": {"a": @}'), nested("[", "]")),
    "tool": ("/v1/chat/completions", CHAT.replace("@", TOOLS), OBJECTS),
    "schema": ("/completion", '{"prompt": "a", "json_schema": @}', nested('{"anyOf": [', "]}", "{}")),
    "without an end": ("/completion", '{"prompt": @', DEEP * "["),
}


@pytest.mark.parametrize("place", PLACES)
def test_json_that_would_overflow_the_stack(server: Serve, place: str) -> None:
    path, body, value = PLACES[place]
    assert "200 levels" in refusal(server, path, body.replace("@", value).encode())


def test_json_in_a_text_that_would_overflow_the_stack(server: Serve) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "a", "arguments": nested("[", "]")}}
    answer = {"role": "tool", "content": "x", "tool_call_id": "1"}
    messages = [USER, {"role": "assistant", "tool_calls": [call]}, answer]
    status, _ = server.send("/v1/chat/completions", json.dumps({"messages": messages, "max_tokens": 1}).encode())
    assert status in (200, 400)  # whether the template wants a value of it


def test_brackets_in_a_text_are_text(server: Serve) -> None:
    assert server.post("/tokenize", content=300 * '["\\' + '"')["tokens"]


GRAMMARS = {
    "nested": f"root ::= {nested('(', ')', chr(34) + 'a' + chr(34))}",
    "a chain": "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(DEEP)) + f'r{DEEP} ::= "a"',
    "ambiguous": "root ::= " + 30 * "a? " + '\na ::= "a"? [a-z]? "a"?',
    "many ways to look for left recursion": "root ::= r0\n"
    + "".join(f"r{i} ::= (r{i + 1} r{i + 1})?\n" for i in range(40))
    + 'r40 ::= "a"?',
    "alternatives": "root ::= " + DEEP // 2 * '"a" | ' + '"b"',
}


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("verify_width", [1, 4])
def test_grammar_that_would_end_or_hold_up_the_server(server: Serve, grammar: str, verify_width: int) -> None:
    body = {"prompt": "a", "n_predict": 16, "grammar": GRAMMARS[grammar], "verify_width": verify_width}
    status, reply = server.send("/completion", json.dumps(body).encode())
    assert status == 200 or "grammar" in json.loads(reply)["error"]["message"]


@pytest.mark.parametrize("verify_width", [1, 4])
def test_windows_take_no_more_than_the_context(server: Serve, verify_width: int) -> None:
    most = 2**31 - 1
    reply = server.complete(
        "a a a a a a",
        n_predict=4,
        verify_width=verify_width,
        repeat_penalty=1.1,
        repeat_last_n=most,
        dry_multiplier=1.0,
        dry_penalty_last_n=most,
        dry_allowed_length=1,
    )
    n_ctx = server.get("/props")["default_generation_settings"]["n_ctx"]
    assert reply["generation_settings"]["dry_penalty_last_n"] <= n_ctx
    status = Path(f"/proc/{server.worker()}/status").read_text("ascii")
    assert int(status.split("VmHWM:")[1].split()[0]) < 2 * 2**20  # KiB


TOOL = {"type": "function", "function": {"name": "a", "parameters": {"type": "nonsense"}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
MISTAKES: dict[str, tuple[str, dict[str, Any], str]] = {
    "role": ("/v1/chat/completions", {"messages": [{"role": 5, "content": "a"}]}, "type must be string"),
    "call": ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [5]}]}, "tool call"),
    "tools": ("/v1/chat/completions", {"messages": [USER], "tools": {"a": 1}}, "tools"),
    "tool": ("/v1/chat/completions", {"messages": [USER], "tools": [TOOL], "tool_choice": "required"}, "nonsense"),
    "reasoning": ("/v1/chat/completions", {"messages": [USER], "reasoning_format": "zz"}, "zz"),
    "image": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [IMAGE]}]}, "mmproj"),
    "image, responses": (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE["image_url"]["url"]}]}]},
        "mmproj",
    ),
    "image, messages": (
        "/v1/messages",
        {
            "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "A"}}]}],
            "max_tokens": 1,
        },
        "mmproj",
    ),
    "image, completion": (
        "/completion",
        {"prompt": {"prompt_string": "<__media__>", "multimodal_data": ["AAAA"]}},
        "multimodal",
    ),
    "negative token": ("/detokenize", {"tokens": [-1]}, "-1"),
    "token beyond": ("/detokenize", {"tokens": [99_999_999]}, "99999999"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_a_client_are_its_own(server: Serve, mistake: str) -> None:
    path, body, said = MISTAKES[mistake]
    assert said in refusal(server, path, {**body, "stream": True} if "messages" in body else body)
