"""Models and engines for the tests that run the native library; all on one thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pylucebox import Engine
from pylucebox.testing import TinyModelFiles, TinySpec, write_tiny_model

# Let the tests import their helper module, whichever import mode pytest runs in.
sys.path.insert(0, str(Path(__file__).parent))

from _models import MODELS, OpenEngine, WriteModel


@pytest.fixture(scope="session")
def write_model(tmp_path_factory: pytest.TempPathFactory) -> WriteModel:
    """Write a small model, once for each description."""
    written: dict[TinySpec, TinyModelFiles] = {}

    def write(spec: TinySpec) -> TinyModelFiles:
        if spec not in written:
            written[spec] = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", spec)
        return written[spec]

    return write


@pytest.fixture(scope="session")
def open_model(write_model: WriteModel) -> OpenEngine:
    """Open an engine on one of `MODELS`; the caller closes it."""

    def open_one(name: str, **options: Any) -> Engine:
        spec = MODELS[name]
        options = {"n_threads": 1, **options}
        return Engine.demo(**options) if spec is None else Engine(write_model(spec).model, **options)

    return open_one


@pytest.fixture(scope="module")
def demo(open_model: OpenEngine) -> Iterator[Engine]:
    """The built-in model with drafts."""
    with open_model("built-in") as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(open_model: OpenEngine) -> Iterator[Engine]:
    """The built-in model without its MTP block."""
    with open_model("built-in", mtp="off") as engine:
        yield engine
