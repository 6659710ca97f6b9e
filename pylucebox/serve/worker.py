"""The process that serves: upstream's server, its width policies, and the line to the supervisor.

``python -m pylucebox.serve.worker FD`` reads from the descriptor one line of JSON, a `Launch` with the descriptors of
the listening sockets, then commands. It sends lines of JSON: ``listening``, then ``ready``. When the line breaks the
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
from typing import IO, Any, Final

from pylucebox._errors import LuceboxError
from pylucebox._server_host import host_server
from pylucebox.serve import _native
from pylucebox.serve.policy import LIMIT_MS, PolicyHost, answer_events
from pylucebox.width import WidthPolicy, default_policy

__all__ = ["main", "serve"]

_POLL_S: Final = 0.05
_ASK_S: Final = 5.0
_SERVER: Final = b"Server: llama.cpp"  # its replies, apart from those of the supervisor on the same sockets


def serve(
    launch: Mapping[str, Any],
    *,
    make_policy: Callable[[], WidthPolicy] = default_policy,
    limit_ms: int = LIMIT_MS,
) -> int:
    """Serve until a signal, and return the exit code. Call it from the main thread, once in a process.

    Parameters
    ----------
    launch
        Fields of a `Launch`, and ``sockets``: descriptors that listen, if there are any.
    make_policy
        Makes the width policy of a slot, for a ``verify_width`` of 0.
    limit_ms
        Longest wait for an answer of a policy.

    Raises
    ------
    LibraryNotFoundError, BuildMismatchError
        The native library is missing or of another build.
    """
    lib = _native.library()
    adaptive = launch["verify_width"] == 0
    params = _native.PolicyParams(
        spec_json=json.dumps(launch["spec"]).encode(),
        policy_name=_name(make_policy).encode() if adaptive else None,
        verify_width=launch["verify_width"],
        max_width=launch["max_width"],
        require=launch["require"],
        limit_us=1000 * limit_ms,
    )
    lib.lucebox_server_policy_init(ctypes.byref(params))
    sockets = launch.get("sockets", ())
    lib.lucebox_server_use_sockets((ctypes.c_int32 * len(sockets))(*sockets), len(sockets))
    if adaptive:
        threading.Thread(
            target=answer_events, args=(lib, PolicyHost(make_policy)), name="width-policy", daemon=True
        ).start()
    return host_server(launch["arguments"])


def _name(make_policy: Callable[[], WidthPolicy]) -> str:
    return getattr(make_policy, "__name__", type(make_policy).__name__)


# ---- the line to the supervisor ----------------------------------------------------------------------------------


def _obey(commands: IO[bytes], lib: Any) -> None:
    """Do what the supervisor says until the line breaks."""
    with contextlib.suppress(OSError, ValueError):
        for line in commands:
            lib.lucebox_server_drain(int(1000 * json.loads(line)["drain_s"]))
    # Before the model is loaded the signal ends the process at once, later it ends the server in good order.
    os.kill(os.getpid(), signal.SIGTERM)


def _announce(line: socket.socket, launch: Mapping[str, Any]) -> None:
    """Tell the supervisor when the server listens and when it is ready."""
    seen: set[str] = set()
    while "ready" not in seen:
        status = _ask_health(launch)
        reached = [] if status is None else ["listening", "ready"] if status == 200 else ["listening"]
        for state in reached:
            if state not in seen:
                seen.add(state)
                try:
                    line.sendall(json.dumps({"state": state}).encode() + b"\n")
                except OSError:
                    return
        time.sleep(_POLL_S)


def _ask_health(launch: Mapping[str, Any]) -> int | None:
    """Return the status of this process's server; None if somebody else answered, or nobody."""
    request = f"GET {launch['prefix']}/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    listener = socket.socket(fileno=os.dup(launch["sockets"][0]))
    try:
        with contextlib.closing(socket.socket(listener.family, socket.SOCK_STREAM)) as plain:
            plain.settimeout(_ASK_S)
            plain.connect(_reachable(listener.getsockname()))
            link = _unverified().wrap_socket(plain) if launch["tls"] else plain
            link.sendall(request.encode())
            head = link.makefile("rb").read(4096)
    except OSError:
        return None
    finally:
        listener.close()
    return int(head.split(None, 2)[1]) if head.startswith(b"HTTP/1.1 ") and _SERVER in head else None


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
    line = socket.socket(fileno=int(sys.argv[1]))
    commands = line.makefile("rb")
    try:
        launch = json.loads(commands.readline())
        lib = _native.library()
        for target, arguments in ((_obey, (commands, lib)), (_announce, (line, launch))):
            threading.Thread(target=target, args=arguments, name=target.__name__, daemon=True).start()
        return serve(launch)
    except LuceboxError as error:
        print(f"lucebox-serve: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
