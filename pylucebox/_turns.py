"""One generation at a time on a session, which is clean before and after."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from pylucebox._errors import ClosedError, SequenceStateError
from pylucebox._session import Session


class Turns:
    """Gives out the session to one generation after the other.

    Parameters
    ----------
    session
        The session to give out.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._owner: int | None = None

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Wait for the session and hold it. Sequences and abort flag are reset before and after.

        Raises
        ------
        SequenceStateError
            This thread holds it already: a stream is open, and waiting for it would never end.
        ClosedError
            The session is closed.
        """
        # An interrupt may leave a stale owner behind, but the lock is always released, so it is asked first.
        if self._lock.locked() and self._owner == threading.get_ident():
            raise SequenceStateError(
                "this thread has a stream of this engine open", advice="Finish or close the stream first."
            )
        with self._lock:
            self._owner = threading.get_ident()
            self._reset()
            try:
                yield
            finally:
                with contextlib.suppress(ClosedError):
                    self._reset()

    def _reset(self) -> None:
        # An abort holds until it is taken back; one that came when nothing ran must not end the next generation.
        self._session.abort_reset()
        for seq in range(self._session.n_seq):
            self._session.clear(seq)
