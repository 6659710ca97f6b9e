"""The only importer of the extension: loads it, checks it, and turns its status codes into exceptions.

The extension is loaded at the first call of `native()`, not by ``import pylucebox``: that keeps the import cheap, and a
broken installation can still import the package and have ``lucebox doctor`` say what is wrong with it.

Exceptions in callbacks
-----------------------
C cannot carry a Python exception. What a callback raises, Ctrl-C included, is kept for the calling thread, the callback
answers "stop", and `raise_pending` raises it again once the native call has returned. `check` does that first, so the
caller sees the exception and not the cancellation it caused.

Forked processes
----------------
A child of fork() has the memory of its parent but only the thread that forked: calls into the library would wait for
its compute threads, or for locks that other threads held, for ever. If the library was loaded by then, the child can
neither use nor free what it inherited, and `refuse_after_fork` and `unless_forked` see to that.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from pylucebox._build import BuildInfo, find_native_dir, recorded_build, require_same_build
from pylucebox._errors import (
    BackendUnavailableError,
    CancelledError,
    ClosedError,
    ContextFullError,
    DecodeError,
    InvalidArgumentError,
    LibraryNotFoundError,
    LoadError,
    LuceboxError,
    ModelFormatError,
    OutOfMemoryError,
    RollbackError,
    SamplingError,
    SequenceStateError,
)
from pylucebox._logging import NativeLog
from pylucebox._session import Progress

native_log = NativeLog()
"""The last lines that the native library logged, from all threads."""


class Native(NamedTuple):
    """The bound library: cffi's type world and its functions."""

    ffi: Any
    lib: Any


class _Quoted(threading.local):
    """Number of the last log line that an error of this thread has quoted, so that the next one does not again."""

    line = 0


pending: dict[int, BaseException] = {}
_quoted = _Quoted()
"""What a callback raised and has not been raised again yet, by thread."""

_load_lock = threading.Lock()
_loaded: list[Native] = []

forked = False
"""Whether the library was loaded by a parent of this process, so that it must not be called here."""


def _note_fork() -> None:
    global forked  # noqa: PLW0603 - read before every native call, so it is as cheap to read as can be
    forked = forked or bool(_loaded) or _load_lock.locked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def refuse_after_fork() -> None:
    """Raise ClosedError in a process that was forked after the library was loaded. Comes before any lock."""
    if forked:
        raise ClosedError(
            what="engine",
            advice="The library was loaded and the engine opened before fork(), and their threads are not in this "
            'process. Start processes with multiprocessing\'s "spawn" or "forkserver" method, and open the engine in '
            "them.",
        )


def unless_forked(free: Callable[..., object]) -> Callable[..., None]:
    """Return `free`, made to do nothing where `refuse_after_fork` raises."""

    def guarded(*args: object) -> None:
        if not forked:
            free(*args)

    return guarded


def native() -> Native:
    """Return the bound library; the first call loads and checks it.

    Raises
    ------
    LibraryNotFoundError
        The extension or a library it needs is missing.
    BuildMismatchError
        The library belongs to another build than the Python files.
    ClosedError
        The library was loaded before this process was forked.
    """
    refuse_after_fork()
    if not _loaded:
        with _load_lock:
            if not _loaded:
                _loaded.append(_load())
    return _loaded[0]


def _load() -> Native:
    native_dir = find_native_dir()
    recorded = recorded_build(native_dir)
    extension = _import_extension(native_dir)
    bound = Native(extension.ffi, extension.lib)
    ffi, lib = bound
    loaded = BuildInfo(
        version=string(ffi, lib.lucebox_version()),
        upstream_build=string(ffi, lib.lucebox_upstream_build()),
        series_hash=string(ffi, lib.lucebox_series_hash()),
    )
    require_same_build(recorded, loaded, Path(str(extension.__file__)))
    _install_callbacks(bound)
    libraries = native_dir / "lib"
    if lib.lucebox_backends_load(os.fsencode(libraries)):
        raise LibraryNotFoundError(
            "cannot load the back ends",
            searched=[libraries],
            seen=string(ffi, lib.lucebox_last_error()),
            native_log=native_log.tail(),
        )
    return bound


def _import_extension(native_dir: Path) -> Any:
    """Import ``pylucebox._native`` from `native_dir`, which need not be the folder of the Python files."""
    import importlib.util  # noqa: PLC0415 - slow, and not needed by those who only import the package

    name = "pylucebox._native"
    try:
        spec = PathFinder.find_spec(name, [str(native_dir)])
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"no extension {name}", name=name)
        extension = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(extension)
    except ImportError as error:
        raise LibraryNotFoundError(
            searched=[native_dir / "_native.abi3.so", native_dir / "lib"],
            seen=str(error),
            advice="Build and install the package again with `pip install .` in the source folder.",
        ) from error
    return extension


