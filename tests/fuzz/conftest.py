"""Damaged models, made once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Let the tests import their helper modules, whichever import mode pytest runs in.
sys.path.insert(0, str(Path(__file__).parent))

from _mutations import Damage, Sample, write_samples
from _opener import Opener


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the models, each in a folder of its own."""
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture(scope="session")
def samples(home: Path) -> dict[str, Sample]:
    """Models in order."""
    return write_samples(home)


@pytest.fixture(scope="session")
def damage(samples: dict[str, Sample]) -> Damage:
    """Makes the cases."""
    return Damage(samples)


@pytest.fixture
def opener() -> Iterator[Opener]:
    """A process that opens models."""
    with Opener() as opened:
        yield opened
