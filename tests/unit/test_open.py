"""Arguments of an engine that are wrong whatever the model is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pylucebox._errors import InvalidArgumentError
from pylucebox._open import EngineOptions

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
        ("n_ubatch", 31),
        ("device", ""),
        ("device", 0),
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
