"""Answers while no worker does, and the sockets they come from."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylucebox.serve.errors import ListenError
from pylucebox.serve.holding import Holding, unavailable
from pylucebox.serve.listen import close_all, open_listeners, url_of
from pylucebox.serve.notify import Notifier


@pytest.fixture
def port() -> Iterator[int]:
    """Port that is answered on a thread."""
    listeners = open_listeners(["127.0.0.1"], 0)
    selector = selectors.DefaultSelector()
    holding = Holding(selector, listeners, lambda: unavailable("Loading", 3, {"status": "starting"}))
    over = threading.Event()

    def answer() -> None:
        holding.turn(on=True)
        while not over.is_set():
            for key, _ in selector.select(0.01):
                key.data(key.fileobj)
            holding.sweep()
        holding.close()

    thread = threading.Thread(target=answer)
    thread.start()
    yield listeners[0].getsockname()[1]
    over.set()
    thread.join()
    close_all(listeners)


def everything(link: socket.socket) -> bytes:
    link.settimeout(10)
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := link.recv(65536):
            data += piece
    return data


@pytest.mark.parametrize(
    "said",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /completion HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + 1_000_000 * b"x",
        b"\x16\x03\x01\r\n\r\n",
    ],
    ids=["get", "post", "nonsense"],
)
def test_everybody_is_told_to_come_back(port: int, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(said)
        head, _, body = everything(link).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 3" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body) == {
        "error": {"message": "Loading", "type": "unavailable_error", "code": 503},
        "status": "starting",
    }


def test_client_that_says_nothing_is_answered_too(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        assert everything(link).startswith(b"HTTP/1.1 503 ")


def test_clients_that_leave_do_no_harm(port: int) -> None:
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.sendall(b"GET /")
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"503" in everything(link)


def test_port_that_is_taken() -> None:
    first = open_listeners(["127.0.0.1"], 0)
    port = first[0].getsockname()[1]
    with pytest.raises(ListenError) as caught:
        open_listeners(["127.0.0.1"], port)
    assert caught.value.address == f"127.0.0.1:{port}"
    assert "--port" in str(caught.value)
    assert url_of("127.0.0.1", first[0]) == f"http://127.0.0.1:{port}"
    close_all(first)
    close_all(open_listeners(["127.0.0.1"], port))


def test_socket_file_of_a_server_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as old:
        old.bind(str(path))
    listeners = open_listeners([str(path)], 0)
    with pytest.raises(ListenError):
        open_listeners([str(path)], 0)
    close_all(listeners)
    assert not path.exists()
    path.write_text("a file of somebody", encoding="utf-8")
    with pytest.raises(ListenError):
        open_listeners([str(path)], 0)
    assert path.read_text("utf-8") == "a file of somebody"


def test_name_that_leads_nowhere() -> None:
    with pytest.raises(ListenError):
        open_listeners(["no.such.host.invalid"], 80)


def test_service_manager(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        notifier = Notifier(environment)
        assert environment == {}
        notifier.send("READY=1", "STATUS=ready")
        assert manager.recv(1000) == b"READY=1\nSTATUS=ready"
    notifier.send("STOPPING=1")  # it is gone
    Notifier({}).send("READY=1")
