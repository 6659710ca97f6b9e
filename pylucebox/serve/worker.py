"""The process that serves: upstream's server, its width policies, and the line to the supervisor.

``python -m pylucebox.serve.worker FD`` reads lines of JSON from the descriptor: first a `Launch` with the descriptors
of the listening sockets, then commands. It sends ``listening`` when it is about to accept, and does so when the
supervisor has said ``go``, so that they never accept at the same time; then ``ready``. When the line breaks the
supervisor is gone, and the worker ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from pylucebox._errors import LibraryNotFoundError, LuceboxError
from pylucebox._server_host import host_server
from pylucebox._session_options import DEFAULT_KEPT_GRAPHS
from pylucebox.calibration import default_store
from pylucebox.serve import _native
from pylucebox.serve.costs import ServerCosts, server_cost_key
from pylucebox.serve.drafting import ids_of
from pylucebox.serve.page import page_flags
from pylucebox.serve.policy import AT_ONCE, LIMIT_MS, WAIT_US, PolicyHost, answer_events
from pylucebox.width import AdaptiveWidth, WidthPolicy

__all__ = ["main", "serve"]

_POLL_S: Final = 0.05
_ASK_S: Final = 5.0


def serve(
    launch: Mapping[str, Any],
    *,
    make_policy: Callable[[], WidthPolicy] = AdaptiveWidth,
    limit_ms: int = LIMIT_MS,
    wait_us: int = WAIT_US,
    at_once: tuple[type, ...] = AT_ONCE,
    before_accept: Callable[[], None] = lambda: None,
) -> int:
    """Serve until a signal, and return the exit code. Call it from the main thread, once in a process.

    Parameters
    ----------
    launch
        Fields of a `Launch`, and ``sockets``: descriptors that listen, or none to bind addresses.
    make_policy
        Makes the width policy, for a ``verify_width`` of 0.
    limit_ms
        Without an answer of the policy for so long there are no drafts.
    wait_us
        Passes wait for so long for the policy on average, or for a 500th of their time.
    at_once
        Types of policies that are known to answer within microseconds, see `PolicyHost`.
    before_accept
        Called before the first connection is accepted on `sockets`.

    Raises
    ------
    LibraryNotFoundError, BuildMismatchError
        The native library is missing or of another build.
    """
    lib = _native.Library()
    # the default of requests and of the flag: in a variable, since llama.cpp without that patch would refuse a flag
    os.environ.setdefault("LLAMA_ARG_SAMPLER_RNG", "gumbel")
    adaptive = launch["verify_width"] == 0
    params = _native.PolicyParams(
        spec_json=json.dumps(launch["spec"]).encode(),
        policy_name=_name(make_policy).encode() if adaptive else None,
        verify_width=launch["verify_width"],
        max_width=launch["max_width"],
        require=launch["require"],
        even_drafts=launch["even_drafts"],
        limit_us=1000 * limit_ms,
        wait_us=wait_us,
    )
    lib.policy_init(ctypes.byref(params))
    costs = None
    if launch["drafter"] is not None:
        takes_costs = adaptive and hasattr(make_policy, "load_costs")
        costs = _server_costs(lib, launch) if takes_costs else None
        if not _use_drafter(lib, launch["drafter"], measure=costs is not None and not costs.stored):
            costs = None
    callback = _native.BeforeAccept(before_accept)  # lives as long as the server does
    sockets = launch["sockets"]
    if sockets:
        lib.use_sockets((ctypes.c_int32 * len(sockets))(*sockets), len(sockets), callback)
    if adaptive:
        host = PolicyHost(make_policy, dict if costs is None else costs.find, at_once)
        _start(answer_events, lib, host, _is_ours, name="width-policy")
    page = page_flags(launch["arguments"], os.environ, built_in=bool(lib.has_page()))
    return host_server([*launch["arguments"], *page])


def _server_costs(lib: _native.Library, launch: Mapping[str, Any]) -> ServerCosts:
    n_draft_vocab = sum(end - first for first, end in launch["drafter"]["draft_ids"])
    key = server_cost_key(launch["arguments"], os.environ, launch["files"], n_draft_vocab)
    return ServerCosts(lib, key, default_store())


def _use_drafter(lib: _native.Library, plan: Mapping[str, Any], *, measure: bool) -> bool:
    """Let the server draft with the engine's drafter; return False if it was built without the patch for that."""
    ids = ids_of(plan["draft_ids"])
    params = _native.DrafterParams(
        draft_ids=(ctypes.c_int32 * len(ids))(*ids),
        n_draft_ids=len(ids),
        covers_part=plan["covers_part"],
        head=_table(plan["head"]),
        embd=_table(plan["embedding"]),
        draft_chain=True,
        n_kept_graphs=DEFAULT_KEPT_GRAPHS,
        measure=measure,
    )
    try:
        lib.use_drafter(ctypes.byref(params))
    except LibraryNotFoundError:
        return False
    return True


