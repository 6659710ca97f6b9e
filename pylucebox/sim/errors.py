"""Errors of traces; the root of all is `LuceboxError`."""

from __future__ import annotations

from pylucebox._errors import LoadError

__all__ = ["TraceFormatError"]


class TraceFormatError(LoadError, ValueError):
    """A file was read but is no trace that this version can replay."""

    default_advice = "Record it again with `lucebox trace`."
