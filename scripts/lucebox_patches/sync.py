"""Bringing the vendor tree to a wanted content without touching what is already right.

Replacing the whole directory would give every file a new time and make an incremental build compile everything. So
an existing tree is changed file by file, each with one rename, and only where the content differs. What keeps an
interruption harmless is the stamp: before the first file it is rewritten with the state ``"writing"`` and with the old
and the new content of every file as ours; after the last file it is rewritten as ``"complete"``. A tree that is found
in state ``"writing"`` is not up to date for anyone, and the next run finishes the job, however many runs were cut off.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import DirtyTreeError
from .objects import scan
from .stamp import COMPLETE, STAMP_NAME, WRITING, Stamp, write_stamp

_NOT_CONTENT = frozenset({STAMP_NAME, f"{STAMP_NAME}.tmp"})


@dataclass(frozen=True)
class Changes:
    """How a tree differs from what its stamp says.

    Attributes
    ----------
    modified, added, missing
        Paths, sorted. Files are also missing from a source distribution that carries only part of the tree.
    """

    modified: tuple[str, ...]
    added: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Synced:
    """What `sync_tree` did.

    Attributes
    ----------
    written, removed
        Paths, sorted.
    """

    written: tuple[str, ...]
    removed: tuple[str, ...]


def compare(tree: Path, files: Mapping[str, Sequence[str]]) -> Changes:
    """Compare a tree with the entries that its stamp lists."""
    current = scan(tree, skip=_NOT_CONTENT)
    return Changes(
        modified=tuple(sorted(path for path, entry in current.items() if path in files and entry not in files[path])),
        added=tuple(sorted(current.keys() - files.keys())),
        missing=tuple(sorted(files.keys() - current.keys())),
    )


def sync_tree(
    source: Path,
    manifest: Mapping[str, str],
    tree: Path,
    stamp: Stamp,
    ours: Sequence[Mapping[str, Sequence[str]]],
    *,
    discard: bool,
) -> Synced:
    """Give an existing tree the content of `source`, moving files out of it.

    Files that belong to neither the old nor the new content stay, unless `discard` is set.

    Parameters
    ----------
    source
        Directory on the same file system that holds exactly the files of `manifest`.
    manifest
        Wanted content.
    tree
        Directory to change.
    stamp
        The stamp that belongs to the wanted content.
    ours
        Contents that may be overwritten or removed without loss: for each path the entries known to be ours.
    discard
        Give up all changes made by hand, files added by hand included.

    Raises
    ------
    DirtyTreeError
        If a file that must change holds something that is not ours and `discard` is not set. Nothing was changed.
    """
    current = scan(tree, skip=_NOT_CONTENT)
    known: dict[str, set[str]] = {}
    for contents in (*ours, {path: [entry] for path, entry in manifest.items()}):
        for path, entries in contents.items():
            known.setdefault(path, set()).update(entries)
    written = sorted(path for path, entry in manifest.items() if current.get(path) != entry)
    removed = sorted(path for path in current if path not in manifest and (discard or path in known))
    if not discard:
        replaced = current.keys() & {*written, *removed}
        lost = sorted(path for path in replaced if current[path] not in known[path])
        if lost:
            raise DirtyTreeError(tree, lost)
    if written or removed:
        both = {path: sorted(entries) for path, entries in known.items()}
        write_stamp(tree, dataclasses.replace(stamp, state=WRITING, files=both))
        for path in removed:
            (tree / path).unlink()
            _remove_empty_parents(tree, path)
        for path in written:
            target = tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            # Newer than everything that was ever built from the old content.
            os.utime(source / path)
            (source / path).replace(target)
    write_stamp(tree, dataclasses.replace(stamp, state=COMPLETE))
    return Synced(tuple(written), tuple(removed))


def _remove_empty_parents(tree: Path, path: str) -> None:
    for parent in (tree / path).parents:
        if parent == tree or any(parent.iterdir()):
            return
        parent.rmdir()
