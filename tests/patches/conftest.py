"""Fixtures for the tests of the patch tool: a throw-away checkout with a small fake upstream."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
for _directory in (_HERE.parents[1] / "scripts", _HERE):
    if str(_directory) not in sys.path:
        sys.path.insert(0, str(_directory))

from patch_fakes import UPSTREAM, Checkout, Prepared  # noqa: E402  (needs the path above)


@pytest.fixture
def empty_checkout(tmp_path: Path) -> Checkout:
    """Give a checkout whose archive was not fetched yet."""
    checkout = Checkout(tmp_path / "repo")
    checkout.pin_upstream(UPSTREAM)
    checkout.set_series({})
    return checkout


@pytest.fixture(scope="session")
def _templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the directory of the checkouts that tests get copies of, because copying is quicker than making."""
    return tmp_path_factory.mktemp("templates")


@pytest.fixture
def prepared(_templates: Path, tmp_path: Path) -> Prepared:
    """Give a function that copies the checkout of a name; the first time it is made from a fetched one."""

    def template(name: str, prepare: Callable[[Checkout], None]) -> Path:
        directory = _templates / name
        if not directory.exists():
            unready = _templates / f"{name}-unready"
            if name != "fetched":
                shutil.copytree(template("fetched", _fetch), unready)
            prepare(Checkout(unready / "repo"))
            unready.rename(directory)
        return directory

    def copy(name: str, prepare: Callable[[Checkout], None]) -> Checkout:
        shutil.copytree(template(name, prepare), tmp_path, dirs_exist_ok=True)
        return Checkout(tmp_path / "repo")

    return copy


def _fetch(checkout: Checkout) -> None:
    checkout.pin_upstream(UPSTREAM)
    checkout.set_series({})
    checkout.ok("fetch", "--archive", str(checkout.archive))


@pytest.fixture
def checkout(prepared: Prepared) -> Checkout:
    """Give a checkout that holds the fake upstream as its base."""
    return prepared("fetched", _fetch)
