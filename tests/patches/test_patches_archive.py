"""Verifying and unpacking the source distribution."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from lucebox_patches.archive import unpack
from lucebox_patches.errors import HashMismatchError, UnsafeArchiveError
from lucebox_patches.store import Store
from lucebox_patches.tree import snapshot
from patch_fakes import EXECUTABLE, SUBDIR, TOP, UPSTREAM, Checkout, make_archive, member, upstream_members


def _link(name: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info, b""


def test_a_wrong_hash_is_refused_before_the_archive_is_opened(
    empty_checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object, **__: object) -> None:
        pytest.fail("the archive was opened")

    monkeypatch.setattr(tarfile, "open", opened)
    empty_checkout.archive.write_bytes(b"something else")
    outcome = empty_checkout.run("fetch", "--archive", str(empty_checkout.archive))
    assert outcome.code == 3
    assert outcome.data["error"]["type"] == "HashMismatchError"
    assert "recorded is" in outcome.text
    assert not empty_checkout.tree.exists()
    assert not list(empty_checkout.cache.glob("*.gz"))


def test_unpacking_itself_verifies_the_hash(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    make_archive(archive, upstream_members(UPSTREAM))
    with pytest.raises(HashMismatchError) as caught:
        unpack(archive, "0" * 64, SUBDIR, tmp_path / "out")
    assert caught.value.expected == "0" * 64
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "bad",
    [
        member("/etc/evil"),
        member(f"{TOP}/../../evil"),
        member(f"{TOP}/{SUBDIR}/../../../evil"),
        member(f"{TOP}\\..\\evil"),
        member(f"{TOP}/{SUBDIR}/.git/config"),
        member(f"{TOP}/{SUBDIR}/.git", b"gitdir: elsewhere"),
        member(f"{TOP}/{SUBDIR}/src/a.cpp", b"a second one"),
        _link(f"{TOP}/{SUBDIR}/out", "/etc", tarfile.SYMTYPE),
        _link(f"{TOP}/{SUBDIR}/out", "../../../etc", tarfile.SYMTYPE),
        _link(f"{TOP}/{SUBDIR}/out", "/etc/passwd", tarfile.LNKTYPE),
        _link(f"{TOP}/{SUBDIR}/dev", "", tarfile.CHRTYPE),
        _link(f"{TOP}/{SUBDIR}/pipe", "", tarfile.FIFOTYPE),
        _link(f"{TOP}/beside", "/etc", tarfile.SYMTYPE),
    ],
    ids=lambda bad: bad[0].name,
)
def test_an_unsafe_member_is_refused_and_nothing_is_left(
    empty_checkout: Checkout, bad: tuple[tarfile.TarInfo, bytes]
) -> None:
    sha256 = make_archive(empty_checkout.archive, [*upstream_members(UPSTREAM), bad])
    empty_checkout.write_pin(sha256=sha256, tree="1" * 40)
    outcome = empty_checkout.run("fetch", "--archive", str(empty_checkout.archive))
    assert outcome.code == 3
    assert outcome.data["error"]["type"] == "UnsafeArchiveError"
    assert repr(bad[0].name) in outcome.text
    assert not empty_checkout.tree.exists()
    assert not list(empty_checkout.root.parent.rglob("evil"))


def test_an_archive_that_is_not_one_is_refused_even_with_the_right_hash(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(b"not gzip")
    with pytest.raises(UnsafeArchiveError, match="cannot be read"):
        unpack(archive, hashlib.sha256(b"not gzip").hexdigest(), SUBDIR, tmp_path / "out")


def test_an_archive_without_the_pinned_directory_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    sha256 = make_archive(archive, upstream_members(UPSTREAM))
    with pytest.raises(UnsafeArchiveError, match="no directory 'elsewhere'"):
        unpack(archive, sha256, "elsewhere", tmp_path / "out")


def test_another_tree_under_the_right_hash_is_refused(empty_checkout: Checkout) -> None:
    sha256 = make_archive(empty_checkout.archive, upstream_members(UPSTREAM))
    empty_checkout.write_pin(sha256=sha256, tree="1" * 40)
    outcome = empty_checkout.run("fetch", "--archive", str(empty_checkout.archive))
    assert outcome.code == 3
    assert "git tree id" in outcome.text
    assert not empty_checkout.tree.exists()


def test_only_the_pinned_directory_is_unpacked_with_its_bytes_and_modes(checkout: Checkout) -> None:
    assert checkout.content() == UPSTREAM
    assert {path for path in UPSTREAM if os.access(checkout.tree / path, os.X_OK)} == EXECUTABLE


def test_modes_do_not_depend_on_the_umask(empty_checkout: Checkout) -> None:
    before = os.umask(0o077)
    try:
        empty_checkout.run("fetch", "--archive", str(empty_checkout.archive))
    finally:
        os.umask(before)
    assert (empty_checkout.tree / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (empty_checkout.tree / "src/a.cpp").stat().st_mode & 0o777 == 0o644


def test_the_tree_id_is_the_one_that_git_computes(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    # Names that sort differently as files and as directories, an ignored file, CRLF, an empty directory.
    for path in ("a/x", "a.b", "a-b", "z/.gitignore", "z/y.o", "sub/ä"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(f"{path}\r\n".encode())
    (tree / "z/.gitignore").write_text("*.o\n", encoding="utf-8")
    (tree / "a-b").chmod(0o755)
    (tree / "empty").mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_DIR": str(tmp_path / "store"),
        "GIT_WORK_TREE": str(tree),
    }

    def git(*arguments: str) -> str:
        return subprocess.check_output(["git", *arguments], cwd=tree, env=environment, text=True).strip()

    git("init", "--quiet")
    git("-c", "core.autocrlf=false", "add", "--all", "--force")
    assert snapshot(Store(tmp_path / "own.git"), tree) == git("write-tree")


@pytest.mark.parametrize("kept", ["store", "archive"])
def test_a_second_tree_needs_neither_the_file_nor_the_network(checkout: Checkout, kept: str) -> None:
    checkout.archive.unlink()
    shutil.rmtree(checkout.tree)
    if kept == "archive":
        shutil.rmtree(checkout.cache / "store.git")
    else:
        next(checkout.cache.glob("*.gz")).unlink()
    outcome = checkout.run("fetch")
    assert outcome.code == 0
    assert outcome.data["unpacked"] is True
    assert "downloading" not in outcome.text
    assert checkout.content() == UPSTREAM


def test_a_damaged_cached_archive_is_not_used(checkout: Checkout) -> None:
    (cached,) = checkout.cache.glob("*.gz")
    cached.write_bytes(cached.read_bytes()[:-1])
    shutil.rmtree(checkout.cache / "store.git")
    shutil.rmtree(checkout.tree)
    outcome = checkout.run("apply")
    assert outcome.code == 7
    assert outcome.data["error"]["type"] == "SourceMissingError"
    assert checkout.run("status").data["source_at_hand"] is False
    assert checkout.run("fetch", "--archive", str(checkout.archive)).code == 0
    assert checkout.content() == UPSTREAM


def test_fetch_leaves_an_existing_tree_alone(checkout: Checkout) -> None:
    (checkout.tree / "src/a.cpp").write_bytes(b"mine\n")
    outcome = checkout.run("fetch")
    assert outcome.code == 0
    assert outcome.data["unpacked"] is False
    assert (checkout.tree / "src/a.cpp").read_bytes() == b"mine\n"
