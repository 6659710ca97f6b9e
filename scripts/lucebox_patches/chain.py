"""Trees after each patch, and carrying a patch to another tree.

A *step* is a patch with the trees before and after it. On the base that the series was made for, a patch must apply
without fuzz. Anywhere else it is carried by a three-way merge of the files that it changes, whose three sides are in
one store, so nothing is ever guessed from context.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import EmptyPatchError
from .series import Patch, Series
from .store import Offset, Store, conflict

CLEAN, OFFSET, THREE_WAY = "clean", "offset", "three-way"
UPSTREAMED, UPSTREAMED_OTHERWISE = "upstreamed", "upstreamed in another form"
CONFLICT, CONFLICT_PROBABLY_UPSTREAMED = "conflict", "conflict, probably upstreamed"
EMPTY = (UPSTREAMED, UPSTREAMED_OTHERWISE)


@dataclass(frozen=True)
class Step:
    """A patch of the series on its base; `before` and `after` are tree ids, `files` the paths that differ."""

    patch: Patch
    before: str
    after: str
    files: tuple[str, ...]
    offsets: tuple[Offset, ...]


@dataclass(frozen=True)
class Carried:
    """A patch brought to another tree.

    Attributes
    ----------
    outcome
        `CLEAN`, `OFFSET`, `THREE_WAY`, one of `EMPTY`, or one of the two conflicts.
    tree
        The tree with it; in a conflict the files in question hold marked sections.
    offsets
        Hunks that had moved.
    conflicts
        Files that a person must look at.
    """

    outcome: str
    tree: str
    offsets: tuple[Offset, ...] = ()
    conflicts: tuple[str, ...] = ()


def build_chain(store: Store, base: str, series: Series) -> list[Step]:
    """Apply the series to its base.

    Raises
    ------
    ConflictError
        If a patch does not apply without fuzz.
    EmptyPatchError
        If the base already holds what a patch does.
    """
    steps: list[Step] = []
    tree = base
    for position, patch in enumerate(series.patches, start=1):
        after, offsets, log = store.apply(tree, patch.diff or patch.content)
        if after == tree or (not after and patch.diff and store.apply(tree, patch.diff, "--reverse")[0]):
            raise EmptyPatchError([patch.name])
        if not after:
            raise conflict(patch.name, position, log)
        steps.append(Step(patch, tree, after, changed_files(store, tree, after), offsets))
        tree = after
    return steps


def changed_files(store: Store, before: str, after: str) -> tuple[str, ...]:
    """Return the paths that differ between two trees, sorted."""
    names = store.git("diff-tree", "-r", "-z", "--name-only", "--no-renames", before, after).stdout
    return tuple(sorted(name for name in names.decode("utf-8", "surrogateescape").split("\0") if name))


def carry(store: Store, tree: str, before: str, after: str) -> Carried:
    """Bring what leads from `before` to `after` onto `tree`; touches nothing but the store."""
    diff = store.diff(before, after)
    merged, conflicts = merge(store, before, tree, after)
    applied, offsets, _ = store.apply(tree, diff)
    # The merge decides: with an offset, a diff alone may land in another function that looks the same.
    if applied and (applied == merged if not conflicts else not offsets):
        return Carried(OFFSET if offsets else CLEAN, applied, offsets)
    if not applied and store.apply(tree, diff, "--reverse")[0]:
        return Carried(UPSTREAMED, tree)
    if conflicts:
        known = _added_lines_are_there(store, tree, diff)
        return Carried(CONFLICT_PROBABLY_UPSTREAMED if known else CONFLICT, merged, conflicts=conflicts)
    return Carried(UPSTREAMED_OTHERWISE if merged == tree else THREE_WAY, merged)


def merge(store: Store, base: str, ours: str, theirs: str) -> tuple[str, tuple[str, ...]]:
    """Merge three trees file by file; return the merged tree and the files in conflict, sorted.

    A text conflict leaves sections in git's diff3 form. Where one side removed the file, the other side's stays.
    """
    sides = [store.manifest(tree) for tree in (base, ours, theirs)]
    result = dict(sides[1])
    conflicts: list[str] = []
    for path in changed_files(store, base, theirs):
        old, mine, new = (side.get(path) for side in sides)
        if mine == new:
            continue
        if mine == old:
            if new is None:
                del result[path]
            else:
                result[path] = new
        elif old is None or mine is None or new is None:
            conflicts.append(path)
            result[path] = mine or new or ""
        else:
            content, clean = _merge_file(store, [entry.split(" ")[1] for entry in (mine, old, new)])
            mode = new if new.split(" ")[0] != old.split(" ")[0] else mine
            result[path] = f"{mode.split(' ')[0]} {store.blob(content)}"
            conflicts += [] if clean else [path]
    return store.write_tree(result), tuple(conflicts)


def _merge_file(store: Store, blobs: Sequence[str]) -> tuple[bytes, bool]:
    with tempfile.TemporaryDirectory(dir=store.path) as directory:
        files = [Path(directory, name) for name in ("sources", "base", "patch")]
        for file, content in zip(files, store.read(blobs), strict=True):
            file.write_bytes(content)
        labels = [word for name in ("the sources", "before the patch", "the patch") for word in ("-L", name)]
        arguments = ["merge-file", "-p", "--diff3", *labels, *map(str, files)]
        done = store.git(*arguments, allowed=tuple(range(256)))
    # Up to 127 it is the number of conflicts; above, the file cannot be merged as text, and upstream's side stays.
    return (done.stdout if done.returncode <= 127 else store.read(blobs[:1])[0]), done.returncode == 0


def _added_lines_are_there(store: Store, tree: str, diff: bytes) -> bool:
    """Return whether every line of some length that the diff adds stands in its file already."""
    manifest = store.manifest(tree)
    present: set[bytes] = set()
    found = False
    for line in diff.split(b"\n"):
        if line.startswith(b"+++ b/"):
            entry = manifest.get(line[6:].rstrip(b"\t").decode("utf-8", "surrogateescape"), "")
            present = {text.strip() for text in store.read([entry.split(" ")[1]])[0].split(b"\n")} if entry else set()
        elif line.startswith(b"+") and len(line.strip()) > 8:
            if line[1:].strip() not in present:
                return False
            found = True
    return found


def has_markers(content: bytes) -> bool:
    """Return whether a text still has sections of a conflict."""
    starts = {line[:8] for line in content.split(b"\n")}
    return b"<<<<<<< " in starts or b">>>>>>> " in starts


def where(store: Store, tree: str, diff: bytes) -> str:
    """Return where the first added line of each file of a diff stands in a tree."""
    manifest = store.manifest(tree)
    found: dict[str, str] = {}
    path = ""
    for line in diff.decode("utf-8", "surrogateescape").split("\n"):
        if line.startswith("+++ b/"):
            path = line[6:].rstrip("\t")
        elif line.startswith("+") and path in manifest and path not in found and len(line.strip()) > 8:
            lines = store.read([manifest[path].split(" ")[1]])[0].decode("utf-8", "surrogateescape").split("\n")
            if line[1:] in lines:
                found[path] = f"{path}:{lines.index(line[1:]) + 1} has {line[1:].strip()!r}"
    return "; ".join(found.values()) or "it only removes lines, and they are gone"
