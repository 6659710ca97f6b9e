"""The pin ``vendor/upstream.toml``: which upstream, and how to recognise it.

The file is TOML, but only the part of TOML that it needs: comments and ``key = "value"`` lines. One small reader for
all Python versions (``tomllib`` came with 3.11) keeps their behaviour equal, and what it does not know it refuses.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath

from .errors import PinError

_LINE = re.compile(r'(?P<key>[a-z][a-z0-9_]*)\s*=\s*"(?P<value>[^"\\]*)"\s*(?:#.*)?')
_SHAPES = {
    "name": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
    "version": re.compile(r"[0-9a-z][0-9A-Za-z.+!-]*"),
    "sha256": re.compile(r"[0-9a-f]{64}"),
    "commit": re.compile(r"[0-9a-f]{40}"),
    "tree": re.compile(r"[0-9a-f]{40}"),
    "build": re.compile(r"b[0-9]+|g[0-9a-f]{9}"),
}
_SOURCES = ({"sha256", "subdir"}, {"git", "commit"})


@dataclass(frozen=True)
class Pin:
    """One upstream: a directory of a source distribution, or a commit of a git repository.

    Attributes
    ----------
    name, version
        Package and version of the source distribution; for git a name and the build.
    sha256, subdir
        Hash of the archive and the directory in it, below its top directory; empty for git.
    git, commit
        Repository and commit id; empty for an archive.
    licence
        Licence of the sources.
    build
        llama.cpp build, for example ``"b11434"``; for a commit without such a tag ``g`` and nine digits of its id.
    llama_cpp_version
        llama.cpp release number.
    tree
        git tree id of the sources, 40 hexadecimal digits.
    """

    name: str
    version: str
    licence: str
    build: str
    llama_cpp_version: str
    tree: str
    sha256: str = ""
    subdir: str = ""
    git: str = ""
    commit: str = ""

    @property
    def package(self) -> str:
        """Requirement that names exactly this distribution, or the git commit."""
        return f"{self.git}@{self.commit}" if self.commit else f"{self.name}=={self.version}"

    def identity(self) -> dict[str, str]:
        """Return what a patched tree records about its base; how the base was got is not part of it."""
        keys = ("name", "version", "build", "llama_cpp_version", "tree")
        return {key: value for key, value in asdict(self).items() if key in keys}

    def assignments(self) -> str:
        """Return the pin as ``key = "value"`` lines, the form that `parse_pin` reads."""
        return "".join(f'{key} = "{value}"\n' for key, value in asdict(self).items() if value)


def read_pin(path: Path) -> Pin:
    """Read and check the pin file; raises `PinError` if it is missing or see `parse_pin`."""
    try:
        return parse_pin(path.read_text(encoding="utf-8"), path)
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise PinError(path, str(error)) from error


def parse_pin(text: str, path: Path) -> Pin:
    """Parse a pin; `path` is for messages.

    Raises
    ------
    PinError
        For a line of another form, an unknown, repeated or missing key, or a value of the wrong shape.
    """
    values: dict[str, str] = {}
    known = {field.name for field in fields(Pin)}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise PinError(path, f'line {number} is not of the form key = "value": {line}')
        key, value = match["key"], match["value"]
        if key not in known or key in values:
            raise PinError(path, f"line {number}: key {key!r} is {'repeated' if key in values else 'unknown'}")
        shape = _SHAPES.get(key)
        if not value or value.startswith("-") or (shape is not None and shape.fullmatch(value) is None):
            raise PinError(path, f"line {number}: {value!r} is not a valid {key}")
        values[key] = value
    source = _SOURCES[1] if values.keys() & _SOURCES[1] else _SOURCES[0]
    missing = sorted((known - _SOURCES[0] - _SOURCES[1] | source) - values.keys())
    if missing:
        raise PinError(path, f"missing: {', '.join(missing)}")
    if values.keys() & _SOURCES[0] and values.keys() & _SOURCES[1]:
        raise PinError(path, "it names both an archive and a git commit")
    subdir = PurePosixPath(values.get("subdir", "."))
    if subdir.is_absolute() or ".." in subdir.parts or (not subdir.parts and "subdir" in values):
        raise PinError(path, f"subdir {values['subdir']!r} is not a relative directory")
    return Pin(**values)


def replace_pin(text: str, pin: Pin) -> str:
    """Return the text of a pin file with the values of `pin`; its comments stay where they are."""
    values = {key: value for key, value in asdict(pin).items() if value}
    lines: list[str] = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            lines.append(line)
        elif match["key"] in values:
            lines.append(f'{match["key"]} = "{values.pop(match["key"])}"')
    return "\n".join([*lines, *(f'{key} = "{value}"' for key, value in values.items())]) + "\n"