def _install_callbacks(bound: Native) -> None:
    ffi, lib = bound

    def keep(_kind: type[BaseException], error: BaseException, _trace: TracebackType) -> None:
        pending.setdefault(threading.get_ident(), error)

    @ffi.def_extern(onerror=keep)  # type: ignore[untyped-decorator]
    def lucebox_on_log(level: int, text: Any, _user_data: Any) -> None:
        native_log.record(level, string(ffi, text))

    @ffi.def_extern(error=False, onerror=keep)  # type: ignore[untyped-decorator]
    def lucebox_on_progress(fraction: float, user_data: Any) -> bool:
        progress: Progress = ffi.from_handle(user_data)
        return threading.get_ident() not in pending and progress(fraction) is not False

    lib.lucebox_log_set(lib.lucebox_on_log, ffi.NULL)
    # Native threads and destructors may log while the interpreter goes down; by then nobody can be called back.
    atexit.register(unless_forked(lib.lucebox_log_set), ffi.NULL, ffi.NULL)


def string(ffi: Any, text: Any) -> str:
    """Return a C string as text; bytes that are not UTF-8 show as U+FFFD."""
    return str(ffi.string(text).decode("utf-8", "replace"))


def take_string(bound: Native, out: Any) -> str:
    """Return the text of a ``char **`` result and free it."""
    try:
        return string(bound.ffi, out[0])
    finally:
        bound.lib.lucebox_string_free(out[0])


def raise_pending() -> None:
    """Raise what a callback of this thread raised, if anything."""
    error = pending.pop(threading.get_ident(), None)
    if error is not None:
        raise error


def check(
    status: int,
    what: str,
    *,
    path: str | None = None,
    argument: str | None = None,
    value: object = None,
    device: str = "",
    n_ctx: int = 0,
    n_needed: int | None = None,
) -> None:
    """Raise the exception that belongs to a native status; do nothing for success.

    Parameters
    ----------
    status
        A ``lucebox_status``.
    what
        What was tried, as a message begins: ``cannot open the model 'x.gguf'``.
    path
        File concerned; makes failures without a class of their own a `LoadError`.
    argument, value
        The parameter that the native call judges, for `InvalidArgumentError`.
    device
        Device that was asked for, for `BackendUnavailableError`.
    n_ctx, n_needed
        Context and tokens, for `ContextFullError`.
    """
    raise_pending()
    if status:
        raise failure(
            status, what, path=path, argument=argument, value=value, device=device, n_ctx=n_ctx, n_needed=n_needed
        )


def failure(
    status: int,
    what: str,
    *,
    path: str | None,
    argument: str | None,
    value: object,
    device: str,
    n_ctx: int,
    n_needed: int | None,
) -> LuceboxError:
    """Return the exception for a native status other than success, with the native text and log lines."""
    ffi, lib = native()
    seen = string(ffi, lib.lucebox_last_error())
    log = native_log.tail(after=_quoted.line)
    _quoted.line = native_log.mark()
    plain: dict[int, type[LuceboxError]] = {
        lib.LUCEBOX_ERR_MEMORY: OutOfMemoryError,
        lib.LUCEBOX_ERR_CANCELLED: CancelledError,
        lib.LUCEBOX_ERR_ROLLBACK: RollbackError,
        lib.LUCEBOX_ERR_SAMPLING: SamplingError,
        lib.LUCEBOX_ERR_STATE: SequenceStateError,
    }
    error: LuceboxError
    if status in plain:
        error = plain[status](what, seen=seen, native_log=log)
    elif status == lib.LUCEBOX_ERR_ARGUMENT:
        error = InvalidArgumentError(argument=argument or what, value=value, reason=seen, native_log=log)
    elif status == lib.LUCEBOX_ERR_CONTEXT_FULL:
        error = ContextFullError(what, n_ctx=n_ctx, n_needed=n_needed, native_log=log)
    elif status == lib.LUCEBOX_ERR_BACKEND:
        from pylucebox._backends import device_names  # noqa: PLC0415 - it imports this module

        error = BackendUnavailableError(requested=device, available=device_names(), reason=seen, native_log=log)
    elif status in (lib.LUCEBOX_ERR_FORMAT, lib.LUCEBOX_ERR_MISMATCH):
        error = ModelFormatError(what, path=path, seen=seen, native_log=log)
    elif status == lib.LUCEBOX_ERR_IO or path is not None:
        error = LoadError(what, path=path, seen=seen, native_log=log)
    else:
        error = DecodeError(what, seen=seen, native_log=log)
    return error


@contextlib.contextmanager
def progress_callback(progress: Progress | None) -> Iterator[tuple[Any, Any]]:
    """Yield the C function and its user data that report to `progress`, or to nobody."""
    ffi, lib = native()
    # Without anybody to report to it is still called: only then can Python run signal handlers during a long call.
    handle = ffi.new_handle(progress or report_to_nobody)  # lives as long as this frame
    yield lib.lucebox_on_progress, handle


def report_to_nobody(_fraction: float) -> None:
    """Do nothing."""
