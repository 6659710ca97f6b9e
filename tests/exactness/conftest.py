"""Models of the exactness matrix."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pylucebox import LibraryNotFoundError
from pylucebox._build import find_native_dir
from pylucebox.testing import TinySpec, write_tiny_model

# Let the tests import their helper modules, whichever import mode pytest runs in.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs the native library when there is none."""
    try:
        find_native_dir()
    except LibraryNotFoundError as error:
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.skip(reason=str(error)))


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinySpec], Path]:
    """Write a model, once for each description."""
    written: dict[TinySpec, Path] = {}

    def write(spec: TinySpec) -> Path:
        if spec not in written:
            written[spec] = write_tiny_model(tmp_path_factory.mktemp("exact") / "m.gguf", spec).model
        return written[spec]

    return write
