"""Verifying and unpacking a source distribution."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from .errors import HashMismatchError, UnsafeArchiveError
from .objects import file_entry

_CHUNK_BYTES = 1 << 20
_OWNER_EXECUTE = 0o100


def file_sha256(file: BinaryIO) -> str:
    """Return the sha256 of the rest of an open file, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def unpack(path: Path, sha256: str, subdir: str, destination: Path) -> dict[str, str]:
    """Verify an archive and unpack one directory of it.

    The sha256 is compared before anything interprets the file, and both steps use the same open file, so that it
    cannot be exchanged in between.

    Parameters
    ----------
    path
        The gzip-compressed tar archive.
    sha256
        What its hash must be.
    subdir
        The directory wanted, below the archive's top directory.
    destination
        New directory to fill; the caller removes it if this raises.

    Returns
    -------
    dict
        Manifest of the unpacked files (see `objects`).

    Raises
    ------
    HashMismatchError
        If the archive is another one.
    UnsafeArchiveError
        If the archive is damaged, has no such directory, or if any member, wanted or not, is absolute, contains
        ``..``, ``.git``, a line end or a backslash, appears twice, or is neither a regular file nor a directory.
    """
    with path.open("rb") as file:
        found = file_sha256(file)
        if found != sha256:
            raise HashMismatchError(str(path), "its sha256", sha256, found)
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:gz") as tar:
                manifest = _unpack_members(tar, path, PurePosixPath(subdir), destination)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise UnsafeArchiveError(path, "", f"it cannot be read: {error}") from error
    if not manifest:
        raise UnsafeArchiveError(path, "", f"it has no directory {subdir!r} below its top directory")
    return manifest


def _unpack_members(tar: tarfile.TarFile, path: Path, subdir: PurePosixPath, destination: Path) -> dict[str, str]:
    manifest: dict[str, str] = {}
    seen: set[PurePosixPath] = set()
    for member in tar:
        name = _safe_name(member, path)
        if name in seen:
            raise UnsafeArchiveError(path, member.name, "it appears twice")
        seen.add(name)
        below_top = PurePosixPath(*name.parts[1:])
        if not member.isreg() or not below_top.is_relative_to(subdir) or below_top == subdir:
            continue
        source = tar.extractfile(member)
        if source is None:
            raise UnsafeArchiveError(path, member.name, "it has no content")
        content = source.read()
        target = destination / below_top.relative_to(subdir)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        executable = bool(member.mode & _OWNER_EXECUTE)
        manifest[below_top.relative_to(subdir).as_posix()] = file_entry(content, executable=executable)
    return manifest


def _safe_name(member: tarfile.TarInfo, path: Path) -> PurePosixPath:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or not name.parts:
        raise UnsafeArchiveError(path, member.name, "its path leads out of the archive's directory")
    if {"\\", "\0", "\n"} & set(member.name):
        raise UnsafeArchiveError(path, member.name, "its path has a character that is not allowed")
    if ".git" in name.parts:
        raise UnsafeArchiveError(path, member.name, "it would make git take the tree for a repository")
    if not (member.isreg() or member.isdir()):
        raise UnsafeArchiveError(path, member.name, "it is a link, a device or a pipe, not a plain file or directory")
    return name
