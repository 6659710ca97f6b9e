"""What holds for all tests: Ctrl-C works, tests that take minutes are asked for, the user's cache is left alone."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile

import pytest

_CACHE = tempfile.mkdtemp(prefix="pylucebox-tests-")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and Ctrl-C work: a shell starts background jobs with it ignored, and they pass that on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["XDG_CACHE_HOME"] = _CACHE  # also for the processes that tests start
    config.addinivalue_line("markers", "soak: takes minutes; run with -m soak")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave these tests out unless they are asked for by the marker."""
    if "soak" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; run with -m soak"))


def pytest_unconfigure() -> None:
    """Remove the cache folder of the tests."""
    shutil.rmtree(_CACHE, ignore_errors=True)
