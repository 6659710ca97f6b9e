"""Keeps a worker running: starts it, starts it again, passes signals on, and owns the port all the while."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import IO, Any, Final

from pylucebox._errors import LuceboxError
from pylucebox.serve.flags import ServeFlags, without_owned_variables
from pylucebox.serve.holding import Holding, unavailable
from pylucebox.serve.launch import Launch, plan_launch
from pylucebox.serve.listen import close_all, open_listeners, url_of
from pylucebox.serve.notify import Notifier
from pylucebox.serve.restarts import Ended, Restarts, exit_code_of
from pylucebox.serve.tui import LiveView

__all__ = ["Supervisor", "supervise"]

_log = logging.getLogger("pylucebox.serve")

_RETRY_AFTER_S: Final = 3
_PATIENCE_S: Final = 5.0  # after the time to drain, before the worker is killed
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def supervise(flags: ServeFlags, notifier: Notifier) -> int:
    """Serve until a signal, or until the worker cannot be kept running, and return the exit code.

    Raises
    ------
    LuceboxError
        The model or its MTP file cannot be used, or an address cannot be listened on.
    """
    plan_launch(flags, flags.port)  # what is wrong with the files is said before anything is opened
    listeners = open_listeners(flags.hosts, flags.port)
    try:
        with Supervisor(flags, listeners, notifier) as supervisor, _shown(flags, supervisor):
            return supervisor.run()
    finally:
        close_all(listeners)


@contextlib.contextmanager
def _shown(flags: ServeFlags, supervisor: Supervisor) -> Iterator[None]:
    """Draw a live view while the supervisor runs, if it is asked for."""
    if not flags.tui:
        yield
        return
    from rich.console import Console  # noqa: PLC0415 - only with --tui

    headers = {"Authorization": f"Bearer {flags.api_key}"} if flags.api_key else {}
    view = LiveView(Console(stderr=True), supervisor.url + flags.prefix, supervisor.state, headers)
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, [view.handler()]
    supervisor.follow_log = view.follow
    try:
        with view:
            yield
    finally:
        root.handlers = handlers


class Supervisor:
    """One worker at a time, and what happens between two.

    Parameters
    ----------
    flags
        The command line.
    listeners
        Sockets that listen.
    notifier
        The service manager.
    """

    def __init__(self, flags: ServeFlags, listeners: Sequence[socket.socket], notifier: Notifier) -> None:
        self._flags = flags
        self._listeners = listeners
        self._notifier = notifier
        address = listeners[0].getsockname()
        self._port: int = address[1] if isinstance(address, tuple) else flags.port
        self._selector = selectors.DefaultSelector()
        self._holding = Holding(self._selector, listeners, self._unavailable)
        self._restarts = Restarts(may_do_without_drafts=flags.spec == "auto")

        self._launch: Launch | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._received = b""
        self._state = "starting"  # starting, loading, ready, waiting, stopping
        self._ready_s: float | None = None  # since when
        self._start_s: float | None = 0.0  # when to start the next worker
        self._kill_s: float | None = None  # when a worker that does not end is made to
        self._n_starts = 0
        self._failed = ""  # how the start with drafts ended
        self._exit_code: int | None = None
        self._n_signals = 0
        self._old_handlers: dict[int, Any] = {}
        self.follow_log: Callable[[IO[bytes]], None] | None = None  # takes what a worker prints

    @property
    def url(self) -> str:
        """Where the server is reached at its first address."""
        return url_of(self._flags.hosts[0], self._listeners[0])

    def state(self) -> tuple[str, int | None]:
        """Return what there is to say of the worker, and its process."""
        again = f", started {self._n_starts} times" if self._n_starts > 1 else ""
        worker = self._worker
        return self._state + again, None if worker is None else worker.pid

    # ---- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Supervisor:
        """Take the signals over."""
        self._wake, write = socket.socketpair()
        self._write = write
        for end in (self._wake, write):
            end.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, self._on_signals)
        self._old_wakeup = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            self._old_handlers[number] = signal.signal(number, _wake_up)
        if self._flags.until_eof:
            self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._on_stdin)
        return self

    def __exit__(self, *_: object) -> None:
        """Give them back; a worker that still runs is killed."""
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        if self._worker is not None and self._worker.poll() is None:
            self._worker.kill()
            self._worker.wait()
        self._holding.close()
        self._hang_up()
        self._selector.close()
        self._wake.close()
        self._write.close()

    def run(self) -> int:
        """Serve, and return the exit code."""
        self._holding.turn(on=not self._flags.tls)  # TLS clients could not read the answer: they wait
        while self._exit_code is None:
            self._do_what_is_due()
            for key, _ in self._selector.select(self._pause_s()):
                key.data(key.fileobj)
        self._notifier.send("STOPPING=1")
        return self._exit_code

    def _pause_s(self) -> float | None:
        if self._exit_code is not None:
            return 0.0
        due = [time_s for time_s in (self._start_s, self._kill_s, self._holding.due_s()) if time_s is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _do_what_is_due(self) -> None:
        now_s = time.monotonic()
        if self._start_s is not None and now_s >= self._start_s:
            self._start_s = None
            self._start()
        if self._kill_s is not None and now_s >= self._kill_s and self._worker is not None:
            _log.warning("the server does not end; it is killed")
            self._kill_s = None
            self._worker.kill()
        self._holding.sweep()

    # ---- the worker ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        try:
            launch = plan_launch(self._flags, self._port, failed=self._failed)
        except LuceboxError as error:  # files can change while a server runs
            _log.error("%s", error)
            self._exit_code = 1
            return
        self._launch = launch
        ours, theirs = socket.socketpair()
        descriptors = [listener.fileno() for listener in self._listeners]
        try:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "pylucebox.serve.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno(), *descriptors],
                env=without_owned_variables(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=None if self.follow_log is None else subprocess.PIPE,
                stderr=None if self.follow_log is None else subprocess.STDOUT,
                start_new_session=True,  # a terminal's Ctrl-C goes to the supervisor alone
            )
        finally:
            theirs.close()
        if self.follow_log is not None and self._worker.stdout is not None:
            self.follow_log(self._worker.stdout)
        self._line, self._received = ours, b""
        ours.sendall(json.dumps({**launch.as_dict(), "sockets": descriptors}).encode() + b"\n")
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, self._on_line)
        self._n_starts += 1
        self._enter("starting")
        spec = launch.spec
        _log.info("drafts: %s (%s)", spec["reason"], spec["reason_code"])

    def _on_line(self, line: Any) -> None:
        try:
            data = line.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up()
            return
        *messages, self._received = (self._received + data).split(b"\n")
        for message in messages:
            self._on_state(json.loads(message)["state"])

    def _on_state(self, state: str) -> None:
        if self._state == "stopping":
            return
        if state == "listening":
            self._enter("loading")
            self._tell(go=True)
        elif state == "ready":
            self._ready_s = time.monotonic()
            self._enter("ready")
            urls = ", ".join(url_of(*pair) for pair in zip(self._flags.hosts, self._listeners, strict=True))
            _log.info("ready at %s", urls)
            self._notifier.send("READY=1", f"STATUS=ready at {urls}", f"MAINPID={os.getpid()}")

    def _enter(self, state: str) -> None:
        self._state = state
        # The worker answers for itself as soon as it may accept.
        self._holding.turn(on=state in ("starting", "waiting") and not self._flags.tls)
        if state != "ready":
            self._notifier.send(f"STATUS={state}")

    def _tell(self, **command: object) -> None:
        if self._line is not None:
            with contextlib.suppress(OSError):  # its end is noticed in another way
                self._line.sendall(json.dumps(command).encode() + b"\n")

    def _hang_up(self) -> None:
        if self._line is not None:
            self._selector.unregister(self._line)
            self._line.close()
            self._line = None

    def _on_end(self, code: int) -> None:
        assert self._launch is not None
        if self._line is not None:
            self._on_line(self._line)  # its last words may say that it was ready
        self._worker = None
        self._kill_s = None
        self._hang_up()
        listened = self._state in ("loading", "ready")
        served_s = None if self._ready_s is None else time.monotonic() - self._ready_s
        self._ready_s = None
        ended = Ended(code=code, listened=listened, served_s=served_s, drafts=self._launch.drafts)
        if self._state == "stopping":
            # the signals that it was sent are no failure of it
            self._exit_code = 0 if code in (0, -signal.SIGTERM) else exit_code_of(code)
            return
        verdict = self._restarts.after(ended)
        if verdict.delay_s is None:
            level = logging.ERROR if verdict.exit_code else logging.INFO
            _log.log(level, "the server %s", ended)
            self._exit_code = verdict.exit_code
            return
        for listener in self._listeners:  # a server that ends in good order has shut them down
            with contextlib.suppress(OSError):
                listener.listen(socket.SOMAXCONN)
        self._failed = str(ended) if verdict.without_drafts else self._failed if served_s is None else ""
        how = "without drafts" if verdict.without_drafts else f"in {verdict.delay_s:g} s"
        _log.warning("the server %s; it is started again %s", ended, how)
        self._start_s = time.monotonic() + verdict.delay_s
        self._enter("waiting")

    # ---- signals ---------------------------------------------------------------------------------------------

    def _on_signals(self, wake: Any) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in wake.recv(4096):
                if number in (signal.SIGTERM, signal.SIGINT):
                    self._stop()
        self._reap()

    def _on_stdin(self, descriptor: Any) -> None:
        if not os.read(descriptor, 65536):
            self._selector.unregister(descriptor)
            self._stop()

    def _reap(self) -> None:
        """Take notice of a worker that ended, and as process 1 of children that others left behind."""
        if self._worker is not None and self._worker.poll() is not None:
            self._on_end(self._worker.returncode)
        worker = self._worker.pid if self._worker is not None else None
        if os.getpid() == 1:
            _reap_orphans(worker)

    def _stop(self) -> None:
        self._n_signals += 1
        if self._worker is None:
            self._exit_code = 0
            return
        if self._n_signals > 1:
            _log.warning("told twice to end: the server is killed")
            self._worker.kill()
            return
        ready = self._state == "ready"
        self._enter("stopping")
        self._notifier.send("STOPPING=1")
        if ready:
            _log.info("ending: running requests have %g s", self._flags.drain_s)
        else:
            _log.info("ending")
        # Also a worker that has not said yet that it is ready: the word may be on its way, and requests with it.
        self._tell(drain_s=self._flags.drain_s)
        self._kill_s = time.monotonic() + (self._flags.drain_s if ready else 0) + _PATIENCE_S

    # ---- answers while there is no worker --------------------------------------------------------------------

    def _unavailable(self) -> bytes:
        wait_s = _RETRY_AFTER_S
        if self._state == "waiting" and self._start_s is not None:
            wait_s += int(max(0.0, self._start_s - time.monotonic()))
        message = "The server is starting" if self._n_starts < 2 else "The server is starting again"
        spec = {} if self._launch is None else {"speculative": dict(self._launch.spec)}
        return unavailable(message, wait_s, {"status": self._state, "restarts": max(0, self._n_starts - 1), **spec})


def _wake_up(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the number arrives through the wake-up descriptor."""


def _reap_orphans(worker: int | None) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == worker:  # the worker is left to its own object
                return
            os.waitid(os.P_PID, found.si_pid, os.WEXITED | os.WNOHANG)
