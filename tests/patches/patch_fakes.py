"""A fake upstream, its archive, and a checkout that pins it."""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lucebox_patches.cli import main
from lucebox_patches.objects import file_entry, tree_id
from lucebox_patches.stamp import STAMP_NAME

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


class Checkout:
    """A directory laid out like the repository."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.tree = root / "vendor" / "llama.cpp"
        self.cache = root / "vendor" / ".cache"
        self.patches = root / "patches"
        self.pin_file = root / "vendor" / "upstream.toml"
        self.archive = root.parent / "upstream.tar.gz"
        self._capsys = capsys
        self.tree.parent.mkdir(parents=True)
        self.patches.mkdir()

    def pin_upstream(self, files: Mapping[str, bytes], *, build: str = "b1") -> None:
        """Make an archive of `files` and pin it."""
        sha256 = make_archive(self.archive, upstream_members(files))
        entries = {path: file_entry(content, executable=path in EXECUTABLE) for path, content in files.items()}
        self.write_pin(sha256=sha256, tree=tree_id(entries), build=build)

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

    def run(self, *arguments: str) -> Outcome:
        """Run the command line in this process with ``--json``."""
        self._capsys.readouterr()
        code = main([*arguments, "--json"], self.root)
        captured = self._capsys.readouterr()
        return Outcome(code, json.loads(captured.out), captured.err)

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
