"""The patch series: ``patches/series`` and the files that it lists.

``patches/series`` has one file name per line in the order of application; ``#`` starts a comment, also after a name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from .errors import SeriesError

SERIES_FILE = "series"
SHORT_HASH_DIGITS = 12


@dataclass(frozen=True)
class Patch:
    """One patch file.

    Attributes
    ----------
    name
        File name in the patch directory.
    content
        Its bytes.
    """

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Hash of the content, 64 hexadecimal digits."""
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class Series:
    """The ordered patches.

    Attributes
    ----------
    patches
        In the order of application; may be empty.
    """

    patches: tuple[Patch, ...]

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
        name = raw.split("#", 1)[0].strip()
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
