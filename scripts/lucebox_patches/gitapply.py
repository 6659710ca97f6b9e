"""One patch onto one directory with ``git apply``.

``git apply`` and not ``patch``: every context line must match (there is no fuzz), only the place of a hunk may have
moved. It runs as if there were no repository around the directory and no settings of the user, because inside a
repository it skips files that lie outside the current subdirectory without an error, and because settings such as
``core.autocrlf`` or ``apply.whitespace`` change what it writes.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import ConflictError, ToolError, VerifyError
from .objects import path_entry
from .series import Patch

_SETTINGS = {
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.filemode": "true",
    "core.attributesFile": os.devnull,
    "apply.whitespace": "nowarn",
    "apply.ignoreWhitespace": "no",
}
_FAILED_HUNK = re.compile(r"patch failed: (?P<file>.*):(?P<line>\d+)")
_FAILED_FILE = re.compile(r"(?P<file>.*): (?:patch does not apply|No such file or directory|already exists in .*)")
_OFFSET = re.compile(r"Hunk #(?P<hunk>\d+) succeeded at (?P<line>\d+) \(offset (?P<offset>-?\d+) lines?\)\.")
_HUNK_HEADER = re.compile(rb"@@ -(?P<line>\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")
_MAX_SEARCH_LINES = 12


@dataclass(frozen=True)
class Offset:
    """A hunk that applied, but not at the line that its header says.

    Attributes
    ----------
    file
        Path in the tree.
    hunk
        1-based number of the hunk among those of this file.
    lines
        How far below (or, if negative, above) the stated line it applied.
    """

    file: str
    hunk: int
    lines: int


@dataclass(frozen=True)
class Applied:
    """Outcome of one patch.

    Attributes
    ----------
    files
        Paths that the patch changed, sorted.
    offsets
        Hunks that were found elsewhere than stated.
    """

    files: tuple[str, ...]
    offsets: tuple[Offset, ...]


def apply_patch(patch: Patch, position: int, tree: Path) -> Applied:
    """Apply one patch to a directory, completely or not at all.

    Parameters
    ----------
    patch
        The patch; paths in it carry the usual ``a/`` and ``b/``.
    position
        Its 1-based place in the series, for messages.
    tree
        Directory to change.

    Raises
    ------
    ConflictError
        If a hunk's context is not found exactly, a file is missing or in the way, or the file holds no diff.
    VerifyError
        If git reports success but a file that the patch names is unchanged.
    ToolError
        If git cannot be run.
    """
    listing = _git_apply(["--numstat", "-z"], patch, tree)
    if listing.returncode != 0:
        raise _conflict(patch, position, listing.stderr)
    files = sorted({os.fsdecode(record.split(b"\t", 2)[2]) for record in listing.stdout.split(b"\0") if record})
    before = {file: path_entry(tree / file) for file in files}
    done = _git_apply(["--verbose"], patch, tree)
    if done.returncode != 0:
        raise _conflict(patch, position, done.stderr)
    unchanged = [file for file in files if path_entry(tree / file) == before[file]]
    if unchanged or not files:
        raise VerifyError(patch.name, unchanged or ["(none named)"])
    return Applied(tuple(files), _offsets(os.fsdecode(done.stderr)))


def _git_apply(options: list[str], patch: Patch, tree: Path) -> subprocess.CompletedProcess[bytes]:
    # Without any of git's own variables: GIT_DIR and the like of a calling git would bring its repository back in.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_") and key != "LANGUAGE"}
    environment |= {
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
    }
    settings = [word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}")]
    try:
        return subprocess.run(
            ["git", *settings, "apply", *options, "-"],
            cwd=tree, env=environment, input=patch.content, capture_output=True, check=False,
        )
    except OSError as error:
        raise ToolError(
            "git",
            f"{patch.name} cannot be applied",
            f"git does not start: {error}",
            "install git, or build from our source distribution, whose tree is already patched",
        ) from error


def _offsets(log: str) -> tuple[Offset, ...]:
    offsets: list[Offset] = []
    file = ""
    for line in log.splitlines():
        if line.startswith("Checking patch "):
            file = line.removeprefix("Checking patch ").removesuffix("...")
        elif match := _OFFSET.fullmatch(line):
            offsets.append(Offset(file, int(match["hunk"]), int(match["offset"])))
    return tuple(offsets)


def _conflict(patch: Patch, position: int, stderr: bytes) -> ConflictError:
    """Turn git's report into one that names each file and hunk."""
    log = os.fsdecode(stderr)
    reports: list[str] = []
    files: dict[str, None] = {}
    for line in log.splitlines():
        message = line.removeprefix("error: ").removeprefix("fatal: ")
        if message == line or message.startswith("while searching for:"):
            continue
        if hunk := _FAILED_HUNK.fullmatch(message):
            files[hunk["file"]] = None
            reports.append(f"{hunk['file']}: {_describe_hunk(patch.content, hunk['file'], int(hunk['line']))}")
        elif (refused := _FAILED_FILE.fullmatch(message)) and refused["file"] in files:
            continue  # git repeats the file of a failed hunk
        else:
            if refused:
                files[refused["file"]] = None
            reports.append(message)
    searched = _searched_text(log)
    seen = "; ".join(reports) or log.strip() or "git apply failed without a message"
    return ConflictError(patch.name, position, list(files), seen + searched)


def _describe_hunk(content: bytes, file: str, old_line: int) -> str:
    number = 0
    inside = False
    for line in content.splitlines():
        if line.startswith(b"--- "):
            inside = os.fsdecode(line[4:].split(b"\t")[0]).removeprefix("a/") == file
            number = 0
        elif inside and (match := _HUNK_HEADER.match(line)):
            number += 1
            if int(match["line"]) == old_line:
                return f"hunk {number} ({os.fsdecode(match.group())}) does not match the file"
    return f"the hunk at line {old_line} does not match the file"


def _searched_text(log: str) -> str:
    _, found, rest = log.partition("error: while searching for:\n")
    if not found:
        return ""
    lines = rest.partition("\nerror: ")[0].rstrip("\n").splitlines()
    shown = [f"    {line}" for line in lines[:_MAX_SEARCH_LINES]]
    if len(lines) > _MAX_SEARCH_LINES:
        shown.append("    …")
    return "\nThese lines were looked for:\n" + "\n".join(shown)
