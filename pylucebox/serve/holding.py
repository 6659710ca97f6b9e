"""Answers for those who ask while no worker does: 503, with the reason and when to come back."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Holding", "unavailable"]

_MAX_CLIENTS: Final = 256  # more wait in the listener's queue
_REQUEST_S: Final = 2.0  # for the head of a request
_LINGER_S: Final = 1.0  # for what is still underway when the answer is out
_MAX_HEAD_BYTES: Final = 65536


def unavailable(message: str, retry_after_s: int, state: Mapping[str, object]) -> bytes:
    """Return a whole HTTP reply, with an error as OpenAI's clients read it."""
    error = {"message": message, "type": "unavailable_error", "code": 503}
    body = json.dumps({"error": error, **state}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\n"
        "Content-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Retry-After: {retry_after_s}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class _Client:
    until_s: float
    head: bytes = b""
    answered: bool = False


class Holding:
    """Accepts on the listeners while it is on, and answers everybody alike.

    Parameters
    ----------
    selector
        Where it waits, together with whoever else uses it; the data of its keys are methods to call with the socket.
    listeners
        Sockets that listen and do not block. Others may accept on them at the same time.
    reply
        Makes the reply.
    """

    def __init__(
        self, selector: selectors.BaseSelector, listeners: Sequence[socket.socket], reply: Callable[[], bytes]
    ) -> None:
        self._selector = selector
        self._listeners = listeners
        self._reply = reply
        self._clients: dict[socket.socket, _Client] = {}
        self._wanted = self._accepting = False

    def turn(self, *, on: bool) -> None:
        """Begin or stop to accept; who was accepted still gets the answer."""
        self._wanted = on
        self._update()

    def _update(self) -> None:
        on = self._wanted and len(self._clients) < _MAX_CLIENTS
        if on != self._accepting:
            self._accepting = on
            for listener in self._listeners:
                if on:
                    self._selector.register(listener, selectors.EVENT_READ, self._accept)
                else:
                    self._selector.unregister(listener)

    def due_s(self) -> float | None:
        """Return the time at which `sweep` has something to do, or None."""
        return min((client.until_s for client in self._clients.values()), default=None)

    def sweep(self) -> None:
        """Answer or leave those whose time is up."""
        now_s = time.monotonic()
        for client, state in list(self._clients.items()):
            if now_s >= state.until_s:
                if state.answered:
                    self._leave(client)
                else:
                    self._answer(client, state)

    def close(self) -> None:
        """Stop, and leave everybody."""
        self.turn(on=False)
        for client in list(self._clients):
            self._leave(client)

    def _accept(self, listener: Any) -> None:
        try:
            client, _ = listener.accept()
        except OSError:  # the worker took it, or it is gone
            return
        client.setblocking(False)
        self._clients[client] = _Client(time.monotonic() + _REQUEST_S)
        self._selector.register(client, selectors.EVENT_READ, self._read)
        self._update()

    def _read(self, client: Any) -> None:
        state = self._clients[client]
        try:
            data = client.recv(_MAX_HEAD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave(client)
        elif not state.answered:
            state.head += data
            if b"\r\n\r\n" in state.head or len(state.head) >= _MAX_HEAD_BYTES:
                self._answer(client, state)

    def _answer(self, client: socket.socket, state: _Client) -> None:
        # It fits into the socket's buffer. Closing with a body half read would reset the connection, and the client
        # might not see the answer: so read on for a while.
        state.answered = True
        state.until_s = time.monotonic() + _LINGER_S
        try:
            client.send(self._reply())
            client.shutdown(socket.SHUT_WR)
        except OSError:
            self._leave(client)

    def _leave(self, client: socket.socket) -> None:
        del self._clients[client]
        self._selector.unregister(client)
        client.close()
        self._update()
