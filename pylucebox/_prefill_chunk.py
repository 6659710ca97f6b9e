"""How many prompt tokens are computed at once, where nobody says: what the memory of the device has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

from pylucebox._backends import Device
from pylucebox._errors import OutOfMemoryError
from pylucebox._session_options import SessionInfo

__all__ = ["DEFAULT_CHUNK", "LARGEST_CHUNK", "SMALLEST_CHUNK", "free_device_bytes", "open_with_chunk"]

DEFAULT_CHUNK: Final = 512
"""Upstream's default. A CPU gains nothing from more: at this size it computes, and does not wait for weights."""

LARGEST_CHUNK: Final = 2048
"""The most that is taken unasked on a GPU; a request can only be cancelled between chunks."""

SMALLEST_CHUNK: Final = 64
"""Where memory is too short for this, scratch memory of prefill is not what is missing."""

FREE_SHARE: Final = 0.5
"""Of the memory that is still free on the device, what larger chunks may take; the rest is other programs'."""


class _Sized(Protocol):
    """What is asked of a session."""

    info: SessionInfo

    @property
    def close(self) -> Callable[[], object]: ...


_S = TypeVar("_S", bound=_Sized)


def free_device_bytes(devices: Iterable[Device], device: str, n_gpu_layers: int) -> int | None:
    """Return the least free memory among the GPUs that compute the layers.

    Parameters
    ----------
    devices
        Those of this machine.
    device, n_gpu_layers
        As `Engine` takes them.

    Returns
    -------
    int or None
        None where a CPU computes, or a back end does not say what is free.
    """
    gpus = [one for one in devices if one.kind in ("gpu", "igpu") and device in ("auto", one.name)]
    if n_gpu_layers == 0 or not gpus:
        return None
    return min(one.memory_free_bytes for one in gpus) or None


def open_with_chunk(open_session: Callable[[int], _S], free_bytes: Callable[[], int | None]) -> _S:
    """Open a session with the largest chunk that its device has room for, `SMALLEST_CHUNK` to `LARGEST_CHUNK` tokens.

    On a CPU tokens and logits are the same with every chunk. A GPU adds up in an order that depends on how many tokens
    it computes at once, so there the same bytes need the same chunk. Scratch memory grows with the chunk, that of the
    MTP block included, and is measured on an open session of `DEFAULT_CHUNK`: the context and the widths of the model
    decide it as much.

    Parameters
    ----------
    open_session
        Opens a session with so many tokens at once.
    free_bytes
        Memory of the device that is free now; None keeps `DEFAULT_CHUNK`.

    Raises
    ------
    OutOfMemoryError
        There is not even room for `SMALLEST_CHUNK`.
    """
    session = _open_at_most(DEFAULT_CHUNK, open_session)
    info, room = session.info, free_bytes()
    if room is None or info.n_ubatch < DEFAULT_CHUNK:
        return session
    chunk = _larger_chunk(info, room)
    if chunk == DEFAULT_CHUNK:
        return session
    session.close()
    return _open_at_most(chunk, open_session)


def _larger_chunk(info: SessionInfo, room: int) -> int:
    """Return the largest chunk whose scratch memory beyond that of `info` is in the share of `room`."""
    scratch = info.compute_bytes + info.mtp_compute_bytes
    chunk = LARGEST_CHUNK
    while chunk > DEFAULT_CHUNK:
        # more tokens than a context holds are never computed at once
        if chunk <= info.n_ctx and scratch * (chunk // DEFAULT_CHUNK - 1) <= room * FREE_SHARE:
            break
        chunk //= 2
    return chunk


def _open_at_most(chunk: int, open_session: Callable[[int], _S]) -> _S:
    while True:
        try:
            return open_session(chunk)
        except OutOfMemoryError:
            if chunk <= SMALLEST_CHUNK:
                raise
            chunk //= 2
