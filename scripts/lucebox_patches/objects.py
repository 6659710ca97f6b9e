"""git object ids of files and directories, computed without git.

A *manifest* maps the path of each file (relative, with ``/``) to ``"MODE ID"``: git's file mode and the blob id, for
example ``"100644 e69de29b…"``. Empty directories do not appear, as in git.

A blob id is, as git has it, the SHA-1 of a header ``blob LENGTH NUL`` and the content.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

REGULAR = "100644"
EXECUTABLE = "100755"


def _blob_id(content: bytes) -> str:
    # SHA-1 names the object here, as git does; whether the archive can be trusted is decided by its sha256.
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


def file_entry(content: bytes, *, executable: bool) -> str:
    """Return the manifest entry of a regular file."""
    return f"{EXECUTABLE if executable else REGULAR} {_blob_id(content)}"


def path_entry(path: Path) -> str | None:
    """Return the manifest entry of the regular file at `path`, or None if there is none."""
    try:
        info = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(info.st_mode):
        return None
    return file_entry(path.read_bytes(), executable=bool(info.st_mode & stat.S_IXUSR))


def scan(root: Path, *, skip: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the manifest of a directory on disk.

    Python's ``__pycache__`` directories are left out, since running a script of the tree makes them, and so are links,
    which no upstream that we take has and which build tools make (``compile_commands.json``).

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
        for name in files:
            path = Path(directory, name)
            relative = path.relative_to(root).as_posix()
            entry = None if relative in skip else path_entry(path)
            if entry is not None:
                manifest[relative] = entry
    return manifest
