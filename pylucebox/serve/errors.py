"""Errors of `lucebox-serve`; the root of all is `LuceboxError`."""

from __future__ import annotations

from collections.abc import Iterable

from pylucebox._errors import LuceboxError

__all__ = ["ListenError"]


class ListenError(LuceboxError, OSError):
    """A server cannot listen on an address.

    Attributes
    ----------
    address
        The address.
    """

    def __init__(self, *, address: str, seen: str, advice: str | None = None, native_log: Iterable[str] = ()) -> None:
        self.address = address
        super().__init__(f"cannot listen on {address!r}", seen=seen, advice=advice, native_log=native_log)
