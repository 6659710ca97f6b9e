"""Models of the exactness matrix."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pylucebox.testing import TinySpec, write_tiny_model

# Let the tests import their helper modules, whichever import mode pytest runs in.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinySpec], Path]:
    """Write a model, once for each description."""
    written: dict[TinySpec, Path] = {}

    def write(spec: TinySpec) -> Path:
        if spec not in written:
            written[spec] = write_tiny_model(tmp_path_factory.mktemp("exact") / "m.gguf", spec).model
        return written[spec]

    return write
