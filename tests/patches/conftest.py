"""Fixtures for the tests of the patch tool: a throw-away checkout with a small fake upstream."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
for _directory in (_HERE.parents[1] / "scripts", _HERE):
    if str(_directory) not in sys.path:
        sys.path.insert(0, str(_directory))

from patch_fakes import UPSTREAM, Checkout  # noqa: E402  (needs the path above)


@pytest.fixture
def empty_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checkout:
    """Give a checkout whose archive was not fetched yet."""
    checkout = Checkout(tmp_path / "repo", capsys)
    checkout.pin_upstream(UPSTREAM)
    checkout.set_series({})
    return checkout


@pytest.fixture
def checkout(empty_checkout: Checkout) -> Checkout:
    """Give a checkout that holds the fake upstream as its base."""
    assert empty_checkout.run("fetch", "--archive", str(empty_checkout.archive)).code == 0
    return empty_checkout
