"""What surrounds the checkout must not matter: repositories, git settings, locale, variables."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from patch_fakes import UPSTREAM, Checkout, change, diff

# A line with trailing space is what apply.whitespace=fix would alter.
PATCH = change("src/a.cpp", "a 10\n", "a ten  \n")
EXPECTED = UPSTREAM | {"src/a.cpp": UPSTREAM["src/a.cpp"].replace(b"a 10\n", b"a ten  \n")}


def _make_repository(root: Path) -> None:
    (root / ".gitignore").write_text("vendor/llama.cpp/\nvendor/.cache/\n", encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    subprocess.run(["git", "init", "--quiet", str(root)], env=environment, check=True)


def test_a_repository_around_the_tree_that_ignores_it_does_not_matter(checkout: Checkout) -> None:
    _make_repository(checkout.root)
    checkout.set_series({"one.patch": PATCH})
    assert checkout.run("apply").code == 0
    assert checkout.content() == EXPECTED


def test_variables_of_a_calling_git_do_not_matter(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    _make_repository(checkout.root)
    monkeypatch.setenv("GIT_DIR", str(checkout.root / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(checkout.root))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "apply.whitespace")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "fix")
    checkout.set_series({"one.patch": PATCH})
    assert checkout.run("apply").code == 0
    assert checkout.content() == EXPECTED


@pytest.fixture
def hostile_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the user settings that change what git writes and what it takes for equal."""
    home = tmp_path / "home"
    (home / "git").mkdir(parents=True)
    (home / ".gitconfig").write_text(
        "[core]\n autocrlf = true\n eol = crlf\n[apply]\n whitespace = fix\n ignoreWhitespace = change\n", "utf-8"
    )
    (home / "git" / "attributes").write_text("* text eol=crlf\n", encoding="utf-8")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))


@pytest.mark.usefixtures("hostile_home")
def test_settings_of_the_user_do_not_change_the_result(checkout: Checkout) -> None:
    checkout.set_series({"one.patch": PATCH, "two.patch": diff("src/new.cpp", b"", b"x \ny\n")})
    assert checkout.run("apply").code == 0
    assert checkout.content() == EXPECTED | {"src/new.cpp": b"x \ny\n"}


@pytest.mark.usefixtures("hostile_home")
def test_settings_of_the_user_do_not_loosen_the_match(checkout: Checkout) -> None:
    checkout.set_series({"one.patch": PATCH.replace(b" a 9\n", b" a   9\n")})
    assert checkout.run("apply").code == 6


def test_git_is_asked_to_speak_english(checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("git")
    seen = tmp_path / "seen"
    wrapper = tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "$LC_ALL,$LANGUAGE" >> "{seen}"\nexec "{real}" "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    checkout.set_series({"one.patch": PATCH.replace(b" a 9\n", b" a nine\n")})
    outcome = checkout.run("apply")
    assert outcome.code == 6
    assert outcome.data["error"]["files"] == ["src/a.cpp"]
    assert set(seen.read_text(encoding="utf-8").split()) == {"C,"}


def test_a_git_that_does_nothing_is_found_out(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("git")
    wrapper = tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\ncase "$*" in *" apply "*) exit 0;; esac\nexec "{real}" "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    checkout.set_series({"one.patch": PATCH})
    outcome = checkout.run("apply")
    assert outcome.code == 1
    assert outcome.data["error"]["patches"] == ["one.patch"]
    assert checkout.content() == UPSTREAM


def test_git_is_needed_to_make_a_tree_and_not_to_use_one(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checkout.run("apply").code == 0
    assert checkout.run("status").code == 0
    checkout.set_series({"one.patch": PATCH})
    outcome = checkout.run("apply")
    assert outcome.code == 7
    assert outcome.data["error"]["program"] == "git"
    assert "install git" in outcome.text
    assert checkout.content() == UPSTREAM


def test_a_git_that_is_too_old_is_refused(
    empty_checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "bin" / "git"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho git version 2.33.9\n", encoding="utf-8")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(old.parent))
    outcome = empty_checkout.run("fetch", "--archive", str(empty_checkout.archive))
    assert outcome.code == 7
    assert "this is 2.33.9" in outcome.text
