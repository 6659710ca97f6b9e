"""`lucebox-serve --tui`: a live view of the server on the terminal, with the last lines of its log below."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from pylucebox.serve.figures import View, parse_metrics, view_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["LiveView", "render"]

_REFRESH_S: Final = 0.5
_ASK_S: Final = 2.0
_LOG_LINES: Final = 12
_MIB: Final = 2**20


def render(view: View, *, state: str, url: str, resident_bytes: int | None, log: Sequence[str]) -> RenderableType:
    """Draw a server at one moment.

    Parameters
    ----------
    view
        What it says of itself; an empty one while it does not answer.
    state
        What the supervisor says of it.
    url
        Where it is reached.
    resident_bytes
        Memory of its process, if known.
    log
        Last lines of its log.
    """
    from rich import box  # noqa: PLC0415 - only with --tui
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    speed = "-" if view.tokens_per_s is None else f"{view.tokens_per_s:.1f}"
    memory = "" if resident_bytes is None else f"   memory {resident_bytes / _MIB:.0f} MiB"
    head = Text(f"{state}   {url}   {speed} tok/s   {view.n_queued} waiting{memory}", style="bold")
    drafts = Text(f"drafts {'on' if view.effective else 'off'}: {view.reason}" if view.reason else "")
    if view.policy not in ("", "ok"):
        drafts.append(f"   policy: {view.policy}", style="bold yellow")

    slots = Table(box=box.SIMPLE_HEAD, title="slots", title_justify="left")
    for name in ("slot", "", "prompt", "reply"):
        slots.add_column(name, justify="right")
    for slot in view.slots:
        slots.add_row(str(slot.number), "busy" if slot.busy else "idle", str(slot.n_prompt), str(slot.n_generated))

    depths = Table(box=box.SIMPLE_HEAD, title="drafts by depth, passes by width", title_justify="left")
    for name in ("depth", "held %", "width", "passes"):
        depths.add_column(name, justify="right")
    for depth, n_passes in enumerate(view.passes_by_width):
        held = view.acceptance[depth - 1] if depth else None
        depths.add_row(
            str(depth) if depth else "", "" if held is None else f"{100 * held:.0f}", str(depth + 1), str(n_passes)
        )

    side_by_side = Table.grid(padding=(0, 4))
    side_by_side.add_row(slots, depths)
    return Group(head, drafts, side_by_side, *(Text(line, style="dim", no_wrap=True) for line in log))


class LiveView:
    """Asks the server and draws, on a thread of its own.

    Parameters
    ----------
    console
        Terminal to draw on.
    url
        Where the server is reached, with the prefix of its paths.
    state
        Returns what the supervisor says of it, and the worker's process if there is one.
    headers
        For each request, for example the API key.
    """

    def __init__(
        self,
        console: Console,
        url: str,
        state: Callable[[], tuple[str, int | None]],
        headers: dict[str, str],
    ) -> None:
        self._console = console
        self._url = url
        self._state = state
        self._headers = headers
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._view = View()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="tui", daemon=True)

    def __enter__(self) -> LiveView:
        """Begin to draw."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last picture on the terminal."""
        self._over.set()
        self._thread.join(2 * _ASK_S)

    def follow(self, stream: IO[bytes]) -> None:
        """Show the lines of a worker's log until it ends."""
        threading.Thread(target=self._read, args=(stream,), name="worker-log", daemon=True).start()

    def handler(self) -> logging.Handler:
        """Return a handler that shows the supervisor's own lines."""
        view = self

        class Show(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                view._log.append(self.format(record))

        return Show()

    def _read(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError), stream:
            for line in stream:
                self._log.append(line.decode(errors="replace").rstrip())

    def _draw(self) -> None:
        from rich.live import Live  # noqa: PLC0415 - only with --tui

        with Live(self._picture(), console=self._console, auto_refresh=False, transient=False) as live:
            while not self._over.wait(_REFRESH_S):
                self._view = self._ask()
                live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        state, worker = self._state()
        return render(
            self._view, state=state, url=self._url, resident_bytes=_resident_bytes(worker), log=tuple(self._log)
        )

    def _ask(self) -> View:
        """Return a new view, or an empty one while there is no answer."""
        address, slash, prefix = self._url.removeprefix("http://").partition("/")
        link = http.client.HTTPConnection(address, timeout=_ASK_S)
        try:
            paths = (f"{slash}{prefix}{path}" for path in ("/metrics", "/slots", "/health"))
            metrics, slots, health = (self._get(link, path) for path in paths)
            return view_of(
                parse_metrics(metrics.decode()),
                json.loads(slots),
                json.loads(health),
                time_s=time.monotonic(),
                before=self._view,
            )
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return View()
        finally:
            link.close()

    def _get(self, link: http.client.HTTPConnection, path: str) -> bytes:
        link.request("GET", path, headers=self._headers)
        reply = link.getresponse()
        body = reply.read()
        if reply.status != http.HTTPStatus.OK:
            raise http.client.HTTPException(path)
        return body


def _resident_bytes(process: int | None) -> int | None:
    try:
        status = Path(f"/proc/{process}/status").read_text("ascii")
        return 1024 * int(status.split("VmRSS:")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return None
