"""The patch series: ``patches/series``, the patch files, and the form of a patch file.

``patches/series`` has one file name per line in the order of application; ``#`` starts a comment, also after a name.
File names carry no numbers, so that a patch can move without a rename.

A patch file is a mail that ``git am`` takes: ``From``, ``Date`` and ``Subject``, the reason, a paragraph of fields
(DEP-3 names where DEP-3 has one), ``---``, and the diff. `FIELDS` lists the fields in their order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .errors import SeriesError

SERIES_FILE = "series"
SHORT_HASH_DIGITS = 12
NAME = re.compile(r"[a-z][a-z0-9-]*\.patch")
SUBJECT = re.compile(r"(?=.{1,72}$)[^:\[\]]+: \S.*")
HEAD = ("From", "Date", "Subject")
FIELDS: dict[str, str] = {
    "Class": "hook | feature | fix | backport",
    "Origin": "own, or backport|other and a URL",
    "Forwarded": "no, not-needed, or the URL of the upstream change",
    "Needs": "patches that must stand before it (optional)",
    "Test": "pytest ids that pass from this patch on, or a command after `$ `",
    "Changes-Output": "no, or yes and why",
    "Measured": "figure and the command that gives it again (optional)",
    "Why-Not-Own-File": "for a feature that is more than a hook (optional)",
    "Deletes": "why more than 20 upstream lines go (optional)",
    "Drop-When": "what makes it superfluous",
    "Last-Update": "YYYY-MM-DD",
}
REQUIRED = ("Class", "Origin", "Forwarded", "Test", "Changes-Output", "Drop-When", "Last-Update")
_FIELD_LINE = re.compile(r"([A-Z][A-Za-z-]*): ?(.*)")
_MAILBOX_LINE = re.compile(r"From [0-9a-f]{40} ")
_DIFF_START = re.compile(rb"^(?:diff --git |--- \S+\n\+\+\+ )", re.MULTILINE)


@dataclass(frozen=True)
class Patch:
    """One patch file: its name in the patch directory and its bytes."""

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Hash of the content, 64 hexadecimal digits."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def diff(self) -> bytes:
        """The part that git applies; empty if there is none."""
        start = _DIFF_START.search(self.content)
        return self.content[start.start() :] if start else b""

    @property
    def header(self) -> Header:
        """The part for people."""
        start = _DIFF_START.search(self.content)
        return parse_header(self.content[: start.start() if start else None].decode("utf-8", "replace"))


@dataclass(frozen=True)
class Header:
    """What stands before the diff: the mail's head, the reason, and the fields."""

    head: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return the header in its one form, ``---`` included."""
        head = "".join(f"{key}: {self.head[key]}\n" for key in HEAD if self.head.get(key))
        order = [*FIELDS, *sorted(self.fields.keys() - FIELDS.keys())]
        lines = "".join(f"{key}: {self.fields[key]}\n" for key in order if self.fields.get(key))
        return f"{head}\n{self.reason}\n\n{lines}---\n"

    def updated(self, date: str) -> Header:
        """Return it with another ``Last-Update``."""
        return replace(self, fields={**self.fields, "Last-Update": date})

    def message(self) -> str:
        """Return the commit message that ``git am`` makes of it."""
        return f"{self.head.get('Subject', '')}\n\n{self.text().split(chr(10) * 2, 1)[1].rpartition('---')[0]}"


def parse_header(text: str) -> Header:
    """Parse a header; what it does not know it keeps, so that `lint` can name it."""
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    if _MAILBOX_LINE.match(lines[0]):
        del lines[0]
    # Behind the first line of three hyphens git writes counts of lines, which are no part of the header.
    lines = lines[: lines.index("---")] if "---" in lines else lines
    while lines and not lines[-1]:
        lines.pop()
    split = lines.index("") if "" in lines else len(lines)
    head = _fields(lines[:split])
    start = len(lines)
    while start > split and lines[start - 1]:
        start -= 1
    fields = _fields(lines[start:])
    body = lines[split:start] if fields else lines[split:]
    return Header(head, "\n".join(body).strip("\n"), fields)


def _fields(lines: Sequence[str]) -> dict[str, str]:
    """Parse ``Key: value`` lines; a line that starts with a space goes on with the one before."""
    found: dict[str, str] = {}
    key = ""
    for line in lines:
        match = _FIELD_LINE.fullmatch(line)
        if match:
            key = match[1]
            found[key] = match[2].strip()
        elif key and line.startswith(" "):
            found[key] = f"{found[key]}\n {line.strip()}"
        else:
            return {}
    return found


@dataclass(frozen=True)
class Series:
    """The patches in the order of application; may be empty."""

    patches: tuple[Patch, ...] = ()

    @property
    def hash(self) -> str:
        """Hash of names, order and contents, 64 hexadecimal digits.

        It is the sha256 of, for each patch in order, its name, a zero byte, the length of its content in decimal, a
        zero byte and the content. An empty series therefore has the sha256 of nothing.
        """
        digest = hashlib.sha256()
        for patch in self.patches:
            digest.update(f"{patch.name}\0{len(patch.content)}\0".encode())
            digest.update(patch.content)
        return digest.hexdigest()

    @property
    def short_hash(self) -> str:
        """The first 12 digits of `hash`, for people and build identities."""
        return self.hash[:SHORT_HASH_DIGITS]

    @property
    def names(self) -> list[str]:
        """File names in order."""
        return [patch.name for patch in self.patches]


def read_series(directory: Path) -> Series:
    """Read the series file of `directory` and every patch that it lists.

    Raises
    ------
    SeriesError
        With all problems at once: no series file, a name that is not a plain ``*.patch`` file name, a repeated name,
        a listed file that does not exist, a patch file that is not listed.
    """
    path = directory / SERIES_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise SeriesError(path, [(0, str(error))]) from error
    patches: list[Patch] = []
    problems: list[tuple[int, str]] = []
    first_line: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        name = _listed(raw)
        if not name:
            continue
        if name in first_line:
            problems.append((number, f"{name} already stands in line {first_line[name]}"))
            continue
        first_line[name] = number
        if Path(name).name != name or "\\" in name or not name.endswith(".patch"):
            problems.append((number, f"{name!r} is not the name of a .patch file in {directory}"))
            continue
        try:
            patches.append(Patch(name, (directory / name).read_bytes()))
        except FileNotFoundError:
            problems.append((number, f"{name} does not exist in {directory}"))
    unlisted = sorted(file.name for file in directory.glob("*.patch") if file.name not in first_line)
    problems.extend((0, f"{name} exists but is not listed") for name in unlisted)
    if problems:
        raise SeriesError(path, problems)
    return Series(tuple(patches))


def series_text(text: str, names: Sequence[str]) -> str:
    """Return the text of a series file with exactly these names; its comments stay where they are.

    A name that is new goes behind the one that precedes it; the names that stay keep their order.
    """
    lines = [line for line in text.splitlines() if not _listed(line) or _listed(line) in names]
    for position, name in enumerate(names):
        listed = [_listed(line) for line in lines]
        if name not in listed:
            first = next((number for number, found in enumerate(listed) if found), len(lines))
            lines.insert(listed.index(names[position - 1]) + 1 if position else first, name)
    return "\n".join(lines) + "\n"


def _listed(line: str) -> str:
    return line.split("#", 1)[0].strip()