def _table(place: Mapping[str, Any]) -> _native.Table:
    path = os.fsencode(place["path"]) or None
    return _native.Table(path=path, offset=place["offset"], n_bytes=place["n_bytes"], type=place["ggml_type"])


def _name(make_policy: Callable[[], WidthPolicy]) -> str:
    return getattr(make_policy, "__name__", type(make_policy).__name__)


_ours: Final = [threading.main_thread()]
"""Threads of the server that run Python, none of them for long."""


def _start(target: Callable[..., None], *arguments: Any, name: str) -> None:
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    _ours.append(thread)
    thread.start()


def _is_ours(thread: int) -> bool:
    return any(one.ident == thread for one in _ours)


class _Line:
    """The worker's end of the line to the supervisor."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("rb")
        self.launch: dict[str, Any] = json.loads(self._lines.readline())
        self._may_accept = threading.Event()
        self._listens = self._is_ready = False

    def start(self, lib: _native.Library) -> None:
        """Do from now on what the supervisor says."""
        _start(self._obey, lib, name="supervisor")

    def before_accept(self) -> None:
        """Let the supervisor stop to accept, and look from then on whether the server is ready."""
        self._say("listening")
        self._may_accept.wait(_ASK_S)
        self._listens = True
        _start(self._announce, name="readiness")

    def _say(self, state: str) -> None:
        with contextlib.suppress(OSError):  # the other thread notices as well that nobody hears it
            self._socket.sendall(json.dumps({"state": state}).encode() + b"\n")

    def _obey(self, lib: _native.Library) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                command = json.loads(line)
                if "drain_s" in command:
                    self._end(lib, command["drain_s"])
                else:
                    self._may_accept.set()
        self._may_accept.set()
        self._end(lib, 0)

    def _end(self, lib: _native.Library, within_s: float) -> None:
        try:
            # requests may run already that the other thread has not seen begin
            if self._is_ready or (self._listens and ask_health(self.launch) == HTTPStatus.OK):
                lib.drain(int(1000 * within_s))
                return
        except LibraryNotFoundError:  # without that patch it ends at once
            pass
        os.kill(os.getpid(), signal.SIGTERM)  # while it loads there is nothing to end in good order

    def _announce(self) -> None:
        while ask_health(self.launch) != HTTPStatus.OK:
            time.sleep(_POLL_S)
        self._is_ready = True
        self._say("ready")


def ask_health(launch: Mapping[str, Any]) -> int | None:
    """Return the status with which the server answers, or None if it does not."""
    request = f"GET {launch['prefix']}/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    listener = socket.socket(fileno=os.dup(launch["sockets"][0]))
    try:
        with contextlib.closing(socket.socket(listener.family, socket.SOCK_STREAM)) as plain:
            plain.settimeout(_ASK_S)
            plain.connect(_reachable(listener.getsockname()))
            link = _unverified().wrap_socket(plain) if launch["tls"] else plain
            link.sendall(request.encode())
            head = link.recv(4096)
    except OSError:
        return None
    finally:
        listener.close()
    return int(head.split(None, 2)[1]) if head.startswith(b"HTTP/1.1 ") else None


def _reachable(address: Any) -> Any:
    if not isinstance(address, tuple):  # the path of a Unix socket
        return address
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0])
    return (host, *address[1:])


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()  # it asks itself whether it is there; nothing is trusted
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def main() -> int:
    """Serve as the supervisor says."""
    line = _Line(int(sys.argv[1]))
    try:
        line.start(_native.Library())
        return serve(line.launch, before_accept=line.before_accept)
    except LuceboxError as error:
        print(f"lucebox-serve: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
