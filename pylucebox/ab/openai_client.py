"""Streams completions from a server and notes when each part came.

Two dialects, both with raw prompts: llama.cpp's ``/completion``, which tells token ids and the server's own times, and
``/v1/completions`` of every OpenAI-compatible server. Plain `http.client`; one connection per request.
"""

from __future__ import annotations

import http.client
import json
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from pylucebox.ab.outcome import RawSequence
from pylucebox.ab.records import Request

__all__ = ["Address", "Dialect", "ServerError", "complete", "dialect_of", "is_ready"]

_REASONS: Final = {"limit": "length", "length": "length", "eos": "stop", "word": "stop", "stop": "stop"}


class ServerError(Exception):
    """A server did not answer as it should.

    Attributes
    ----------
    code
        A code of `pylucebox.ab.validity.CODES`.
    """

    def __init__(self, code: str, seen: str) -> None:
        super().__init__(seen)
        self.code = code


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens.

    Attributes
    ----------
    host, port, base, tls
        Of its URL; `base` is the path that all others are appended to.
    """

    host: str
    port: int
    base: str = ""
    tls: bool = False

    @classmethod
    def from_url(cls, url: str) -> Address:
        """Read a URL; a trailing ``/v1`` is dropped, because it is part of the paths that are asked for.

        Raises
        ------
        ValueError
            It is no http or https URL.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http or https URL")
        tls = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, parts.port or (443 if tls else 80), base, tls)

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a connection that is not open yet."""
        kind = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout_s)


def _get(address: Address, path: str, timeout_s: float) -> tuple[int, bytes]:
    connection = address.connect(timeout_s)
    try:
        connection.request("GET", address.base + path)
        with connection.getresponse() as reply:
            return reply.status, reply.read()
    finally:
        connection.close()


def is_ready(address: Address, timeout_s: float) -> bool:
    """Tell whether the server can be asked: ``/health`` says so, or it has none and lists its models."""
    try:
        status, _ = _get(address, "/health", timeout_s)
        if status == 404:
            status, _ = _get(address, "/v1/models", timeout_s)
    except (OSError, http.client.HTTPException):
        return False
    return status == 200


@dataclass(frozen=True, slots=True)
class Dialect:
    """How completions are asked for.

    Attributes
    ----------
    path
        Of the request.
    body
        Makes the body of a request.
    """

    path: str
    body: Callable[[Request], dict[str, Any]]


def _native_body(request: Request) -> dict[str, Any]:
    body = {
        "prompt": request.prompt,
        "n_predict": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "stop": list(request.stop),
        "stream": True,
        "return_tokens": True,
        "cache_prompt": False,
    }
    return body | _filters(request)


def _openai_body(model: str | None) -> Callable[[Request], dict[str, Any]]:
    def body(request: Request) -> dict[str, Any]:
        content: dict[str, Any] = {
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if model is not None:
            content["model"] = model
        if request.stop:
            content["stop"] = list(request.stop)
        return content | _filters(request)

    return body


def _filters(request: Request) -> dict[str, Any]:
    return {name: value for name in ("top_k", "top_p", "grammar") if (value := getattr(request, name)) is not None}


def dialect_of(address: Address, model: str | None, timeout_s: float) -> Dialect:
    """Find out how a server wants to be asked.

    Parameters
    ----------
    address
        A server that is ready.
    model
        Model name for the OpenAI form; None takes the first that the server lists, if it lists any.
    timeout_s
        Longest wait for an answer.

    Raises
    ------
    ServerError
        It cannot be reached.
    """
    try:
        status, content = _get(address, "/props", timeout_s)
        if status == 200 and "default_generation_settings" in _object(content):
            return Dialect("/completion", _native_body)
        if model is None:
            status, content = _get(address, "/v1/models", timeout_s)
            listed = _object(content).get("data") if status == 200 else None
            model = str(listed[0]["id"]) if listed else None
    except (OSError, http.client.HTTPException, KeyError, TypeError, IndexError) as error:
        raise ServerError("bad_reply", f"cannot ask what the server is: {_words(error)}") from error
    return Dialect("/v1/completions", _openai_body(model))


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@dataclass
class _Collected:
    """What has come of one completion."""

    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    has_ids: bool = True
    n_parts: int = 0
    arrivals: list[tuple[int, float]] = field(default_factory=list)
    reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    n_prompt: int | None = None

    def add(self, event: Mapping[str, Any], at_ms: float) -> None:
        """Take in one event of either dialect."""
        choices = event.get("choices")
        part = choices[0] if choices else event
        text = part.get("text") if choices else part.get("content")
        ids = part.get("token_ids") if choices else part.get("tokens")
        if text or ids:
            self.n_parts += 1
            self.text.append(text or "")
            if ids:
                self.ids += ids
            elif text:
                self.has_ids = False
            self.arrivals.append((len(self.ids) if self.has_ids else self.n_parts, at_ms))
        reason = part.get("finish_reason") or (part.get("stop_type") if part.get("stop") else None)
        if reason and reason != "none":
            self.reason = str(reason)
        for name, target in (("usage", self.usage), ("timings", self.timings)):
            target.update(event.get(name) or {})
        if "tokens_evaluated" in event:
            self.n_prompt = int(event["tokens_evaluated"])


def _events(reply: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a server-sent event stream."""
    while True:
        line = reply.readline()
        if not line:
            return
        name, _, value = line.partition(b":")
        if name != b"data":
            continue
        value = value.strip()
        if value == b"[DONE]":
            return
        try:
            event = json.loads(value)
        except ValueError:
            raise ServerError("bad_reply", f"an event is no JSON: {value[:80]!r}") from None
        if not isinstance(event, dict) or "error" in event:
            raise ServerError("bad_reply", f"the server answered {value[:200].decode('utf-8', 'replace')}")
        yield event


