"""Errors of comparisons; the root of all is `LuceboxError`."""

from __future__ import annotations

import os
from collections.abc import Iterable

from pylucebox._errors import LuceboxError, StrPath, shown

__all__ = ["ArmError", "ComparisonError", "EnvironmentMismatchError", "SessionFileError"]


class ComparisonError(LuceboxError):
    """A comparison of `lucebox ab` cannot be started or cannot go on; what was measured so far is kept."""

    default_advice = "Mend the cause and go on with --resume."


class ArmError(ComparisonError):
    """An arm cannot be started or does not answer.

    Attributes
    ----------
    arm
        Its name.
    code
        Stable code, one of `pylucebox.ab.validity.CODES`.
    """

    def __init__(
        self, *, arm: str, code: str, seen: str, advice: str | None = None, native_log: Iterable[str] = ()
    ) -> None:
        self.arm = arm
        self.code = code
        super().__init__(f"arm {arm!r} failed ({code})", seen=seen, advice=advice, native_log=native_log)


class EnvironmentMismatchError(ComparisonError):
    """Two sessions, or the two parts of a resumed one, were not measured under the same conditions.

    Attributes
    ----------
    differences
        Each field that differs, with its old and new value.
    """

    default_advice = "Measure both again under the same conditions."

    def __init__(
        self,
        failed: str = "the environments differ",
        *,
        differences: Iterable[tuple[str, object, object]],
        advice: str | None = None,
    ) -> None:
        self.differences = tuple(differences)
        seen = "; ".join(f"{field} was {shown(old)} and is {shown(new)}" for field, old, new in self.differences)
        super().__init__(failed, seen=seen, advice=advice)


class SessionFileError(ComparisonError, OSError):
    """A file of a session cannot be read or written.

    Attributes
    ----------
    path
        The file.
    """

    def __init__(self, failed: str, *, path: StrPath, seen: str = "", advice: str | None = None) -> None:
        self.path = os.fspath(path)
        super().__init__(f"{failed} {self.path!r}", seen=seen, advice=advice)
