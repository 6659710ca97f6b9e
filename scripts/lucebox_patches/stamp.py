"""The stamp of the vendor tree: ``vendor/llama.cpp/.lucebox-stamp.json``.

It says from which base and which series the tree was made, and lists each file's manifest entry, so that changes made
by hand can be told from ours. It holds no time and no path of the machine: the same base and series give the same
bytes. Builds read ``upstream``, ``series_hash`` and ``tree`` from it.

``state`` is ``"complete"``, or ``"writing"`` while the tree is being changed. A tree that carries ``"writing"`` was
interrupted; the entries of each file then list the old and the new content, both of which are ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STAMP_NAME = ".lucebox-stamp.json"
SCHEMA = 1
COMPLETE = "complete"
WRITING = "writing"


@dataclass(frozen=True)
class AppliedPatch:
    """A patch that the tree contains.

    Attributes
    ----------
    name, sha256
        The patch file.
    files
        Paths that it changed, sorted.
    """

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
        Hash of the series in the tree, 64 hexadecimal digits.
    series
        The patches in the tree, in order.
    tree
        git tree id of the patched tree without the stamp.
    files
        For each path the manifest entries that our tool may have left there.
    """

    state: str
    upstream: Mapping[str, str]
    series_hash: str
    series: Sequence[AppliedPatch]
    tree: str
    files: Mapping[str, Sequence[str]]


def read_stamp(tree: Path) -> Stamp | None:
    """Return the stamp of a tree, or None if there is none that this version understands."""
    try:
        data = json.loads((tree / STAMP_NAME).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            return None
        series = [AppliedPatch(item["name"], item["sha256"], tuple(item["files"])) for item in data["series"]]
        return Stamp(data["state"], data["upstream"], data["series_hash"], series, data["tree"], data["files"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        # A stamp that cannot be read proves nothing, which is what no stamp means.
        return None


def write_stamp(tree: Path, stamp: Stamp) -> None:
    """Write the stamp of a tree in one step: a reader sees the old one or the new one."""
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "state": stamp.state,
        "upstream": dict(stamp.upstream),
        "series_hash": stamp.series_hash,
        "series": [{"name": p.name, "sha256": p.sha256, "files": list(p.files)} for p in stamp.series],
        "tree": stamp.tree,
        "files": {path: list(entries) for path, entries in sorted(stamp.files.items())},
    }
    temporary = tree / f"{STAMP_NAME}.tmp"
    temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    temporary.replace(tree / STAMP_NAME)
