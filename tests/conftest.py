"""What holds for all tests: Ctrl-C works, tests that take minutes are asked for, the user's cache is left alone.

Those in the folders that need the native library are skipped where there is none.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from pylucebox._build import find_native_dir
from pylucebox._errors import LibraryNotFoundError

_TESTS = Path(__file__).parent
_NATIVE = ("exactness", "native", "server")
_CACHE = tempfile.mkdtemp(prefix="pylucebox-tests-")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and Ctrl-C work: a shell starts background jobs with it ignored, and they pass that on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["XDG_CACHE_HOME"] = _CACHE  # also for the processes that tests start
    config.addinivalue_line("markers", "soak: takes minutes; run with -m soak")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not asked for by the marker, and what needs a library that is not there."""
    try:
        find_native_dir()
    except LibraryNotFoundError as error:
        skip = pytest.mark.skip(reason=str(error))
        for item in items:
            if any(item.path.is_relative_to(_TESTS / folder) for folder in _NATIVE):
                item.add_marker(skip)
    if "soak" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; run with -m soak"))


def pytest_unconfigure() -> None:
    """Remove the cache folder of the tests."""
    shutil.rmtree(_CACHE, ignore_errors=True)
