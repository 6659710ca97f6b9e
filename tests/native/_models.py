"""Models that the native tests run on."""

from __future__ import annotations

from collections.abc import Callable

from pylucebox import Engine
from pylucebox.testing import TinyModelFiles, TinySpec

MODELS: dict[str, TinySpec | None] = {
    "built-in": None,
    "agree, in-file": TinySpec(kind="agree"),
    "mixed, in-file": TinySpec(kind="mixed"),
    "random, in-file": TinySpec(kind="random"),
    "mixed, sidecar": TinySpec(kind="mixed", mtp="sidecar"),
    "mixed, borrowing sidecar": TinySpec(kind="mixed", mtp="shared"),
}

OpenEngine = Callable[..., Engine]
"""``open_engine(name of a model, **options of Engine)``; the caller closes the engine."""

WriteModel = Callable[[TinySpec], TinyModelFiles]
"""Writes a small model, once for each description."""
