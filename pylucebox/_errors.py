"""Every exception that pylucebox raises, under one root.

The builtin in brackets is a second base, so ordinary handlers such as ``except FileNotFoundError`` work too::

    LuceboxError                                never raised itself
    ├─ BuildError                               the installation is not in order
    │  ├─ BuildMismatchError                    .expected .found .path
    │  └─ LibraryNotFoundError (ImportError)    .searched
    ├─ BackendError
    │  ├─ BackendUnavailableError               .requested .available .reason
    │  └─ OutOfMemoryError (MemoryError)
    ├─ LoadError (OSError)                      .path
    │  ├─ ModelNotFoundError (FileNotFoundError)
    │  ├─ ModelFormatError (ValueError)
    │  ├─ SidecarNotFoundError (FileNotFoundError)   .looked_for
    │  ├─ SidecarMismatchError (ValueError)     .field .model_value .sidecar_value
    │  └─ TraceFormatError (ValueError)         in pylucebox/sim/errors.py
    ├─ WriteError (OSError)                     .path
    ├─ ListenError (OSError)                    .address; in pylucebox/serve/errors.py
    ├─ DecodeError
    │  ├─ ContextFullError                      .n_ctx .n_needed
    │  ├─ CancelledError
    │  ├─ RollbackError                         the sequence must be cleared
    │  ├─ SamplingError
    │  └─ SequenceStateError
    ├─ InvalidArgumentError (ValueError)        .argument .value .allowed .reason
    ├─ ClosedError (RuntimeError)               .what
    ├─ ComparisonError                          `lucebox ab` cannot go on; in pylucebox/ab/errors.py
    │  ├─ ArmError                              .arm .code
    │  ├─ EnvironmentMismatchError              .differences
    │  └─ SessionFileError (OSError)            .path
    └─ SpecUnavailableError                     .reason_code .reason; only with spec="require"

Each message has three parts: what failed, what was seen, what to do. They are also the attributes `failed`, `seen` and
`advice`; `native_log` holds the last lines that the native library logged. Test the attributes, not the text.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from typing import ClassVar

from pylucebox._error_root import LuceboxError

__all__ = [
    "BackendError",
    "BackendUnavailableError",
    "BuildError",
    "BuildMismatchError",
    "CancelledError",
    "ClosedError",
    "ContextFullError",
    "DecodeError",
    "InvalidArgumentError",
    "LibraryNotFoundError",
    "LoadError",
    "LuceboxError",
    "ModelFormatError",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "RollbackError",
    "SamplingError",
    "SequenceStateError",
    "SidecarMismatchError",
    "SidecarNotFoundError",
    "SpecUnavailableError",
    "WriteError",
]


StrPath = str | os.PathLike[str]

# A refused value is shown in the message, but a whole prompt or token list would bury it.
_MAX_SHOWN = 120


def shown(value: object) -> str:
    """Return a short `repr` that cannot fail, whatever the caller passed in."""
    try:
        text = repr(value)
    except Exception:  # a broken __repr__ must not hide the error being reported
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


class BuildError(LuceboxError):
    """The installed package is incomplete or mixed up."""

    default_advice = "Reinstall pylucebox: pip install --force-reinstall --no-cache-dir pylucebox."


class BuildMismatchError(BuildError):
    """Python files and native library come from different builds.

    Attributes
    ----------
    expected, found
        The two build identities.
    path
        File that holds the one found.
    """

    def __init__(
        self,
        failed: str = "the native library does not belong to this package",
        *,
        expected: str,
        found: str,
        path: StrPath,
        advice: str | None = None,
        native_log: Iterable[str] = (),
    ) -> None:
        self.expected = expected
        self.found = found
        self.path = os.fspath(path)
        super().__init__(
            failed,
            seen=f"the package expects {expected}, {self.path} is {found}",
            advice=advice,
            native_log=native_log,
        )


class LibraryNotFoundError(BuildError, ImportError):
    """The native library is missing or cannot be loaded.

    Attributes
    ----------
    searched
        Paths tried, in order.
    """

    def __init__(
        self,
        failed: str = "cannot load the native library",
        *,
        searched: Sequence[StrPath],
        seen: str = "",
        advice: str | None = None,
        native_log: Iterable[str] = (),
    ) -> None:
        self.searched = tuple(os.fspath(path) for path in searched)
        tried = f"tried {', '.join(self.searched) or 'nothing'}"
        super().__init__(failed, seen=f"{seen}; {tried}" if seen else tried, advice=advice, native_log=native_log)


class BackendError(LuceboxError):
    """A device or its back end failed."""

    default_advice = "Run `lucebox doctor` to see the devices and back ends of this build."


class BackendUnavailableError(BackendError):
    """The wanted device is not there.

    Attributes
    ----------
    requested
        Device name asked for.
    available
        Device names that exist.
    reason
        Why the wanted one is missing, as far as known.
    """

    def __init__(
        self,
        *,
        requested: str,
        available: Sequence[str],
        reason: str = "",
        advice: str | None = None,
        native_log: Iterable[str] = (),
    ) -> None:
        self.requested = requested
        self.available = tuple(available)
        self.reason = reason
        there = f"available: {', '.join(self.available) or 'none'}"
        super().__init__(
            f"device {requested!r} is not available",
            seen=f"{reason}; {there}" if reason else there,
            advice=advice,
            native_log=native_log,
        )


class OutOfMemoryError(BackendError, MemoryError):
    """An allocation on the host or on a device failed."""

    default_advice = "Lower n_ctx, n_seq, n_ubatch or n_gpu_layers, or take a smaller quantisation."


class LoadError(LuceboxError, OSError):
    """A file could not be opened or read.

    Attributes
    ----------
    path
        The file, or None when not known.
    """

    default_advice = "Check that the file exists and may be read."
    _errno: ClassVar[int | None] = None

    def __init__(
        self,
        failed: str,
        *,
        path: StrPath | None = None,
        seen: str = "",
        advice: str | None = None,
        native_log: Iterable[str] = (),
    ) -> None:
        self.path = None if path is None else os.fspath(path)
        super().__init__(failed, seen=seen, advice=advice, native_log=native_log)
        self.errno = self._errno
        self.filename = self.path


class ModelNotFoundError(LoadError, FileNotFoundError):
    """The model file, or one of its splits, does not exist."""

    default_advice = "Check the path; all splits of a model must lie in one directory."
    _errno = errno.ENOENT


class ModelFormatError(LoadError, ValueError):
    """A file was read but is not a model that this build can run."""

    default_advice = "Download or convert the file again; `lucebox doctor --model FILE` shows what was read."


class SidecarNotFoundError(LoadError, FileNotFoundError):
    """An MTP file was asked for by name and is not there.

    Attributes
    ----------
    looked_for
        Paths tried, in order.
    """

    default_advice = 'Give the path of an MTP file, or mtp="auto" to search beside the model.'
    _errno = errno.ENOENT

    def __init__(
        self,
        failed: str = "cannot find the MTP file",
        *,
        looked_for: Sequence[StrPath],
        seen: str = "",
        advice: str | None = None,
        native_log: Iterable[str] = (),
    ) -> None:
        self.looked_for = tuple(os.fspath(path) for path in looked_for)
        tried = f"looked for {', '.join(self.looked_for) or 'nothing'}"
        super().__init__(
            failed,
            path=self.looked_for[0] if self.looked_for else None,
            seen=f"{seen}; {tried}" if seen else tried,
            advice=advice,
            native_log=native_log,
        )


class SidecarMismatchError(LoadError, ValueError):
    """An MTP file asked for by name belongs to another model.

    Attributes
    ----------
    field
        Metadata key or property that differs.
    model_value, sidecar_value
        Its two values.
    """

    default_advice = "Take the MTP file that was made for this model."

    def __init__(
        self,
        failed: str = "the MTP file does not belong to the model",
        *,
        field: str,
        model_value: object,
        sidecar_value: object,
        path: StrPath | None = None,
        advice: str | None = None,
        native_log: Iterable[str] = (),
    ) -> None:
        self.field = field
        self.model_value = model_value
        self.sidecar_value = sidecar_value
        super().__init__(
            failed if path is None else f"{failed}: {os.fspath(path)}",
            path=path,
            seen=f"{field} is {shown(model_value)} in the model and {shown(sidecar_value)} in the MTP file",
            advice=advice,
            native_log=native_log,
        )


class WriteError(LuceboxError, OSError):
    """A file could not be written; one that was there before is untouched.

    Attributes
    ----------
    path
        The file.
    """

    default_advice = "Run the same command again: what is written already is kept."

    def __init__(self, *, path: StrPath, seen: str, advice: str | None = None, native_log: Iterable[str] = ()) -> None:
        self.path = os.fspath(path)
        super().__init__(f"cannot write {self.path!r}", seen=seen, advice=advice, native_log=native_log)
        self.errno = None
        self.filename = self.path


class DecodeError(LuceboxError):
    """The model could not be run on a batch."""

    default_advice = "The engine can be used again; if this repeats, run `lucebox doctor` and report it."


class ContextFullError(DecodeError):
    """The tokens do not fit into the context; nothing was changed.

    Attributes
    ----------
    n_ctx
        Tokens that one sequence can hold.
    n_needed
        Tokens that were asked for, or None when not known.
    """

    def __init__(
        self,
        failed: str = "the context is full",
        *,
        n_ctx: int,
        n_needed: int | None = None,
        advice: str | None = None,
        native_log: Iterable[str] = (),
    ) -> None:
        self.n_ctx = n_ctx
        self.n_needed = n_needed
        needed = "more" if n_needed is None else str(n_needed)
        super().__init__(
            failed,
            seen=f"{needed} tokens are needed, n_ctx is {n_ctx}",
            advice="Shorten the prompt or open the engine with a larger n_ctx." if advice is None else advice,
            native_log=native_log,
        )


class CancelledError(DecodeError):
    """A callback or `Engine.cancel()` stopped the work."""

    default_advice = "Start the request again if it is still wanted."


class RollbackError(DecodeError):
    """Rejected drafts could not be taken back; the sequence's state is lost."""

    default_advice = "The sequence was cleared: send the request again. Please report this with `lucebox doctor`."


