"""Arguments of an engine that are wrong whatever the model is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pylucebox._engine import Engine
from pylucebox._errors import CancelledError, InvalidArgumentError, OutOfMemoryError, SpecUnavailableError
from pylucebox._open import EngineOptions, _or_without_mtp, session_options
from pylucebox._spec import SpecReason, spec_active
from pylucebox.width import FixedWidth

VALID: dict[str, Any] = {
    "model": "m.gguf",
    "mtp": "auto",
    "n_ctx": None,
    "n_seq": 1,
    "verify_width": 0,
    "spec": "auto",
    "n_threads": None,
    "n_threads_batch": None,
    "n_ubatch": 512,
    "device": "auto",
    "n_gpu_layers": -1,
    "flash_attn": None,
    "cache_type_k": "f16",
    "cache_type_v": "f16",
    "hidden_norm": "file",
}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("model", None),
        ("model", 3),
        ("model", "a\0b"),
        ("mtp", True),
        ("mtp", None),
        ("n_ctx", 15),
        ("n_ctx", "8192"),
        ("n_seq", 0),
        ("n_seq", 9),
        ("verify_width", -1),
        ("verify_width", 9),
        ("verify_width", None),
        ("verify_width", True),
        ("spec", "maybe"),
        ("spec", True),
        ("n_threads", 0),
        ("n_threads", 513),
        ("n_threads_batch", 0),
        ("model", "a\ud800b"),
        ("mtp", "a\ud800b"),
        ("n_ubatch", 31),
        ("n_ubatch", 8193),
        ("device", ""),
        ("device", 0),
        ("device", "cpu\ud800"),
        ("n_gpu_layers", -2),
        ("flash_attn", 1),
        ("flash_attn", "on"),
        ("cache_type_k", "q9"),
        ("cache_type_v", None),
        ("hidden_norm", "half"),
    ],
)
def test_bad_argument_is_named_with_its_value(argument: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        EngineOptions(**{**VALID, argument: value})
    assert caught.value.argument == argument
    assert caught.value.value is value or caught.value.value == value
    assert caught.value.allowed


@pytest.mark.parametrize(("verify_width", "bound"), [(0, 8), (1, 1), (2, 2), (8, 8)])
def test_engine_width_bounds_what_requests_may_ask_for(verify_width: int, bound: int) -> None:
    assert EngineOptions(**{**VALID, "verify_width": verify_width}).max_width == bound


@pytest.mark.parametrize("mtp", ["off", False, Path("mtp.gguf"), "mtp.gguf"])
def test_every_form_of_mtp_is_accepted(mtp: object) -> None:
    assert EngineOptions(**{**VALID, "mtp": mtp}).mtp == mtp


class _Thing:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class _Openers:
    """Opens a thing with and without MTP block; either may fail."""

    def __init__(self, with_mtp: Exception | None = None, alone: Exception | None = None) -> None:
        self.errors = {"with": with_mtp, "alone": alone}
        self.opened: list[_Thing] = []

    def open(self, how: str) -> _Thing:
        error = self.errors[how]
        if error is not None:
            raise error
        self.opened.append(_Thing())
        return self.opened[-1]

    def run(self, spec: str = "auto") -> Any:
        options = EngineOptions(**{**VALID, "spec": spec})
        return _or_without_mtp(
            options,
            spec_active("test"),
            lambda: self.open("with"),
            lambda: self.open("alone"),
            SpecReason.CONTEXT_FAILED,
        )


def test_mtp_block_that_opens_is_used() -> None:
    openers = _Openers(alone=AssertionError())
    _, spec = openers.run()
    assert spec == spec_active("test")


def test_failure_of_the_mtp_block_alone_is_a_reason_and_no_error() -> None:
    openers = _Openers(with_mtp=OutOfMemoryError("no room for the block"))
    opened, spec = openers.run()
    assert not opened.closed
    assert (spec.requested, spec.effective, spec.reason_code) == (True, False, SpecReason.CONTEXT_FAILED)
    assert "no room for the block" in spec.reason


def test_failure_that_is_not_the_block_s_is_raised_as_it_is_without_it() -> None:
    model_fault = InvalidArgumentError(argument="n_ctx", value=1, allowed="more")
    openers = _Openers(with_mtp=OutOfMemoryError("no room"), alone=model_fault)
    with pytest.raises(InvalidArgumentError) as caught:
        openers.run("require")
    assert caught.value is model_fault


def test_failure_of_a_required_block_is_refused_with_its_cause_and_leaves_nothing_open() -> None:
    cause = OutOfMemoryError("no room for the block")
    openers = _Openers(with_mtp=cause)
    with pytest.raises(SpecUnavailableError) as caught:
        openers.run("require")
    assert caught.value.reason_code == "context-failed"
    assert caught.value.__cause__ is cause
    assert [thing.closed for thing in openers.opened] == [True]


def test_cancelled_load_is_not_tried_again() -> None:
    openers = _Openers(with_mtp=CancelledError("stopped"))
    with pytest.raises(CancelledError):
        openers.run()
    assert openers.opened == []


@pytest.mark.parametrize("n_ubatch", [32, 8192, None])
def test_ends_of_the_ubatch_range(n_ubatch: int | None) -> None:
    assert EngineOptions(**{**VALID, "n_ubatch": n_ubatch}).n_ubatch == n_ubatch


@pytest.mark.parametrize(
    ("argument", "value"), [("width_policy", 5), ("width_policy", FixedWidth), ("width_policy", 0), ("progress", 5)]
)
def test_objects_without_the_methods_needed_are_refused(argument: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Engine("there is no such model.gguf", **{argument: value})
    assert (caught.value.argument, caught.value.value) == (argument, value)


@pytest.mark.parametrize("wanted", [0, 16, 64])
def test_number_of_kept_graphs_reaches_the_session(wanted: int) -> None:
    options = EngineOptions(**{**VALID, "n_kept_graphs": wanted})
    assert session_options(options, _trained_for(64), max_width=8).n_kept_graphs == wanted


@pytest.mark.parametrize("number", [-1, 65, "many", True])
def test_impossible_number_of_kept_graphs_is_refused(number: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        EngineOptions(**{**VALID, "n_kept_graphs": number})
    assert (caught.value.argument, caught.value.value) == ("n_kept_graphs", number)


def _trained_for(n_ctx: int) -> Any:
    return SimpleNamespace(info=SimpleNamespace(n_ctx_train=n_ctx))
