"""What systemd is told of a service of ``Type=notify``."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping
from typing import Final

__all__ = ["Notifier"]

_VARIABLE: Final = "NOTIFY_SOCKET"


class Notifier:
    """Sends states to the service manager, if there is one that listens.

    Parameters
    ----------
    environment
        ``NOTIFY_SOCKET`` is taken out of it: the supervisor alone speaks for the service.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address = environment.pop(_VARIABLE, "")

    def send(self, *lines: str) -> None:
        """Send assignments such as ``READY=1``; a manager that is gone is no error."""
        if not self._address.startswith(("/", "@")):
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto("\n".join(lines).encode(), address)
