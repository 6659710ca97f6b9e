"""Downloading with pip; a small program stands for pip, so there is no network."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from patch_fakes import UPSTREAM, Checkout, make_archive, upstream_members

_FAKE_PIP = """#!{python}
import json, os, shutil, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(0)
options = sys.argv[1:]
requirement = open(options[options.index("--requirement") + 1]).read()
with open({log!r}, "w") as file:
    json.dump({{"argv": options, "requirement": requirement, "environment": dict(os.environ)}}, file)
if not os.path.exists({archive!r}):
    sys.exit("ERROR: no matching distribution")
target = options[options.index("--dest") + 1]
os.makedirs(target)
shutil.copy({archive!r}, target)
"""


class FakePip:
    """A pip that copies one file."""

    def __init__(self, directory: Path, archive: Path, name: str) -> None:
        self._log = directory / "log.json"
        program = directory / name
        program.write_text(
            _FAKE_PIP.format(python=sys.executable, log=str(self._log), archive=str(archive)), encoding="utf-8"
        )
        program.chmod(0o755)

    def call(self) -> dict[str, Any]:
        """Return how it was called."""
        data: dict[str, Any] = json.loads(self._log.read_text(encoding="utf-8"))
        return data


def _programs(tmp_path: Path) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "git").symlink_to(shutil.which("git") or "/usr/bin/git")
    return directory


@pytest.fixture(params=["pip", "pip3"])
def fake_pip(
    request: pytest.FixtureRequest, empty_checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FakePip:
    """Make a fake pip the only one: none in the interpreter, and nothing but git beside it on the path."""
    programs = _programs(tmp_path)
    fake = FakePip(programs, empty_checkout.archive, request.param)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    return fake


def test_fetch_downloads_the_pinned_version_with_its_hash(empty_checkout: Checkout, fake_pip: FakePip) -> None:
    outcome = empty_checkout.run("fetch")
    assert outcome.code == 0
    assert "downloading fake-upstream==1.0 with pip" in outcome.text
    assert empty_checkout.content() == UPSTREAM
    call = fake_pip.call()
    assert call["argv"][0] == "download"
    assert {"--no-deps", "--require-hashes"} <= set(call["argv"])
    assert call["argv"][call["argv"].index("--no-binary") + 1] == "fake-upstream"
    assert call["requirement"].startswith("fake-upstream==1.0 --hash=sha256:")


def test_settings_that_would_build_or_hide_pip_do_not_reach_it(
    empty_checkout: Checkout, fake_pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    monkeypatch.setenv("PYTHONPATH", "/isolated")
    monkeypatch.setenv("PIP_RETRIES", "0")
    assert empty_checkout.run("fetch").code == 0
    environment = fake_pip.call()["environment"]
    assert "PIP_NO_BINARY" not in environment
    assert "PYTHONPATH" not in environment
    assert environment["PIP_RETRIES"] == "0"


def test_another_version_is_downloaded_without_a_hash_unless_one_is_given(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "fake_upstream-7.0.0.tar.gz"
    sha256 = make_archive(archive, upstream_members(UPSTREAM | {"src/a.cpp": b"seven\n"}))
    fake = FakePip(_programs(tmp_path), archive, "pip")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert checkout.run("fetch", "7.0.0", "--sha256", "0" * 64).code == 3
    outcome = checkout.ok("fetch", "7.0.0")
    assert fake.call()["requirement"] == "fake-upstream==7.0.0\n"
    assert "--require-hashes" not in fake.call()["argv"]
    assert outcome.data["sha256"] == sha256
    assert outcome.data["upstream"]["build"] == "b7"
    assert checkout.content() == UPSTREAM
    # The canary asks for the newest and learns its version from the file name.
    outcome = checkout.ok("canary")
    assert fake.call()["requirement"] == "fake-upstream\n"
    assert outcome.data["to"]["version"] == "7.0.0"


@pytest.mark.usefixtures("fake_pip")
def test_apply_downloads_only_when_told_to(empty_checkout: Checkout) -> None:
    refused = empty_checkout.run("apply")
    assert refused.code == 7
    assert "lucebox-patches fetch" in refused.text
    assert not empty_checkout.tree.exists()
    assert empty_checkout.run("apply", "--fetch").code == 0
    assert empty_checkout.content() == UPSTREAM


@pytest.mark.usefixtures("fake_pip")
def test_a_wrong_download_is_refused_and_not_kept(empty_checkout: Checkout) -> None:
    empty_checkout.archive.write_bytes(b"something else")
    outcome = empty_checkout.run("fetch")
    assert outcome.code == 3
    assert not empty_checkout.tree.exists()
    assert not list(empty_checkout.cache.rglob("*.gz"))


@pytest.mark.usefixtures("fake_pip")
def test_a_failing_pip_is_quoted(empty_checkout: Checkout) -> None:
    empty_checkout.archive.unlink()
    outcome = empty_checkout.run("fetch")
    assert outcome.code == 7
    assert "no matching distribution" in outcome.text
    assert "--archive FILE" in outcome.text


def test_without_any_pip_the_message_says_what_was_tried(
    empty_checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(_programs(tmp_path)))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    outcome = empty_checkout.run("fetch")
    assert outcome.code == 7
    assert "no-python -m pip" in outcome.text
    assert "install pip" in outcome.text
