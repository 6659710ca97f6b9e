"""Errors: their place in the tree, their three-part message, and that they survive pickling."""

from __future__ import annotations

import copy
import errno
import inspect
import pickle

import pytest

from pylucebox import _errors
from pylucebox._errors import (
    BackendUnavailableError,
    BuildMismatchError,
    CancelledError,
    ClosedError,
    ContextFullError,
    InvalidArgumentError,
    LibraryNotFoundError,
    LoadError,
    LuceboxError,
    ModelFormatError,
    ModelNotFoundError,
    OutOfMemoryError,
    RollbackError,
    SamplingError,
    SequenceStateError,
    SidecarMismatchError,
    SidecarNotFoundError,
    SpecUnavailableError,
    WriteError,
)
from pylucebox.ab.errors import ArmError, EnvironmentMismatchError, SessionFileError
from pylucebox.sim.errors import TraceFormatError

LOG = ("W one", "E two")
EXAMPLES: list[LuceboxError] = [
    BuildMismatchError(expected="1.0", found="0.9", path="/p/_native.so", native_log=LOG),
    LibraryNotFoundError(searched=["/a", "/b"], seen="undefined symbol x"),
    BackendUnavailableError(requested="cuda0", available=["cpu"], reason="no driver"),
    OutOfMemoryError("cannot open the session", seen="8 GiB wanted"),
    LoadError("cannot read 'x'", path="x", seen="permission denied"),
    ModelNotFoundError("cannot read 'x.gguf'", path="x.gguf", seen="there is no such file"),
    ModelFormatError("cannot read 'x.gguf'", path="x.gguf", seen="it is empty", native_log=LOG),
    SidecarNotFoundError(looked_for=["/m/mtp-x.gguf"]),
    SidecarMismatchError(field="vocabulary size", model_value=10, sidecar_value=11, path="s.gguf"),
    TraceFormatError("cannot read the trace 'x.npz'", path="x.npz", seen="it is no trace"),
    ContextFullError(n_ctx=8, n_needed=9),
    CancelledError("prefill was cancelled"),
    RollbackError("cycle failed"),
    SamplingError("cannot choose the next token", seen="the grammar allows none"),
    SequenceStateError("cycle failed", seen="the sequence is empty"),
    InvalidArgumentError(argument="top_p", value=1.5, allowed="0 to 1"),
    ClosedError(what="engine"),
    SpecUnavailableError(reason_code="no-sidecar", reason="no MTP file was found"),
    WriteError(path="x.gguf", seen="the disk is full"),
    ArmError(arm="theirs", code="not_healthy", seen="no answer in 60 s", native_log=LOG),
    EnvironmentMismatchError(differences=[("cpu", "a", "b")]),
    SessionFileError("cannot write", path="runs.jsonl", seen="no space left on device"),
]
BUILTIN_BASES = {
    LibraryNotFoundError: ImportError,
    OutOfMemoryError: MemoryError,
    LoadError: OSError,
    ModelNotFoundError: FileNotFoundError,
    ModelFormatError: ValueError,
    SidecarNotFoundError: FileNotFoundError,
    SidecarMismatchError: ValueError,
    TraceFormatError: ValueError,
    InvalidArgumentError: ValueError,
    SessionFileError: OSError,
    ClosedError: RuntimeError,
    WriteError: OSError,
}


def ids(error: LuceboxError) -> str:
    return type(error).__name__


@pytest.mark.parametrize(("ours", "builtin"), BUILTIN_BASES.items())
def test_ordinary_handlers_catch_our_errors(ours: type, builtin: type) -> None:
    assert issubclass(ours, LuceboxError)
    assert issubclass(ours, builtin)


@pytest.mark.parametrize("error", EXAMPLES, ids=ids)
def test_message_says_what_failed_what_was_seen_and_what_to_do(error: LuceboxError) -> None:
    assert error.failed
    assert error.advice
    assert error.failed in str(error)
    assert error.seen in str(error)
    assert error.advice in str(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=ids)
def test_pickling_keeps_type_message_and_attributes(error: LuceboxError) -> None:
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)


def test_pickling_keeps_what_oserror_stores_outside_the_instance_dict() -> None:
    copied = pickle.loads(pickle.dumps(ModelNotFoundError("cannot read", path="x.gguf")))
    assert (copied.errno, copied.filename, copied.path) == (errno.ENOENT, "x.gguf", "x.gguf")


def test_native_log_lines_follow_the_message_in_order() -> None:
    error = ModelFormatError("cannot open", native_log=LOG)
    assert str(error).splitlines()[-2:] == ["  W one", "  E two"]
    assert error.native_log == LOG


def test_message_without_native_log_is_one_line() -> None:
    assert "\n" not in str(ModelFormatError("cannot open", seen="empty"))


def test_long_values_are_cut_in_the_message_but_not_in_the_attribute() -> None:
    error = InvalidArgumentError(argument="stop", value="x" * 10_000, allowed="short text")
    assert len(str(error)) < 300
    assert len(error.value) == 10_000  # type: ignore[arg-type]


def test_value_whose_repr_fails_does_not_hide_the_error() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert "Broken" in str(InvalidArgumentError(argument="seed", value=Broken(), allowed="an integer"))


def test_every_class_appears_in_the_drawn_tree_and_in_all() -> None:
    classes = {name for name, value in inspect.getmembers(_errors, inspect.isclass) if issubclass(value, LuceboxError)}
    assert classes == set(_errors.__all__)
    assert all(name in (_errors.__doc__ or "") for name in classes)
