"""`lucebox-serve` under many clients at once, and for long: nothing grows, and what is refused is refused in words."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from _server import Serve, StartServe

LONG = {"prompt": "def add(a, b):", "n_predict": 1500, "temperature": 0, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server(serve: StartServe, demo_model: Path) -> Serve:
    # without the cache of old prompts, which may grow to what --cache-ram says
    return serve(demo_model, "--ctx-size", 2048, "--parallel", 4, "--cache-ram", 0)


class Held:
    """What a worker and its supervisor hold."""

    def __init__(self, server: Serve) -> None:
        self.processes = (server.process.pid, server.worker())

    def descriptors(self) -> int:
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.processes)

    def threads(self) -> int:
        return sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in self.processes)

    def memory_bytes(self) -> int:
        def resident(pid: int) -> int:
            return 1024 * int(Path(f"/proc/{pid}/status").read_text("ascii").split("VmRSS:")[1].split()[0])

        return sum(map(resident, self.processes))


def wait_until(what: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def idle(server: Serve) -> bool:
    return not any(slot["is_processing"] for slot in server.get("/slots"))


def together(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def request_of(**body: object) -> bytes:
    data = json.dumps(body).encode()
    return f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


# ---- clients that leave ------------------------------------------------------------------------------------------


def crowd(server: Serve, n_clients: int, seed: int) -> None:
    """Let clients come and leave at random moments: within the request, before the reply, within it, or at its end."""
    dice = random.Random(seed)
    wanted = server.complete("The sum is", n_predict=64)["tokens"]
    served: list[bool] = []

    def leave(share: float, wait_s: float, verify_width: int) -> None:
        raw = request_of(**LONG, verify_width=verify_width)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=60) as link:
            link.sendall(raw[: int(share * len(raw))])
            time.sleep(wait_s)
            if dice.random() < 0.5:  # reset instead of an orderly end
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")

    def stay() -> None:
        served.append(server.complete("The sum is", n_predict=64)["tokens"] == wanted)

    calls: list[Callable[[], None]] = []
    for number in range(n_clients):
        share, wait_s, width = dice.choice([0.3, 1, 1, 1]), dice.random() / 2, dice.choice([0, 1, 5])
        calls.append(lambda share=share, wait_s=wait_s, width=width: leave(share, wait_s, width))
        if number % 10 == 0:
            calls.append(stay)
    together(calls)
    assert served == [True] * len(served) != []
    wait_until(lambda: idle(server))


def test_clients_that_leave_at_random(server: Serve) -> None:
    crowd(server, 20, seed=1)  # threads and buffers come to be
    held = Held(server)
    before = held.descriptors()
    crowd(server, 60, seed=2)
    wait_until(lambda: held.descriptors() <= before + 2)


@pytest.mark.soak
def test_two_hundred_clients_that_leave_at_random(server: Serve) -> None:
    crowd(server, 200, seed=3)
    held = Held(server)
    descriptors, memory = held.descriptors(), held.memory_bytes()
    for seed in range(4, 9):
        crowd(server, 200, seed)
    wait_until(lambda: held.descriptors() <= descriptors + 2)
    assert held.memory_bytes() - memory < 32 * 2**20


# ---- slow ones ---------------------------------------------------------------------------------------------------


def test_clients_that_read_nothing_hold_nobody_up(server: Serve) -> None:
    wanted = server.complete("The sum is", n_predict=32)["tokens"]
    with contextlib.ExitStack() as links:
        for _ in range(8):  # twice as many as there are slots; buffers are as small as they can be
            link = links.enter_context(contextlib.closing(socket.socket()))
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            link.connect(("127.0.0.1", server.port))
            link.sendall(request_of(**LONG, n_probs=10))
        assert server.complete("The sum is", n_predict=32)["tokens"] == wanted
    wait_until(lambda: idle(server))


def test_clients_that_write_nothing_hold_nobody_up(server: Serve) -> None:
    with contextlib.ExitStack() as links:
        for _ in range(100):
            link = links.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            link.sendall(b"POST /completion HTTP/1.1\r\nContent-Le")
        assert server.complete("a", n_predict=2)["tokens_predicted"] == 2


# ---- many --------------------------------------------------------------------------------------------------------


def short_requests(server: Serve, n_requests: int) -> None:
    """Send requests of all kinds, each over a connection of its own now and then."""
    kinds = [
        ("/completion", {"prompt": "a b", "n_predict": 2}, 200),
        ("/completion", {"prompt": "a b", "n_predict": 8, "verify_width": 5, "cache_prompt": False}, 200),
        ("/v1/completions", {"prompt": "a", "max_tokens": 2, "n": 2, "logprobs": 2}, 200),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": True},
            200,
        ),
        ("/completion", {"prompt": "a", "n_predict": 2, "grammar": 'root ::= "a"+'}, 200),
        ("/completion", {"prompt": "a", "grammar": "root ::= ("}, 400),
        ("/completion", {"prompt": {}}, 400),
        ("/v1/embeddings", {"input": "a"}, 501),
        ("/nowhere", {}, 404),
    ]
    link = server.connect()
    for number in range(n_requests):
        path, body, status = kinds[number % len(kinds)]
        link.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = link.getresponse()
        assert reply.status == status
        reply.read()
        if number % 50 == 49:
            link.close()
    link.close()


def test_short_requests_leave_nothing_behind(server: Serve) -> None:
    short_requests(server, 200)  # buffers grow to their size
    held = Held(server)
    memory, descriptors, threads = held.memory_bytes(), held.descriptors(), held.threads()
    short_requests(server, 400)
    assert held.memory_bytes() - memory < 8 * 2**20
    assert held.descriptors() <= descriptors + 2
    assert held.threads() <= threads + 2


@pytest.mark.soak
def test_ten_thousand_short_requests_leave_nothing_behind(server: Serve) -> None:
    short_requests(server, 2_000)
    held = Held(server)
    memory, descriptors, threads = held.memory_bytes(), held.descriptors(), held.threads()
    short_requests(server, 10_000)
    grown = held.memory_bytes() - memory
    print(f"10,000 requests: {grown / 2**20:+.1f} MiB, {held.descriptors() - descriptors:+d} descriptors")
    assert grown < 16 * 2**20
    assert held.descriptors() <= descriptors + 2
    assert held.threads() <= threads + 2


class Conversation:
    """A client that talks on until its context is nearly full, and loses patience now and then."""

    def __init__(self, server: Serve, seed: int) -> None:
        self.server = server
        self.dice = random.Random(seed)
        self.messages: list[dict[str, str]] = []
        self.n_left = self.n_finished = self.n_restarts = 0

    def turn(self) -> None:
        """Ask something, and read the reply or leave in the middle of it."""
        dice = self.dice
        words = " ".join(dice.choice(["sum", "of", "add", "the", "b"]) for _ in range(dice.choice([3, 10, 40])))
        body = {
            "messages": [*self.messages, {"role": "user", "content": words}],
            "max_tokens": dice.choice([8, 64, 160]),
            "temperature": dice.choice([0, 0.8]),
            "seed": dice.randrange(1000),
            "verify_width": dice.choice([0, 0, 0, 1, 4, 8]),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        n_events = dice.randrange(30) if dice.random() < 0.2 else None
        text, n_tokens = "", 0
        with contextlib.closing(self.server.connect()) as link:
            link.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            if n_events == 0:
                self.n_left += 1
                return
            reply = link.getresponse()
            assert reply.status == 200, reply.read()
            for line in iter(reply.readline, b""):
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                assert "error" not in event
                text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                n_tokens = event["usage"]["total_tokens"] if "usage" in event else n_tokens
                n_events = None if n_events is None else n_events - 1
                if n_events == 0:
                    self.n_left += 1
                    return
        assert n_tokens > 0
        self.n_finished += 1
        self.messages = [*body["messages"], {"role": "assistant", "content": text}]
        if n_tokens > 250:  # of the 512 that a slot has, with what may come next
            self.n_restarts += 1
            self.messages = []


def converse(
    server: Serve, n_turns: int, seconds: float = float("inf"), *, n_clients: int = 6, think_s: float = 0.0
) -> list[Conversation]:
    """Let more clients than there are slots talk for so many turns each, or for so long, and think about so long."""
    until = time.monotonic() + seconds
    clients = [Conversation(server, seed) for seed in range(n_clients)]
    failures: list[BaseException] = []

    def talk(client: Conversation) -> None:
        try:
            for _ in range(n_turns):
                if failures or time.monotonic() > until:
                    return
                client.turn()
                if think_s:
                    time.sleep(client.dice.uniform(0, 2 * think_s))
        except BaseException as error:
            failures.append(error)

    together([lambda client=client: talk(client) for client in clients])
    if failures:
        raise failures[0]
    wait_until(lambda: idle(server))
    return clients


def test_conversations_leave_nothing_behind(server: Serve) -> None:
    wanted = server.complete("The sum is", n_predict=64)["tokens"]
    converse(server, 6)
    held = Held(server)
    descriptors, threads = held.descriptors(), held.threads()
    clients = converse(server, 12)
    assert sum(client.n_left for client in clients) > 3
    assert sum(client.n_restarts for client in clients) > 3
    wait_until(lambda: held.descriptors() <= descriptors + 2)
    assert held.threads() <= threads + 2
    assert server.complete("The sum is", n_predict=64)["tokens"] == wanted


@pytest.mark.soak
def test_conversations_for_long_leave_nothing_behind(server: Serve) -> None:
    """Two hours of six people who talk and think come to some minutes without the thinking.

    `SOAK_SECONDS` in the environment says how long it takes, `SOAK_THINK_SECONDS` how long each thinks on average.
    """
    seconds = float(os.environ.get("SOAK_SECONDS", "300"))
    think_s = float(os.environ.get("SOAK_THINK_SECONDS", "0"))
    wanted = server.complete("The sum is", n_predict=64)["tokens"]
    converse(server, 10**9, seconds / 10, think_s=think_s)  # buffers grow to their size
    held = Held(server)
    memory, descriptors, threads = held.memory_bytes(), held.descriptors(), held.threads()
    seen = []
    n_replies = n_left = n_restarts = 0
    for _ in range(9):
        for client in converse(server, 10**9, seconds / 10, think_s=think_s):
            n_replies, n_left = n_replies + client.n_finished, n_left + client.n_left
            n_restarts += client.n_restarts
        wait_until(lambda: held.descriptors() <= descriptors + 2)
        seen.append(f"{(held.memory_bytes() - memory) / 2**20:+.1f}")
    print(
        f"{n_replies} replies, {n_left} broken off, {n_restarts} conversations; MiB since the start: {' '.join(seen)};"
        f" {held.descriptors() - descriptors:+d} descriptors, {held.threads() - threads:+d} threads"
    )
    assert held.memory_bytes() - memory < 32 * 2**20
    assert held.threads() <= threads + 2
    assert server.complete("The sum is", n_predict=64)["tokens"] == wanted


def test_connection_lasts_after_a_stream(server: Serve) -> None:
    with contextlib.closing(server.connect()) as link:
        for _ in range(3):
            body = {"prompt": "a", "n_predict": 3, "stream": True}
            link.request("POST", "/completion", json.dumps(body))
            place = link.sock
            assert b'"stop":true' in link.getresponse().read()
            assert link.sock is place is not None


# ---- the end, under load -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_under_load_breaks_no_reply_off(demo_model: Path, tmp_path: Path, number: signal.Signals) -> None:
    server = Serve(demo_model, tmp_path / "log", "--ctx-size", "2048", "--parallel", "2")
    ends = Counter[str]()

    def client() -> None:
        while True:
            try:
                status, reply = server.send(
                    "/completion", json.dumps({"prompt": "a", "n_predict": 60, "ignore_eos": True}).encode()
                )
            except ConnectionRefusedError:
                ends["refused"] += 1
                return
            except OSError as error:  # in the queue of the socket that was closed
                ends[type(error).__name__] += 1
                return
            if status == 503:
                assert json.loads(reply)["error"]["message"] == "Shutting down"
                ends["503"] += 1
                return
            assert (status, json.loads(reply)["tokens_predicted"]) == (200, 60)

    threads = [threading.Thread(target=client) for _ in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    server.process.send_signal(number)
    assert server.process.wait(40) == 0, server.log_text()
    for thread in threads:
        thread.join()
    assert sum(ends.values()) == 6
    assert set(ends) <= {"503", "refused", "ConnectionResetError", "RemoteDisconnected"}