def complete(
    address: Address,
    dialect: Dialect,
    request: Request,
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[RawSequence, dict[str, Any]]:
    """Run one completion.

    Parameters
    ----------
    address, dialect
        The server.
    request
        What to generate; its `start_s` is the caller's business.
    timeout_s
        Longest silence.
    clock
        Seconds.

    Returns
    -------
    tuple
        The sequence, and the server's counts of drafts: ``num_draft_tokens`` and ``num_accepted_tokens``.

    Raises
    ------
    ServerError
        The server refused, broke off, fell silent, or said what cannot be used.
    """
    connection = address.connect(timeout_s)
    got = _Collected()
    begin = clock()
    try:
        body = json.dumps(dialect.body(request)).encode()
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        connection.request("POST", address.base + dialect.path, body, headers)
        with connection.getresponse() as reply:
            if reply.status != 200:
                seen = reply.read(500).decode("utf-8", "replace").strip()
                raise ServerError("bad_reply", f"status {reply.status}: {seen}")
            for event in _events(reply):
                got.add(event, 1000.0 * (clock() - begin))
    except socket.timeout as error:  # noqa: UP041 - the same class only from Python 3.10 on
        raise ServerError("timeout", f"silence for {timeout_s:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise ServerError("died", f"the connection broke: {_words(error)}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ServerError("bad_reply", f"an event has an unexpected form: {_words(error)}") from error
    finally:
        connection.close()
    if not got.reason:
        raise ServerError("died", f"the stream ended after {got.n_parts} parts without saying that it was complete")
    return _finished(request, got), _drafts(got.timings)


def _finished(request: Request, got: _Collected) -> RawSequence:
    ids = tuple(got.ids) if got.has_ids and got.ids else None
    told = got.usage.get("completion_tokens", got.timings.get("predicted_n"))
    n_tokens = len(ids) if ids is not None else int(told if told is not None else got.n_parts)
    arrivals = got.arrivals
    if ids is None and got.n_parts and n_tokens != got.n_parts:
        # Parts are not tokens: spread the tokens evenly over the parts that came.
        share = n_tokens / got.n_parts
        arrivals = [(max(1, math.floor(count * share)), at_ms) for count, at_ms in arrivals]
    n_cached = got.timings.get("cache_n")
    details = got.usage.get("prompt_tokens_details") or {}
    n_cached = details.get("cached_tokens") if n_cached is None else n_cached
    n_prompt = got.usage.get("prompt_tokens", got.n_prompt)
    n_prompt = request.n_prompt if n_prompt is None else n_prompt
    return RawSequence(
        n_prompt=int(n_prompt or 0),
        n_cached=None if n_cached is None else int(n_cached),
        n_tokens=n_tokens,
        finish_reason=_REASONS.get(got.reason, got.reason),
        token_ids=ids,
        text="".join(got.text),
        ttft_ms=arrivals[0][1] if arrivals else 0.0,
        prefill_ms=_number(got.timings.get("prompt_ms")),
        decode_ms=_number(got.timings.get("predicted_ms")),
        arrivals=tuple(arrivals),
    )


def _number(value: object) -> float | None:
    is_one = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if is_one and isinstance(value, (int, float)) else None


def _drafts(timings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "num_draft_tokens": int(timings.get("draft_n") or 0),
        "num_accepted_tokens": int(timings.get("draft_n_accepted") or 0),
    }
