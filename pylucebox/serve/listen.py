"""The sockets that a server is reached at. The supervisor owns them, so the port outlives the worker."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pylucebox.serve.errors import ListenError

__all__ = ["close_all", "open_listeners", "url_of"]

_BACKLOG: Final = 512  # connections that wait while a worker starts


def open_listeners(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Listen on each address, without blocking on accept.

    Parameters
    ----------
    hosts
        IP addresses, names, or paths that end in ``.sock``.
    port
        0 takes a free one; then there may be one address only.

    Raises
    ------
    ListenError
        An address is taken, is not this machine's, or cannot be listened on.
    """
    listeners: list[socket.socket] = []
    try:
        for host in hosts:
            listeners.append(_unix(host) if host.endswith(".sock") else _tcp(host, port, only_v6=len(hosts) > 1))
    except BaseException:
        close_all(listeners)
        raise
    return listeners


def close_all(listeners: Sequence[socket.socket]) -> None:
    """Close sockets and remove the files of those that have one."""
    for listener in listeners:
        name = listener.getsockname() if listener.family == socket.AF_UNIX else ""
        listener.close()
        if name:
            with contextlib.suppress(OSError):
                Path(os.fsdecode(name)).unlink()


def url_of(host: str, listener: socket.socket) -> str:
    """Return where a listener is reached."""
    if listener.family == socket.AF_UNIX:
        return f"unix://{host}"
    port = listener.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _tcp(host: str, port: int, *, only_v6: bool) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
    except (OSError, UnicodeError) as error:
        raise ListenError(address=host, seen=str(error), advice="Give an address of this machine.") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Only for a port whose last server ended moments ago; one that is listened on stays taken.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only_v6))
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _failure(f"{host}:{port}", error) from error
    return listener


def _unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_left_over(path):
            Path(path).unlink()
        listener.bind(path)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _failure(path, error) from error
    return listener


def _is_left_over(path: str) -> bool:
    """Tell whether a socket's file has nobody behind it."""
    try:
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _failure(address: str, error: OSError) -> ListenError:
    if error.errno == errno.EADDRINUSE:
        advice = "Another server listens there: give another --port, or --port 0 for a free one."
    elif error.errno == errno.EACCES:
        advice = "Ports below 1024 need a permission; give another --port."
    else:
        advice = "Give an address of this machine with --host."
    return ListenError(address=address, seen=error.strerror or str(error), advice=advice)
