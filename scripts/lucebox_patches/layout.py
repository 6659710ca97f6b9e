"""Where things are in a checkout, and the lock that lets one command at a time change them."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

Say = Callable[[str], None]
"""Takes one line for people."""


class Layout:
    """Paths of a checkout.

    Attributes
    ----------
    root
        Root of the repository or of an unpacked source distribution.
    pin_file, patches, expected
        The pin, the directory of the series, and the tree id that the whole series must give.
    tree
        The sources that are built.
    cache
        Archives, the object store, builds of prefixes, the lock; may be deleted while no session is open.
    session_file
        What an edit, a refresh or a rebase has done so far.
    journal
        A change of the series that is being written; whoever finds it finishes it.
    verify
        Where prefixes of the series are built.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pin_file = root / "vendor" / "upstream.toml"
        self.patches = root / "patches"
        self.expected = self.patches / "EXPECTED"
        self.tree = root / "vendor" / "llama.cpp"
        self.cache = root / "vendor" / ".cache"
        self.session_file = self.cache / "session.json"
        self.journal = self.cache / "journal.json"
        self.verify = self.cache / "verify"


def write_text(path: Path, text: str | bytes) -> None:
    """Write a file in one step: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text)
    temporary.replace(path)


@contextlib.contextmanager
def locked(layout: Layout, say: Say) -> Iterator[None]:
    """Hold the checkout's lock: two builds may start at the same time."""
    layout.cache.mkdir(parents=True, exist_ok=True)
    with (layout.cache / "lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another lucebox-patches to finish")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def work_directory(layout: Layout) -> Iterator[Path]:
    """Give an empty directory on the tree's file system; the lock makes one name enough.

    One name also means that what a killed run left behind is removed by the next one.
    """
    work = layout.cache / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
