"""A fake upstream, its archive, a checkout that pins it, and ways to disturb a run."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lucebox_patches.cli import main
from lucebox_patches.tree import STAMP_NAME

TOP = "fake_upstream-1.0"
SUBDIR = "llama.cpp"


def lines(prefix: str, count: int = 20) -> str:
    """Return numbered lines, so that each context is unique."""
    return "".join(f"{prefix} {number}\n" for number in range(1, count + 1))


UPSTREAM: dict[str, bytes] = {
    "CMakeLists.txt": b"project(fake)\n",
    "src/a.cpp": lines("a").encode(),
    "src/b.cpp": lines("b").encode(),
    "src/deep/c.h": lines("c").encode(),
    "tools/crlf.txt": lines("d").replace("\n", "\r\n").encode(),
    "run.sh": b"#!/bin/sh\n",
}
EXECUTABLE = frozenset({"run.sh"})


def diff(path: str, old: bytes, new: bytes) -> bytes:
    """Return a patch with a mail-like header that turns `old` into `new`; empty bytes mean no file."""
    body = difflib.diff_bytes(
        difflib.unified_diff,
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        b"a/" + path.encode() if old else b"/dev/null",
        b"b/" + path.encode() if new else b"/dev/null",
    )
    return b"Subject: change " + path.encode() + b"\n\nWhy it is done.\n---\n" + b"".join(body)


def change(path: str, old: str, new: str, base: bytes | None = None) -> bytes:
    """Return a patch that replaces one text in an upstream file (or in `base`)."""
    content = UPSTREAM[path] if base is None else base
    assert content.count(old.encode()) == 1
    return diff(path, content, content.replace(old.encode(), new.encode()))


FIELDS = {
    "Class": "fix",
    "Origin": "own",
    "Forwarded": "no",
    "Test": "tests/test_it.py",
    "Changes-Output": "no",
    "Drop-When": "upstream does it",
    "Last-Update": "2026-01-02",
}


def mail(subject: str, body: bytes, reason: str = "Why it is done.", **fields: str) -> bytes:
    """Return a patch with a complete header; `body` is a diff or another patch, `fields` have ``_`` for ``-``."""
    start = body.find(b"diff --git ")
    start = start if start >= 0 else body.find(b"--- a/") if b"--- a/" in body else body.find(b"--- /dev/null")
    values = FIELDS | {name.replace("_", "-"): value for name, value in fields.items()}
    text = "".join(f"{name}: {value}\n" for name, value in values.items() if value)
    head = f"From: A Person <a@example.org>\nDate: Fri, 02 Jan 2026 03:04:05 +0000\nSubject: {subject}\n"
    return f"{head}\n{reason}\n\n{text}---\n".encode() + body[start:]


def replaced(path: str, *pairs: tuple[str, str], base: bytes | None = None) -> bytes:
    """Return an upstream file (or `base`) with texts replaced, each of which must stand there once."""
    content = UPSTREAM[path] if base is None else base
    for old, new in pairs:
        assert content.count(old.encode()) == 1, old
        content = content.replace(old.encode(), new.encode())
    return content


def edits(subject: str, path: str, *pairs: tuple[str, str], base: bytes | None = None, **fields: str) -> bytes:
    """Return a complete patch that replaces texts in an upstream file (or in `base`)."""
    before = UPSTREAM[path] if base is None else base
    return mail(subject, diff(path, before, replaced(path, *pairs, base=before)), f"Because of {subject}.", **fields)


_FIVE = replaced("src/a.cpp", ("a 5\n", "a five\n"))
THREE = {
    "five.patch": edits("a: five", "src/a.cpp", ("a 5\n", "a five\n")),
    "ten.patch": edits("b: ten", "src/b.cpp", ("b 10\n", "b ten\n")),
    "larger.patch": edits("a: larger", "src/a.cpp", ("a five\n", "a FIVE\n"), ("a 15\n", "a fifteen\n"), base=_FIVE),
}
"""Three patches, of which the last changes a line that the first has written, and another."""
WITH_THREE = UPSTREAM | {
    "src/a.cpp": replaced("src/a.cpp", ("a 5\n", "a FIVE\n"), ("a 15\n", "a fifteen\n")),
    "src/b.cpp": replaced("src/b.cpp", ("b 10\n", "b ten\n")),
}


def make_archive(path: Path, members: Sequence[tuple[tarfile.TarInfo, bytes]]) -> str:
    """Write a gzip-compressed tar archive and return its sha256."""
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def member(name: str, content: bytes = b"", *, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    """Return a regular file for `make_archive`."""
    info = tarfile.TarInfo(name)
    info.mode = mode
    return info, content


def upstream_members(files: Mapping[str, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return the members of an sdist: its own files, and the upstream below ``SUBDIR``."""
    own = [member(f"{TOP}/setup.py", b"raise SystemExit('must never run')\n")]
    return own + [
        member(f"{TOP}/{SUBDIR}/{path}", content, mode=0o755 if path in EXECUTABLE else 0o644)
        for path, content in files.items()
    ]


