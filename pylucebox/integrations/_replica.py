"""One `lucebox-serve` and a way to it, as a replica of some framework has it. Needs aiohttp."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp

from pylucebox._errors import LuceboxError

__all__ = ["HOP_HEADERS", "Head", "ServeProcess", "ServeStartError", "passed_on"]

_POLL_S: Final = 0.1
_ASK_S: Final = 5.0
_LOG_TAIL: Final = 2000

HOP_HEADERS: Final = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that are about one connection, not about the request or the reply (RFC 9110, section 7.6.1)."""


class ServeStartError(LuceboxError, RuntimeError):
    """A `lucebox-serve` ended before it was ready.

    Attributes
    ----------
    exit_code
        How it ended; negative for a signal.
    """

    default_advice = "Run lucebox-serve with the same flags by hand."

    def __init__(self, *, exit_code: int, seen: str, advice: str | None = None) -> None:
        self.exit_code = exit_code
        super().__init__(f"lucebox-serve ended with {exit_code}", seen=seen, advice=advice)


@dataclass(frozen=True, slots=True)
class Head:
    """What comes before the body of a reply."""

    status: int
    headers: Mapping[str, str]


def passed_on(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers that go on to the next server."""
    return {name: value for name, value in headers if name.lower() not in HOP_HEADERS}


class ServeProcess:
    """`lucebox-serve` on a socket in a folder of its own.

    Parameters
    ----------
    flags
        Its command line, without ``--host`` and ``--port``.
    """

    def __init__(self, flags: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lucebox-")
        self._path = str(Path(self._folder.name) / "serve.sock")
        self._log = Path(self._folder.name) / "log"
        call = [sys.executable, "-m", "pylucebox.serve.main", *flags, "--host", self._path, "--until-eof"]
        with self._log.open("wb") as out:  # the pipe closes however this process ends
            self._process = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=out, stderr=out)
        self._session: aiohttp.ClientSession | None = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:  # it belongs to the loop that runs
            unlimited = aiohttp.ClientTimeout(total=None)
            connector = aiohttp.UnixConnector(self._path, limit=0)
            self._session = aiohttp.ClientSession(connector=connector, timeout=unlimited, auto_decompress=False)
        return self._session

    async def wait_ready(self) -> None:
        """Wait until the model is loaded.

        Raises
        ------
        ServeStartError
            It ended.
        """
        while not await self.is_healthy():
            code = self._process.poll()
            if code is not None:
                tail = self._log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
                raise ServeStartError(exit_code=code, seen=tail)
            await asyncio.sleep(_POLL_S)

    async def is_healthy(self) -> bool:
        """Tell whether it can take requests."""
        try:
            limit = aiohttp.ClientTimeout(total=_ASK_S)
            async with self._client().get("http://lucebox/health", timeout=limit) as reply:
                return bool(reply.status == HTTPStatus.OK)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> AsyncIterator[Head | bytes]:
        """Send a request and yield the head of the reply, then its body in pieces as they come.

        Whoever stops to take pieces, and closes this generator, cancels the request.

        Raises
        ------
        aiohttp.ClientError
            The server could not be reached, or its reply broke off.
        """
        client = self._client()
        async with client.request(
            method, f"http://lucebox{path}", headers=headers, data=body, allow_redirects=False
        ) as reply:
            yield Head(reply.status, passed_on(reply.headers.items()))
            async for piece in reply.content.iter_any():
                yield piece

    async def close(self) -> None:
        """Let running requests finish, as after SIGTERM, and end."""
        if self._process.poll() is None:
            self._process.terminate()
        while self._process.poll() is None:  # its own time limit is what ends this
            await asyncio.sleep(_POLL_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._session is not None:
            await self._session.close()
        self._folder.cleanup()
