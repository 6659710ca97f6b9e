"""The object store ``vendor/.cache/store.git``: upstream trees, patched trees, and patches between them.

Everything happens on trees and a private index: no work tree, no HEAD, no commit of the user's repository. git runs
without any setting of the user or of the machine, because such settings change what it writes (``core.autocrlf``,
``diff.noprefix``, ``format.*``) and inside a repository it may skip files without an error.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import ConflictError, ToolError

_OLDEST_GIT = (2, 34)
_SETTINGS = {
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.filemode": "true",
    "core.quotePath": "false",
    "core.attributesFile": os.devnull,
    "core.hooksPath": os.devnull,
    "apply.whitespace": "nowarn",
    "apply.ignoreWhitespace": "no",
    "protocol.file.allow": "always",
    "gc.auto": "0",
}
_DIFF = (
    "--patch",
    "--full-index",
    "--no-renames",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--unified=3",
    "--inter-hunk-context=0",
    "--diff-algorithm=histogram",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--binary",
)
_FAILED = re.compile(
    r"patch failed: (?P<hunk>.*):\d+|"
    r"(?P<file>.*): (?:patch does not apply|No such file|does not exist in index|already exists)"
)
_OFFSET = re.compile(r"Hunk #(?P<hunk>\d+) succeeded at (?P<line>\d+) \(offset (?P<offset>-?\d+) lines?\)\.")
_MAX_LOG_LINES = 25


@dataclass(frozen=True)
class Offset:
    """A hunk that applied `lines` below (or, if negative, above) the line that its header says."""

    file: str
    hunk: int
    lines: int


class Store:
    """The object store at `path`; made at the first use."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def git(
        self,
        *arguments: str,
        stdin: bytes = b"",
        index: Path | None = None,
        allowed: tuple[int, ...] = (0,),
        extra: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git on the store.

        Raises
        ------
        ToolError
            If git is missing, too old, or ends with a code that is not `allowed`.
        """
        if not (self.path / "objects").is_dir():
            check_git()
            run_git(["init", "--quiet", "--bare", "--template=", str(self.path)], {}, b"")
        environment = {"GIT_DIR": str(self.path), **({"GIT_INDEX_FILE": str(index)} if index else {}), **(extra or {})}
        done = run_git(list(arguments), environment, stdin)
        if done.returncode not in allowed:
            raise ToolError(
                "git",
                f"git {arguments[0]} failed on {self.path}",
                f"exit code {done.returncode}: {os.fsdecode(done.stderr).strip()}",
                "if the store is damaged, remove vendor/.cache/store.git: `fetch` makes it again",
            )
        return done

    def blob(self, content: bytes) -> str:
        """Write a blob and return its id."""
        return self.git("hash-object", "-w", "--stdin", stdin=content).stdout.decode().strip()

    def blobs(self, root: Path, paths: Iterable[str]) -> None:
        """Write the files `paths` below `root` as blobs, byte for byte."""
        listing = "".join(f"{root / path}\n" for path in paths)
        self.git("hash-object", "-w", "--no-filters", "--stdin-paths", stdin=os.fsencode(listing))

    def write_tree(self, manifest: Mapping[str, str]) -> str:
        """Write the tree that a manifest describes (see `objects`); its blobs must be there."""
        records = [f"{entry}\t{path}\0" for path, entry in manifest.items()]
        with tempfile.TemporaryDirectory(dir=self.path) as directory:
            index = Path(directory, "index")
            self.git("update-index", "-z", "--index-info", stdin=os.fsencode("".join(records)), index=index)
            return self.git("write-tree", index=index).stdout.decode().strip()

    def manifest(self, tree: str) -> dict[str, str]:
        """Return the manifest of a tree."""
        records = os.fsdecode(self.git("ls-tree", "-r", "-z", tree).stdout).split("\0")
        pairs = (record.split("\t", 1) for record in records if record)
        return {path: head.replace(" blob ", " ") for head, path in pairs}

    def read(self, ids: Iterable[str]) -> list[bytes]:
        """Return the contents of blobs."""
        wanted = list(ids)
        output = self.git("cat-file", "--batch", stdin="".join(f"{blob}\n" for blob in wanted).encode()).stdout
        contents, position = [], 0
        for _ in wanted:
            end = output.index(b"\n", position)
            size = int(output[position:end].split()[2])
            contents.append(output[end + 1 : end + 1 + size])
            position = end + size + 2
        return contents

    def has(self, name: str, kind: str) -> bool:
        """Whether an object of that kind exists."""
        return self.git("cat-file", "-e", f"{name}^{{{kind}}}", allowed=(0, 1, 128)).returncode == 0

    def diff(self, before: str, after: str) -> bytes:
        """Return the difference of two trees in the one form that patch files have."""
        return self.git("diff-tree", *_DIFF, before, after).stdout

    def commit(self, tree: str, parent: str | None, message: str) -> str:
        """Write a commit whose id depends on its arguments only, and return the id."""
        who = {"NAME": "lucebox-patches", "EMAIL": "patches@lucebox.invalid", "DATE": "2000-01-01T00:00:00Z"}
        extra = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
        parents = ["-p", parent] if parent else []
        return self.git("commit-tree", tree, *parents, stdin=message.encode(), extra=extra).stdout.decode().strip()

    def apply(self, tree: str, diff: bytes, *options: str) -> tuple[str, tuple[Offset, ...], str]:
        """Apply a diff to a tree: every context line must match (no fuzz), only the place of a hunk may have moved.

        Returns
        -------
        tuple
            Id of the new tree, empty if the diff does not apply; the hunks that had moved; git's report.
        """
        with tempfile.TemporaryDirectory(dir=self.path) as directory:
            index = Path(directory, "index")
            self.git("read-tree", tree, index=index)
            arguments = ("apply", "--cached", "--verbose", *options, "-")
            done = self.git(*arguments, stdin=diff, index=index, allowed=(0, 1, 128))
            log = os.fsdecode(done.stderr)
            if done.returncode != 0:
                return "", (), log
            return self.git("write-tree", index=index).stdout.decode().strip(), _offsets(log), log


def run_git(arguments: list[str], environment: dict[str, str], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run git as if there were no settings but ours, and no repository but one that `environment` names."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_") and key != "LANGUAGE"}
    kept |= {
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
    settings = [word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}")]
    try:
        return subprocess.run(
            ["git", *settings, *arguments], env=kept | environment, input=stdin, capture_output=True, check=False
        )
    except OSError as error:
        remedy = "install git, or build from our source distribution, whose tree is already patched"
        raise ToolError("git", "git is needed", f"git does not start: {error}", remedy) from error


def check_git() -> None:
    """Raise `ToolError` if git is older than this tool was tested with."""
    words = run_git(["version"], {}, b"").stdout.decode().split()
    found = tuple(int(part) for part in words[2].split(".")[:2])
    if found < _OLDEST_GIT:
        wanted = ".".join(map(str, _OLDEST_GIT))
        raise ToolError("git", f"git {wanted} or newer is needed", f"this is {words[2]}", "install a newer git")


def conflict(patch: str, position: int, log: str) -> ConflictError:
    """Turn git's report of a failed apply, which has file, line and the text that was looked for, into an error."""
    lines = [line.removeprefix("error: ").removeprefix("fatal: ") for line in log.splitlines()]
    report = [line for line in lines if not line.startswith(("Checking patch ", "Hunk #"))]
    found = [match for match in map(_FAILED.match, report) if match]
    files = dict.fromkeys(match["hunk"] or match["file"] for match in found)
    shown = report[:_MAX_LOG_LINES] + ["…"] * (len(report) > _MAX_LOG_LINES)
    return ConflictError(patch, position, list(files), "\n".join(shown).strip())


def _offsets(log: str) -> tuple[Offset, ...]:
    offsets: list[Offset] = []
    file = ""
    for line in log.splitlines():
        if line.startswith("Checking patch "):
            file = line.removeprefix("Checking patch ").removesuffix("...")
        elif match := _OFFSET.fullmatch(line):
            offsets.append(Offset(file, int(match["hunk"]), int(match["offset"])))
    return tuple(offsets)
