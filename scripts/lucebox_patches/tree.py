"""The vendor tree: its stamp, and bringing it to a wanted content without touching what is already right.

The stamp ``.lucebox-stamp.json`` says from which base and which patches the tree was made, and lists each file's
manifest entry, so that changes made by hand can be told from ours. It holds no time and no path of the machine: the
same base and series give the same bytes. Builds read ``upstream``, ``series_hash`` and ``tree`` from it.

Replacing the whole directory would give every file a new time and make an incremental build compile everything. So an
existing tree is changed file by file, each with one rename, and only where the content differs. What keeps an
interruption harmless is the stamp: before the first file it is rewritten with the state ``"writing"`` and with the old
and the new content of every file as ours; after the last file it is rewritten as ``"complete"``. A tree that is found
in state ``"writing"`` is not up to date for anyone, and the next run finishes the job, however many runs were cut off.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DirtyTreeError
from .layout import write_text
from .objects import EXECUTABLE, scan
from .store import Store

STAMP_NAME = ".lucebox-stamp.json"
SCHEMA = 1
COMPLETE, WRITING = "complete", "writing"
_PLACING = ".lucebox-placing"
_NOT_CONTENT = frozenset({STAMP_NAME, f".{STAMP_NAME}.tmp", _PLACING})


@dataclass(frozen=True)
class AppliedPatch:
    """A patch that the tree contains, and the paths that it changed."""

    name: str
    sha256: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Stamp:
    """Content of the stamp.

    Attributes
    ----------
    state
        ``"complete"`` or ``"writing"``.
    upstream
        `Pin.identity` of the base.
    series_hash
        Hash of the patches in the tree, 64 hexadecimal digits.
    series
        These patches, in order.
    tree
        git tree id of the content without the stamp.
    files
        For each path the manifest entries that our tool may have left there.
    """

    state: str
    upstream: Mapping[str, str]
    series_hash: str
    series: Sequence[AppliedPatch]
    tree: str
    files: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Changes:
    """How a tree differs from its stamp; a source distribution carries only a part, so files are missing there."""

    modified: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Synced:
    """Paths that `sync_tree` wrote and removed, sorted."""

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def read_stamp(tree: Path) -> Stamp | None:
    """Return the stamp of a tree, or None if there is none that this version understands."""
    try:
        data = json.loads((tree / STAMP_NAME).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            return None
        series = [AppliedPatch(item["name"], item["sha256"], tuple(item["files"])) for item in data["series"]]
        return Stamp(data["state"], data["upstream"], data["series_hash"], series, data["tree"], data["files"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None  # a stamp that cannot be read proves nothing, which is what no stamp means


def _write_stamp(tree: Path, stamp: Stamp) -> None:
    data: dict[str, Any] = {"schema": SCHEMA, **dataclasses.asdict(stamp)}
    data["files"] = dict(sorted(data["files"].items()))
    write_text(tree / STAMP_NAME, json.dumps(data, indent=1) + "\n")


def compare(tree: Path, files: Mapping[str, Sequence[str]]) -> Changes:
    """Compare a tree with the entries that its stamp lists."""
    current = scan(tree, skip=_NOT_CONTENT)
    return Changes(
        modified=tuple(sorted(path for path, entry in current.items() if path in files and entry not in files[path])),
        added=tuple(sorted(current.keys() - files.keys())),
        missing=tuple(sorted(files.keys() - current.keys())),
    )


def snapshot(store: Store, tree: Path) -> str:
    """Write what stands in the vendor tree, changes by hand included, to the store and return its tree id."""
    manifest = scan(tree, skip=_NOT_CONTENT)
    stamp = read_stamp(tree)
    known = {entry for entries in (stamp.files.values() if stamp else ()) for entry in entries}
    store.blobs(tree, [path for path, entry in manifest.items() if entry not in known])
    return store.write_tree(manifest)


def sync_tree(
    store: Store, tree: Path, stamp: Stamp, ours: Sequence[Mapping[str, Sequence[str]]], *, discard: bool
) -> Synced:
    """Give a directory the content that `stamp` describes; files of neither the old nor the new content stay.

    Parameters
    ----------
    store
        Has the content.
    tree
        Directory to change; made if absent.
    stamp
        Describes the wanted content, one entry per path.
    ours
        Contents that may be overwritten or removed without loss: for each path the entries known to be ours.
    discard
        Give up all changes made by hand, files added by hand included.

    Raises
    ------
    DirtyTreeError
        If a file that must change holds something that is not ours and `discard` is not set. Nothing was changed.
    """
    (tree / _PLACING).unlink(missing_ok=True)
    current = scan(tree, skip=_NOT_CONTENT)
    known: dict[str, set[str]] = {}
    for contents in (*ours, stamp.files):
        for path, entries in contents.items():
            known.setdefault(path, set()).update(entries)
    written = sorted(path for path, entries in stamp.files.items() if current.get(path) != entries[0])
    removed = sorted(path for path in current if path not in stamp.files and (discard or path in known))
    if not discard:
        lost = sorted(path for path in current.keys() & {*written, *removed} if current[path] not in known[path])
        if lost:
            raise DirtyTreeError(tree, lost)
    if written or removed:
        both = {path: sorted(entries) for path, entries in known.items()}
        _write_stamp(tree, dataclasses.replace(stamp, state=WRITING, files=both))
        for path in removed:
            (tree / path).unlink()
            for parent in (tree / path).parents:
                if parent == tree or any(parent.iterdir()):
                    break
                parent.rmdir()
        entries_of = [stamp.files[path][0].split(" ") for path in written]
        for path, (mode, _), content in zip(written, entries_of, store.read(e[1] for e in entries_of), strict=True):
            # One rename each, so that no file is ever half written; the one name is taken over after a kill.
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / _PLACING).write_bytes(content)
            (tree / _PLACING).chmod(0o755 if mode == EXECUTABLE else 0o644)
            (tree / _PLACING).replace(tree / path)
    _write_stamp(tree, dataclasses.replace(stamp, state=COMPLETE))
    return Synced(tuple(written), tuple(removed))
