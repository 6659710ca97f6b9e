"""Requests by chance to every endpoint: no process ends, and no 5xx but those that are documented.

docs/serve.md has them: 501 for what this server or model cannot do, and 503 while it starts or ends.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from _server import Serve, StartServe
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DOCUMENTED = {HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.SERVICE_UNAVAILABLE}

TEXTS = st.text(max_size=20)
NUMBERS = (
    st.integers(-(2**33), 2**33)
    | st.integers(-3, 10)
    | st.floats(width=32, allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, -1, 1e308, -1e308, 2**31 - 1, -(2**31), 2**64, 1e-45])
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=6,
)
SCHEMA_WORDS = ["object", "array", "string", "integer", "number", "boolean", "null"]
SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(SCHEMA_WORDS) | st.lists(st.sampled_from(SCHEMA_WORDS), max_size=3),
            "minLength": st.integers(-1, 9),
            "maxLength": st.integers(-1, 9),
            "minimum": st.integers(-(2**63), 2**63 - 1),
            "maximum": st.integers(-(2**63), 2**63 - 1),
            "pattern": st.text("^$()[]{}|*+?\\a1-,.:=!dwsn", max_size=12),
            "format": st.sampled_from(["date", "time", "date-time", "uuid", "none"]),
            "enum": st.lists(ANYTHING, max_size=3),
            "const": ANYTHING,
            "$ref": st.sampled_from(["#", "#/$defs/a", "a", "https://nowhere.invalid/a"]),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(SCHEMA_WORDS),
            "properties": st.dictionaries(TEXTS, inner, max_size=3),
            "required": st.lists(TEXTS, max_size=2),
            "additionalProperties": inner | st.booleans(),
            "items": inner | st.lists(inner, max_size=2),
            "minItems": st.integers(-1, 5),
            "maxItems": st.integers(-1, 5),
            "anyOf": st.lists(inner, max_size=3),
            "allOf": st.lists(inner, max_size=3),
            "$defs": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
        },
    ),
    max_leaves=5,
)
GRAMMARS = st.text("root:= \"'ab()[]|*+?{}0123,^-\\\n.<>!#", max_size=30).map("root ::= ".__add__)
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "input_audio", "input_text", "nonsense"])},
    optional={"text": TEXTS, "image_url": st.fixed_dictionaries({"url": st.sampled_from(["data:,", "file:///etc/x"])})},
)
CALLS = st.fixed_dictionaries(
    {},
    optional={
        "id": TEXTS,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({}, optional={"name": TEXTS, "arguments": TEXTS | st.just("{}") | ANYTHING}),
    },
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "nonsense"])},
    optional={
        "content": TEXTS | st.lists(PARTS, max_size=3) | ANYTHING,
        "tool_calls": st.lists(CALLS, max_size=2),
        "tool_call_id": TEXTS,
        "name": TEXTS,
        "reasoning_content": TEXTS,
    },
)
TOOLS = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "nonsense"])},
    optional={
        "function": st.fixed_dictionaries(
            {}, optional={"name": TEXTS, "description": TEXTS, "parameters": SCHEMAS, "strict": st.booleans()}
        )
    },
)
TOKENS = st.lists(st.integers(-2, 5000), max_size=8)
PROMPTS = TEXTS | TOKENS | st.lists(TEXTS | TOKENS | st.integers(0, 4000), max_size=3)

NUMERIC = """
temperature dynatemp_range dynatemp_exponent top_k top_p min_p top_n_sigma xtc_probability xtc_threshold
typical_p repeat_last_n repeat_penalty presence_penalty frequency_penalty dry_multiplier dry_base
dry_allowed_length dry_penalty_last_n mirostat mirostat_tau mirostat_eta seed n_probs min_keep n_keep
n_discard n_indent id_slot cache_prompt t_max_predict_ms t_max_prompt_ms top_logprobs n_cache_reuse
post_sampling_probs return_tokens timings_per_token return_progress ignore_eos adaptive_target adaptive_decay
top_n embd_normalize encoding_format with_pieces add_special parse_special thinking_budget_tokens
"""
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "prompt": PROMPTS,
    "messages": st.lists(MESSAGES, max_size=4),
    "input": PROMPTS | st.lists(MESSAGES, max_size=2),
    "content": PROMPTS,
    "tokens": TOKENS,
    "system": TEXTS | st.lists(PARTS, max_size=2),
    "query": TEXTS,
    "documents": st.lists(TEXTS, max_size=3),
    "input_prefix": TEXTS,
    "input_suffix": TEXTS,
    "input_extra": st.lists(st.fixed_dictionaries({}, optional={"text": TEXTS, "filename": TEXTS}), max_size=2),
    "tools": st.lists(TOOLS, max_size=2),
    "tool_choice": st.sampled_from(["none", "auto", "required", "nonsense"]),
    "parallel_tool_calls": st.booleans(),
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "json_object", "json_schema", "nonsense"])},
        optional={"schema": SCHEMAS, "json_schema": st.fixed_dictionaries({}, optional={"schema": SCHEMAS})},
    ),
    "json_schema": SCHEMAS,
    "grammar": GRAMMARS,
    "grammar_lazy": st.booleans(),
    "grammar_triggers": st.lists(
        st.fixed_dictionaries({"type": st.integers(-1, 5), "value": TEXTS}, optional={"token": NUMBERS}), max_size=2
    ),
    "stop": TEXTS | st.lists(TEXTS, max_size=3),
    "logit_bias": st.lists(st.tuples(st.integers(-2, 5000) | TEXTS, NUMBERS | st.booleans()), max_size=3)
    | st.dictionaries(TEXTS, NUMBERS, max_size=2),
    "samplers": st.lists(st.sampled_from(["top_k", "dry", "xtc", "infill", "penalties", "nonsense"]), max_size=5)
    | TEXTS,
    "dry_sequence_breakers": st.lists(TEXTS, max_size=3),
    "lora": st.lists(st.fixed_dictionaries({}, optional={"id": NUMBERS, "scale": NUMBERS}), max_size=2),
    "response_fields": st.lists(TEXTS, max_size=3),
    "chat_template_kwargs": st.dictionaries(TEXTS, ANYTHING, max_size=2),
    "reasoning_format": st.sampled_from(["none", "auto", "deepseek", "nonsense"]),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
    "logprobs": st.booleans() | st.integers(-1, 5),
    "n": st.integers(-1, 3),
    "verify_width": st.integers(-1, 9),
    "speculative": st.booleans(),
    **dict.fromkeys(NUMERIC.split(), NUMBERS | st.booleans()),
}
GENERATING = [
    "/completion",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/infill",
]
OTHERS = [
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/v1/embeddings",
    "/embedding",
    "/rerank",
    "/v1/systemone",
    "/v1/chat/completions/input_tokens",
    "/v1/responses/input_tokens",
    "/v1/messages/count_tokens",
    "/v1/chat/completions/control",
    "/v1/audio/transcriptions",
    "/v1/streams/lookup",
    "/lora-adapters",
    "/props",
    "/slots/0?action=erase",
    "/slots/x?action=save",
    "/tools",
    "/cors-proxy",
    "/nowhere",
]
NEEDED = {
    "/completion": "prompt",
    "/v1/completions": "prompt",
    "/infill": "input_prefix",
    "/v1/chat/completions": "messages",
    "/v1/messages": "messages",
    "/v1/responses": "input",
    "/tokenize": "content",
    "/detokenize": "tokens",
    "/apply-template": "messages",
    "/v1/embeddings": "input",
    "/rerank": "query",
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a path and a body, which mostly is what the endpoint could understand."""
    path = draw(st.sampled_from(GENERATING * 3 + OTHERS))
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=6, unique=True))
    body = {name: draw(FIELDS[name] if draw(st.integers(0, 9)) else ANYTHING) for name in names}
    if path in NEEDED and NEEDED[path] not in body:
        body[NEEDED[path]] = draw(FIELDS[NEEDED[path]])
    # replies by chance have no end
    body |= dict.fromkeys(("max_tokens", "n_predict", "max_output_tokens"), draw(st.sampled_from([0, 1, 2, 5])))
    data = json.dumps(body).encode()
    kind = draw(st.integers(0, 19))
    if kind == 0:
        data = data[: draw(st.integers(0, len(data)))]
    elif kind == 1:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(min_size=1, max_size=3)) + data[at:]
    elif kind == 2:
        data = json.dumps(draw(ANYTHING)).encode()
    return path, data


