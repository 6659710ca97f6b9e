"""What holds for all tests: Ctrl-C works, and tests that take minutes are asked for by a marker."""

from __future__ import annotations

import signal

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and Ctrl-C work: a shell starts background jobs with it ignored, and they pass that on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "soak: takes minutes; run with -m soak")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave these tests out unless they are asked for by the marker."""
    if "soak" in config.option.markexpr:
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; run with -m soak"))
