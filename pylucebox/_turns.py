"""One generation at a time on a session, which is clean before and after."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

from pylucebox import _ffi
from pylucebox._errors import ClosedError, SequenceStateError
from pylucebox._session import Session

_T = TypeVar("_T")


class Turns:
    """Gives out the session to one generation after the other.

    A generation may travel between threads, so it belongs to the thread that advanced it last. That thread cannot start
    another one before it is over; all other threads wait for their turn.

    Parameters
    ----------
    session
        The session to give out.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        # The thread itself: the number of one that has ended goes to another.
        self._owner: threading.Thread | None = None

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Wait for the session and hold it. Sequences and abort flag are reset before and after.

        Raises
        ------
        SequenceStateError
            This thread advanced the running generation last: waiting for a stream of one's own would never end.
        ClosedError
            The session is closed, or was opened before this process was forked.
        """
        _ffi.refuse_after_fork()  # the lock may have been held by a thread that is not in this process
        # An interrupt may leave a stale owner behind, but the lock is always released, so it is asked first.
        if self._lock.locked() and self._owner is threading.current_thread():
            raise SequenceStateError(
                "this thread has a stream of this engine open", advice="Finish or close the stream first."
            )
        with self._lock:
            self._owner = threading.current_thread()
            try:
                self._reset()
                yield
            finally:
                with contextlib.suppress(ClosedError):
                    self._reset()
                # Else this thread would seem to own the next turn, until that one has noted its thread.
                self._owner = None

    def follow(self, steps: Iterable[_T]) -> Iterator[_T]:
        """Yield `steps` of the generation that holds the session, which then belongs to the thread that asks."""
        for step in steps:
            yield step
            self._owner = threading.current_thread()

    def _reset(self) -> None:
        # An abort holds until it is taken back; one that came when nothing ran must not end the next generation.
        self._session.abort_reset()
        for seq in range(self._session.n_seq):
            self._session.clear(seq)
