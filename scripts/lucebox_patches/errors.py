"""Errors of the patch tool and the exit codes that go with them.

::

    PatchError                 never raised itself
    ├─ CheckError         (1)  a check found something: lint, export --check, hunks that wait for an answer
    ├─ EmptyPatchError    (1)  a patch changes nothing any more; it is named and never skipped
    ├─ SeriesError        (2)  patches/series or a patch file is not usable
    ├─ UsageError         (2)  the command does not fit the state of the tree
    ├─ PinError           (3)  vendor/upstream.toml is not usable
    ├─ HashMismatchError  (3)  an archive or a tree is not the recorded one
    ├─ UnsafeArchiveError (3)  an archive holds a member that must not be unpacked
    ├─ PendingError       (4)  a conflict waits for a person; the work is kept
    ├─ DirtyTreeError     (5)  vendor/llama.cpp holds changes that would be lost
    ├─ ConflictError      (6)  a patch does not apply to the base it was made for
    ├─ VerifyError        (6)  a prefix of the series does not build or does not pass
    ├─ SourceMissingError (7)  the base is neither in the store nor in the cache
    └─ ToolError          (7)  git, pip or cmake is missing or failed

0 is success. 2 is also what a wrong command line gives, and 7 is also used for errors of the operating system.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

EXIT_OK, EXIT_FOUND, EXIT_USAGE, EXIT_PIN, EXIT_CONFLICT, EXIT_DIRTY, EXIT_VERIFY, EXIT_ENVIRONMENT = range(8)
_MAX_PATHS_SHOWN = 20


class PatchError(Exception):
    """Root of the tree; its text says what failed, what was seen and what to do.

    What a subclass knows beyond that is given by name and becomes an attribute and a key of ``--json``.
    """

    exit_code: ClassVar[int] = EXIT_FOUND

    def __init__(self, failed: str, seen: str, remedy: str, **attributes: object) -> None:
        super().__init__(f"{failed}: {seen}\nWhat to do: {remedy}")
        self.failed, self.seen, self.remedy = failed, seen, remedy
        for name, value in attributes.items():
            setattr(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """Return the error as plain data for ``--json``."""
        return {"type": type(self).__name__, "exit_code": self.exit_code, **vars(self)}


class CheckError(PatchError):
    """A check found something."""


class EmptyPatchError(PatchError):
    """Patches that change nothing on the base; `patches` names them."""

    def __init__(self, patches: Sequence[str]) -> None:
        super().__init__(
            f"{', '.join(patches)} would change nothing",
            "the sources already hold what it does",
            "`lucebox-patches drop-upstreamed` takes it out of the series and records the evidence",
            patches=list(patches),
        )


class SeriesError(PatchError):
    """The series file or a patch file is not usable; `problems` has (line of ``patches/series`` or 0, reason)."""

    exit_code = EXIT_USAGE

    def __init__(self, path: Path, problems: Sequence[tuple[int, str]]) -> None:
        seen = "; ".join(f"line {line}: {reason}" if line else reason for line, reason in problems)
        remedy = "correct the series file or the patch directory"
        super().__init__(f"{path} cannot be used", seen, remedy, problems=list(problems))


class UsageError(PatchError):
    """The command does not fit the state of the tree or of the series."""

    exit_code = EXIT_USAGE


class PinError(PatchError):
    """The pin file is missing, malformed or incomplete."""

    exit_code = EXIT_PIN

    def __init__(self, path: Path, seen: str) -> None:
        super().__init__(f"the pin {path} cannot be used", seen, "restore the file from version control")


class HashMismatchError(PatchError):
    """Something is not what was recorded; `expected` and `found` are lower-case hexadecimal."""

    exit_code = EXIT_PIN

    def __init__(self, what: str, kind: str, expected: str, found: str, remedy: str = "") -> None:
        seen = f"{kind} is {found}, recorded is {expected}"
        remedy = remedy or "use the recorded archive; nothing was kept of this one"
        super().__init__(f"{what} is not what is recorded", seen, remedy, expected=expected, found=found)


class UnsafeArchiveError(PatchError):
    """The archive cannot be unpacked safely or completely; `member` is empty when the whole archive is at fault."""

    exit_code = EXIT_PIN

    def __init__(self, path: Path, member: str, reason: str) -> None:
        seen = f"member {member!r}: {reason}" if member else reason
        super().__init__(f"{path} is refused", seen, "use the pinned archive; nothing was unpacked", member=member)


class PendingError(PatchError):
    """A patch stopped in conflict; `patch` and `files` say where."""

    exit_code = EXIT_CONFLICT


class DirtyTreeError(PatchError):
    """The vendor tree holds changes that would be lost; `paths` lists the files, sorted."""

    exit_code = EXIT_DIRTY

    def __init__(self, tree: Path, paths: Sequence[str]) -> None:
        more = f" and {len(paths) - _MAX_PATHS_SHOWN} more" if len(paths) > _MAX_PATHS_SHOWN else ""
        super().__init__(
            f"{tree} was left as it is",
            f"{len(paths)} file(s) were changed by hand: {', '.join(paths[:_MAX_PATHS_SHOWN])}{more}",
            "save the changes with `lucebox-patches new` or `refresh`, or discard them with `apply --force-clean`",
            paths=list(paths),
        )


class ConflictError(PatchError):
    """A patch does not apply to its own base; `patch`, its 1-based `position`, and the `files` where it failed."""

    exit_code = EXIT_VERIFY

    def __init__(self, patch: str, position: int, files: Sequence[str], seen: str) -> None:
        super().__init__(
            f"patch {position} of the series, {patch}, does not apply (the tree was not changed)",
            seen,
            "adapt the patch to the sources named in vendor/upstream.toml and to the patches before it",
            patch=patch,
            position=position,
            files=list(files),
        )


class VerifyError(PatchError):
    """A prefix of the series failed; `prefix` is its length, `step` what failed."""

    exit_code = EXIT_VERIFY


class SourceMissingError(PatchError):
    """An upstream is needed and not at hand."""

    exit_code = EXIT_ENVIRONMENT


class ToolError(PatchError):
    """An external program is missing or failed; `program` names it."""

    exit_code = EXIT_ENVIRONMENT

    def __init__(self, program: str, failed: str, seen: str, remedy: str) -> None:
        super().__init__(failed, seen, remedy, program=program)