class SamplingError(DecodeError):
    """No next token could be chosen for a request, for example because its grammar allows none."""

    default_advice = "Correct the grammar or the schema of the request; other requests are not affected."


class SequenceStateError(DecodeError):
    """The call is not allowed in the sequence's present state."""

    default_advice = "Clear the sequence and start over."


class InvalidArgumentError(LuceboxError, ValueError):
    """An argument is out of range, of the wrong type or contradicts another.

    Attributes
    ----------
    argument
        Its name.
    value
        What was passed.
    allowed
        What would have been accepted, in words; empty when only `reason` is known.
    reason
        What is wrong with the value; empty when `allowed` says it all.
    """

    default_advice = "Correct the value."

    def __init__(
        self,
        *,
        argument: str,
        value: object,
        allowed: str = "",
        reason: str = "",
        advice: str | None = None,
        native_log: Iterable[str] = (),
    ) -> None:
        self.argument = argument
        self.value = value
        self.allowed = allowed
        self.reason = reason
        got = f"got {shown(value)}"
        super().__init__(
            f"invalid argument {argument!r}",
            seen=f"{got}: {reason}" if reason else got,
            advice=f"Allowed: {allowed}." if allowed and advice is None else advice,
            native_log=native_log,
        )


class ClosedError(LuceboxError, RuntimeError):
    """An object was used after `close()`.

    Attributes
    ----------
    what
        Kind of object, for example ``engine``.
    """

    default_advice = "Open a new one."

    def __init__(self, *, what: str, advice: str | None = None, native_log: Iterable[str] = ()) -> None:
        self.what = what
        super().__init__(f"the {what} is closed", advice=advice, native_log=native_log)


class SpecUnavailableError(LuceboxError):
    """Drafting was required (``spec="require"``) but cannot be done.

    Attributes
    ----------
    reason_code
        Stable code, one of `SpecReason`.
    reason
        The same in words.
    """

    default_advice = 'Mend the cause, or use spec="auto" to run without drafts.'

    def __init__(
        self, *, reason_code: str, reason: str, advice: str | None = None, native_log: Iterable[str] = ()
    ) -> None:
        self.reason_code = str(reason_code)
        self.reason = reason
        super().__init__(
            "MTP drafting is required but not available",
            seen=f"{reason} ({self.reason_code})",
            advice=advice,
            native_log=native_log,
        )
