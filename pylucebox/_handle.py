"""A native object that several owners and threads use, freed when the last of them is done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pylucebox import _ffi
from pylucebox._errors import ClosedError


class SharedHandle:
    """Counts the users of a native pointer and frees it after `close`, once nobody is inside ``with handle``.

    Parameters
    ----------
    pointer
        The native object.
    free
        Native function that closes it.
    what
        Name of the object for `ClosedError`.
    """

    def __init__(self, pointer: Any, free: Callable[[Any], None], what: str) -> None:
        self._pointer = pointer
        self._free = free
        self._what = what
        self._users = 1  # the owner, until close()
        self._closed = False
        # Reentrant: a collection may run a finaliser that closes this handle while the lock is held.
        self._lock = threading.RLock()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __enter__(self) -> Any:
        """Return the pointer, which stays valid until the matching exit.

        Raises
        ------
        ClosedError
            `close` was called, or the process was forked since.
        """
        _ffi.refuse_after_fork()
        with self._lock:
            if self._closed:
                raise ClosedError(what=self._what)
            self._users += 1
            return self._pointer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def close(self) -> None:
        """Let nobody in any more; frees the object now or when its last user leaves. Idempotent.

        In a forked process it does nothing: the lock may be held by a thread of the parent.
        """
        if _ffi.forked:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._drop()

    def _drop(self) -> None:
        if _ffi.forked:
            return
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._free(self._pointer)
