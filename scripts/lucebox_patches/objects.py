"""git object ids of files and directories, computed without git.

A *manifest* maps the path of each file (relative, with ``/``) to ``"MODE ID"``: git's file mode and the blob id, for
example ``"100644 e69de29b…"``. Empty directories do not appear, as in git.

The object formats are those of git: the SHA-1 of a header ``TYPE LENGTH NUL`` and the content; a tree's content is
one ``MODE NAME NUL ID`` record per entry, sorted by name as if directory names ended in ``/``.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Union

REGULAR = "100644"
EXECUTABLE = "100755"
_LINK = "120000"
_DIRECTORY = "40000"

_Node = dict[str, Union[str, "_Node"]]


def _object_id(kind: str, content: bytes) -> str:
    # SHA-1 names the object here, as git does; whether the archive can be trusted is decided by its sha256.
    digest = hashlib.sha1(f"{kind} {len(content)}\0".encode(), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest()


def file_entry(content: bytes, *, executable: bool) -> str:
    """Return the manifest entry of a regular file."""
    return f"{EXECUTABLE if executable else REGULAR} {_object_id('blob', content)}"


def path_entry(path: Path) -> str | None:
    """Return the manifest entry of what stands at `path`, or None if there is no file or link."""
    try:
        info = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(info.st_mode):
        return f"{_LINK} {_object_id('blob', os.fsencode(path.readlink()))}"
    if not stat.S_ISREG(info.st_mode):
        return None
    return file_entry(path.read_bytes(), executable=bool(info.st_mode & stat.S_IXUSR))


def scan(root: Path, *, skip: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the manifest of a directory on disk.

    Python's ``__pycache__`` directories are left out: running a script of the tree makes them.

    Parameters
    ----------
    root
        Directory to read; a directory that does not exist has an empty manifest.
    skip
        Relative paths to leave out.
    """
    manifest: dict[str, str] = {}
    for directory, subdirs, files in os.walk(root):
        subdirs[:] = [name for name in subdirs if name != "__pycache__"]
        # os.walk counts links to directories as directories but does not enter them; here they are entries.
        for name in files + subdirs:
            path = Path(directory, name)
            relative = path.relative_to(root).as_posix()
            entry = None if relative in skip else path_entry(path)
            if entry is not None:
                manifest[relative] = entry
    return manifest


def tree_id(manifest: Mapping[str, str]) -> str:
    """Return the git tree id, 40 hexadecimal digits, of the directory that `manifest` describes."""
    root: _Node = {}
    for path, entry in manifest.items():
        *parents, name = path.split("/")
        node = root
        for parent in parents:
            child = node.setdefault(parent, {})
            if isinstance(child, str):
                raise ValueError(f"{path!r} lies below a file")
            node = child
        node[name] = entry
    return _tree_id(root)


def _tree_id(node: _Node) -> str:
    records: list[tuple[bytes, bytes]] = []
    for name, child in node.items():
        encoded = os.fsencode(name)
        if isinstance(child, str):
            mode, object_id = child.split(" ")
            sort_key = encoded
        else:
            mode, object_id = _DIRECTORY, _tree_id(child)
            sort_key = encoded + b"/"
        records.append((sort_key, mode.encode() + b" " + encoded + b"\0" + bytes.fromhex(object_id)))
    return _object_id("tree", b"".join(record for _, record in sorted(records)))