@dataclass(frozen=True)
class Outcome:
    """What one run of the command line gave."""

    code: int
    data: dict[str, Any]
    text: str


class KilledError(BaseException):
    """Stands for a process that ends in the middle: nothing in the tool handles it."""


@contextlib.contextmanager
def snapshots(checkout: Checkout) -> Iterator[list[Checkout]]:
    """Copy the checkout before each step of the run inside: what a process leaves that is killed there.

    A step puts a file into place or removes one; what was written before under another name is in the copy as well.
    """
    taken: list[Checkout] = []

    def after_copying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            taken.append(checkout.copy(f"killed-at-{len(taken) + 1}"))
            return real(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patcher:
        for name in ("replace", "unlink", "rmdir"):
            patcher.setattr(Path, name, after_copying(getattr(Path, name)))
        yield taken


def plain_git(*arguments: str, cwd: Path, stdin: bytes = b"") -> str:
    """Run git as on a machine without any settings."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | {
        "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C",
    }
    who = ("-c", "user.name=A Person", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", *who, *arguments], cwd=cwd, env=environment, input=stdin, stdout=subprocess.PIPE, check=True
    ).stdout.decode().strip()


def make_repository(directory: Path, files: Mapping[str, bytes], *tags: str) -> str:
    """Make a repository with one commit of these files and return the commit id."""
    directory.mkdir(exist_ok=True)
    write_files(directory, files)
    plain_git("init", "--quiet", cwd=directory)
    plain_git("-c", "core.autocrlf=false", "add", "--all", "--force", cwd=directory)
    plain_git("commit", "--quiet", "-m", "base", cwd=directory)
    for tag in tags:
        plain_git("tag", tag, cwd=directory)
    return plain_git("rev-parse", "HEAD", cwd=directory)


def write_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files with the modes that the fake upstream has."""
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
        (directory / path).chmod(0o755 if path in EXECUTABLE else 0o644)


Prepared = Callable[[str, Callable[["Checkout"], None]], "Checkout"]
"""Type of the fixture ``prepared``."""


def tree_id(files: Mapping[str, bytes]) -> str:
    """Return git's tree id of these files, which have the modes of the fake upstream."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_files(root, files)
        plain_git("init", "--quiet", cwd=root)
        plain_git("-c", "core.autocrlf=false", "add", "--all", "--force", cwd=root)
        return plain_git("write-tree", cwd=root)


class Checkout:
    """A directory laid out like the repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = root / "vendor" / "llama.cpp"
        self.cache = root / "vendor" / ".cache"
        self.patches = root / "patches"
        self.pin_file = root / "vendor" / "upstream.toml"
        self.archive = root.parent / "upstream.tar.gz"
        self.tree.parent.mkdir(parents=True, exist_ok=True)
        self.patches.mkdir(exist_ok=True)

    def copy(self, name: str) -> Checkout:
        """Return a copy of everything, beside this one."""
        shutil.copytree(self.root, self.root.parent / name, symlinks=True)
        return Checkout(self.root.parent / name)

    def pin_upstream(self, files: Mapping[str, bytes], *, build: str = "b1") -> None:
        """Make an archive of `files` and pin it."""
        sha256 = make_archive(self.archive, upstream_members(files))
        self.write_pin(sha256=sha256, tree=tree_id(files), build=build)

    def write_pin(self, **values: str) -> None:
        """Write the pin file."""
        defaults = {
            "name": "fake-upstream",
            "version": "1.0",
            "subdir": SUBDIR,
            "licence": "MIT",
            "build": "b1",
            "llama_cpp_version": "0.0.1",
        }
        text = "# A comment.\n\n" + "".join(f'{key} = "{value}"\n' for key, value in (defaults | values).items())
        self.pin_file.write_text(text, encoding="utf-8")

    def set_series(self, patches: Mapping[str, bytes]) -> None:
        """Replace the series."""
        for old in self.patches.glob("*.patch"):
            old.unlink()
        for name, content in patches.items():
            (self.patches / name).write_bytes(content)
        (self.patches / "series").write_text("# The order.\n" + "".join(f"{name}\n" for name in patches), "utf-8")

    def set_exported(self, patches: Mapping[str, bytes]) -> None:
        """Replace the series, bring it into the form of ``export``, and apply it."""
        (self.root / "tests").mkdir(exist_ok=True)
        (self.root / "tests" / "test_it.py").touch()
        self.set_series(patches)
        self.ok("export")
        self.ok("apply")

    def run(self, *arguments: str) -> Outcome:
        """Run the command line in this process with ``--json``."""
        out, err = io.StringIO(), io.StringIO()
        first = [*arguments[: arguments.index("--")], "--json", *arguments[arguments.index("--") :]] if (
            "--" in arguments) else [*arguments, "--json"]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(first, self.root)
        return Outcome(code, json.loads(out.getvalue()), err.getvalue())

    def ok(self, *arguments: str) -> Outcome:
        """Run a command that must succeed."""
        outcome = self.run(*arguments)
        assert outcome.code == 0, outcome.text
        return outcome

    def fetch(self, files: Mapping[str, bytes], version: str = "2.0.0") -> None:
        """Get another version of the upstream into the store; its build is ``b`` and the first number."""
        archive = self.root.parent / f"other-{version}.tar.gz"
        make_archive(archive, upstream_members(files))
        self.ok("fetch", version, "--archive", str(archive))

    def edit_file(self, path: str, *pairs: tuple[str, str]) -> None:
        """Replace texts in a file of the vendor tree by hand."""
        (self.tree / path).write_bytes(replaced(path, *pairs, base=(self.tree / path).read_bytes()))

    def series_files(self) -> dict[str, bytes]:
        """Return the files of the patch directory."""
        return {path.name: path.read_bytes() for path in sorted(self.patches.iterdir())}

    def everything(self) -> dict[str, tuple[int, bytes]]:
        """Return mode and content of every file of the checkout except the cache."""
        return {
            path.relative_to(self.root).as_posix(): (path.stat().st_mode, path.read_bytes())
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and self.cache not in path.parents
        }

    def content(self) -> dict[str, bytes]:
        """Return all files of the vendor tree except the stamp."""
        return {
            path.relative_to(self.tree).as_posix(): path.read_bytes()
            for path in self.tree.rglob("*")
            if path.is_file() and path.name != STAMP_NAME
        }

    def stamp(self) -> dict[str, Any]:
        """Return the stamp."""
        data: dict[str, Any] = json.loads((self.tree / STAMP_NAME).read_text(encoding="utf-8"))
        return data

    def age_files(self) -> None:
        """Give every file of the tree a time long ago, so that rewriting one shows."""
        for path in self.tree.rglob("*"):
            os.utime(path, (1000, 1000))

    def young_files(self) -> set[str]:
        """Return the files written since `age_files`, without the stamp."""
        return {path for path in self.content() if (self.tree / path).stat().st_mtime > 1000}
