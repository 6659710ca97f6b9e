"""Errors of the patch tool and the exit codes that go with them.

::

    PatchError                 never raised itself
    ├─ SeriesError        (2)  patches/series or a patch file is not usable
    ├─ PinError           (3)  vendor/upstream.toml is not usable
    ├─ HashMismatchError  (3)  an archive or a tree is not the pinned one
    ├─ UnsafeArchiveError (3)  an archive holds a member that must not be unpacked
    ├─ DirtyTreeError     (5)  vendor/llama.cpp holds changes that would be lost
    ├─ ConflictError      (6)  a patch does not apply
    ├─ VerifyError        (6)  a patch seemed to apply but did not do what it says
    ├─ ArchiveMissingError(7)  the archive is neither cached nor to be downloaded
    └─ ToolError          (7)  git or pip is missing or failed

Exit code 0 is success, 1 means that a check found something (``status`` of a tree that is not ready), 2 is also what
a wrong command line gives, and 7 is also used for errors of the operating system. 4 is kept for a conflict that waits
for a person.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

EXIT_OK = 0
EXIT_NOT_READY = 1
EXIT_USAGE = 2
EXIT_PIN = 3
EXIT_DIRTY = 5
EXIT_VERIFY = 6
EXIT_ENVIRONMENT = 7

_MAX_PATHS_SHOWN = 20


class PatchError(Exception):
    """Root of the tree; its text says what failed, what was seen and what to do.

    Parameters
    ----------
    failed
        What could not be done.
    seen
        The observation that made it fail; may have several lines.
    remedy
        What the reader can do about it.
    """

    exit_code: ClassVar[int] = EXIT_NOT_READY

    def __init__(self, failed: str, seen: str, remedy: str) -> None:
        super().__init__(f"{failed}: {seen}\nWhat to do: {remedy}")
        self.failed = failed
        self.seen = seen
        self.remedy = remedy

    def as_dict(self) -> dict[str, Any]:
        """Return the error as plain data for ``--json``."""
        return {
            "type": type(self).__name__,
            "failed": self.failed,
            "seen": self.seen,
            "remedy": self.remedy,
            "exit_code": self.exit_code,
        }


class SeriesError(PatchError):
    """The series file or a patch file is not usable.

    Attributes
    ----------
    problems
        ``(line, reason)`` pairs; the line is 1-based in ``patches/series`` and 0 where no line is to blame.
    """

    exit_code = EXIT_USAGE

    def __init__(self, path: Path, problems: list[tuple[int, str]]) -> None:
        seen = "; ".join(f"line {line}: {reason}" if line else reason for line, reason in problems)
        super().__init__(f"{path} cannot be used", seen, "correct the series file or the patch directory")
        self.path = path
        self.problems = problems


class PinError(PatchError):
    """The pin file is missing, malformed or incomplete.

    Attributes
    ----------
    path
        The pin file.
    """

    exit_code = EXIT_PIN

    def __init__(self, path: Path, seen: str) -> None:
        super().__init__(f"the pin {path} cannot be used", seen, "restore the file from version control")
        self.path = path


class HashMismatchError(PatchError):
    """Something is not what the pin says.

    Attributes
    ----------
    what
        What was hashed.
    expected, found
        The two hashes, as lower-case hexadecimal text.
    """

    exit_code = EXIT_PIN

    def __init__(self, what: str, kind: str, expected: str, found: str) -> None:
        super().__init__(
            f"{what} is not what vendor/upstream.toml pins",
            f"{kind} is {found}, the pin says {expected}",
            "use the pinned archive; nothing was kept of this one",
        )
        self.what = what
        self.expected = expected
        self.found = found


class UnsafeArchiveError(PatchError):
    """The archive cannot be unpacked safely or completely.

    Attributes
    ----------
    member
        Name of the member at fault, or an empty string when the whole archive is.
    reason
        Why it is refused.
    """

    exit_code = EXIT_PIN

    def __init__(self, path: Path, member: str, reason: str) -> None:
        seen = f"member {member!r}: {reason}" if member else reason
        super().__init__(f"{path} is refused", seen, "use the pinned archive; nothing was unpacked")
        self.path = path
        self.member = member
        self.reason = reason


class DirtyTreeError(PatchError):
    """The vendor tree holds changes that bringing it up to date would destroy.

    Attributes
    ----------
    paths
        Changed files, relative to the tree, sorted.
    """

    exit_code = EXIT_DIRTY

    def __init__(self, tree: Path, paths: list[str]) -> None:
        shown = ", ".join(paths[:_MAX_PATHS_SHOWN])
        more = f" and {len(paths) - _MAX_PATHS_SHOWN} more" if len(paths) > _MAX_PATHS_SHOWN else ""
        super().__init__(
            f"{tree} was left as it is",
            f"{len(paths)} file(s) were changed by hand: {shown}{more}",
            "save the changes as a patch of the series, or discard them with `lucebox-patches apply --force-clean`",
        )
        self.paths = paths


class ConflictError(PatchError):
    """A patch of the series does not apply; the vendor tree is as it was.

    Attributes
    ----------
    patch
        File name of the patch.
    position
        Its 1-based place in the series.
    files
        Files of the tree in which it failed.
    """

    exit_code = EXIT_VERIFY

    def __init__(self, patch: str, position: int, files: list[str], seen: str) -> None:
        super().__init__(
            f"patch {position} of the series, {patch}, does not apply (the tree was not changed)",
            seen,
            "adapt the patch to the sources named in vendor/upstream.toml and to the patches before it",
        )
        self.patch = patch
        self.position = position
        self.files = files


class VerifyError(PatchError):
    """git reported success for a patch, but the files do not show it.

    Attributes
    ----------
    patch
        File name of the patch.
    files
        Files that the patch names and that did not change.
    """

    exit_code = EXIT_VERIFY

    def __init__(self, patch: str, files: list[str]) -> None:
        super().__init__(
            f"{patch} was not taken over (the tree was not changed)",
            f"git apply succeeded, yet these files are as before: {', '.join(files)}",
            "check which git runs (`git --version`) and that nothing else writes to vendor/.cache",
        )
        self.patch = patch
        self.files = files


class ArchiveMissingError(PatchError):
    """The pinned archive is needed and not in the cache.

    Attributes
    ----------
    sha256
        Hash of the archive that is wanted.
    """

    exit_code = EXIT_ENVIRONMENT

    def __init__(self, why: str, package: str, sha256: str) -> None:
        super().__init__(
            why,
            f"the archive of {package} (sha256 {sha256}) is not in vendor/.cache",
            "run `lucebox-patches fetch`, which downloads it, or `lucebox-patches fetch --archive FILE`",
        )
        self.sha256 = sha256


class ToolError(PatchError):
    """An external program is missing or failed.

    Attributes
    ----------
    program
        ``"git"`` or ``"pip"``.
    """

    exit_code = EXIT_ENVIRONMENT

    def __init__(self, program: str, failed: str, seen: str, remedy: str) -> None:
        super().__init__(failed, seen, remedy)
        self.program = program