def check(server: Serve, path: str, body: bytes) -> None:
    status, reply = server.send(path, body)
    assert status < HTTPStatus.INTERNAL_SERVER_ERROR or status in DOCUMENTED, (status, reply)
    if status >= HTTPStatus.BAD_REQUEST:
        assert json.loads(reply)["error"]["message"]


def run(server: Serve, n_requests: int, *, derandomize: bool) -> None:
    worker = server.worker()

    @settings(
        max_examples=n_requests,
        deadline=None,
        database=None,
        derandomize=derandomize,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests())
    def one(request: tuple[str, bytes]) -> None:
        check(server, *request)

    one()
    assert server.worker() == worker, server.log_text()[-3000:]
    assert server.complete("a", n_predict=2)["tokens_predicted"] == 2


@pytest.fixture(scope="module")
def server(serve: StartServe, demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Serve:
    folder = f"{tmp_path_factory.mktemp('slots')}/"
    return serve(demo_model, "--ctx-size", 1024, "--parallel", 2, "--jinja", "--slot-save-path", folder)


def test_no_request_ends_or_confuses_the_server(server: Serve) -> None:
    run(server, 400, derandomize=True)


@pytest.mark.soak
def test_no_request_of_many_ends_or_confuses_the_server(server: Serve) -> None:
    run(server, 5_000, derandomize=False)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "NONSENSE"])
def test_every_method_has_an_answer(server: Serve, method: str) -> None:
    for path in ("/completion", "/health", "/slots", "/", "/%00", "/../etc/passwd", "/v1/models?a=%ff"):
        link = server.connect()
        link.request(method, path)
        assert link.getresponse().status < HTTPStatus.INTERNAL_SERVER_ERROR
        link.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + 100_000 * b"a" + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + 20_000 * b"A: b\r\n" + b"\r\n",
        b"POST /completion HTTP/1.1\r\nContent-Length: -5\r\n\r\n{}",
        b"POST /completion HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
        b"POST /completion HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /completion HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /completion HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=\r\nContent-Length: 2\r\n\r\n--",
        4000 * b"\0",
    ],
    ids=range(10),
)
def test_what_is_no_request(server: Serve, raw: bytes) -> None:
    import socket

    worker = server.worker()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain:
        try:
            plain.sendall(raw)
            plain.shutdown(socket.SHUT_WR)
            answer = plain.recv(64)
        except OSError:
            answer = b""
    assert not answer or answer.split()[1] < b"500" or answer.split()[1] in (b"501", b"503", b"505")
    assert server.complete("a", n_predict=2)["tokens_predicted"] == 2
    assert server.worker() == worker
