"""The pin file ``vendor/upstream.toml``.

The file is TOML, but only the part of TOML that it needs: comments and ``key = "value"`` lines. One small reader for
all Python versions (``tomllib`` came with 3.11) keeps their behaviour equal, and what it does not know it refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from .errors import PinError

_LINE = re.compile(r'(?P<key>[a-z][a-z0-9_]*)\s*=\s*"(?P<value>[^"\\]*)"\s*(?:#.*)?')
_SHAPES = {
    "name": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
    "version": re.compile(r"[0-9][0-9A-Za-z.+!-]*"),
    "sha256": re.compile(r"[0-9a-f]{64}"),
    "tree": re.compile(r"[0-9a-f]{40}"),
    "build": re.compile(r"b[0-9]+"),
}


@dataclass(frozen=True)
class Pin:
    """The upstream that this repository builds on.

    Attributes
    ----------
    name, version
        Package and version of the source distribution.
    sha256
        Hash of its archive, 64 hexadecimal digits.
    subdir
        Directory to unpack, relative to the archive's top directory.
    licence
        Licence of that directory.
    build
        llama.cpp build tag, for example ``"b11434"``.
    llama_cpp_version
        llama.cpp release number.
    tree
        git tree id of the unpacked directory, 40 hexadecimal digits.
    """

    name: str
    version: str
    sha256: str
    subdir: str
    licence: str
    build: str
    llama_cpp_version: str
    tree: str

    @property
    def package(self) -> str:
        """Requirement that names exactly this distribution."""
        return f"{self.name}=={self.version}"

    def identity(self) -> dict[str, str]:
        """Return what a patched tree records about its base; the archive's own hash is not part of it."""
        return {
            "name": self.name,
            "version": self.version,
            "build": self.build,
            "llama_cpp_version": self.llama_cpp_version,
            "tree": self.tree,
        }


def read_pin(path: Path) -> Pin:
    """Read and check the pin file.

    Raises
    ------
    PinError
        If the file is missing, has a line of another form, an unknown, repeated or missing key, or a value of the
        wrong shape.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise PinError(path, str(error)) from error
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
        if not value or (shape is not None and shape.fullmatch(value) is None):
            raise PinError(path, f"line {number}: {value!r} is not a valid {key}")
        values[key] = value
    missing = sorted(known - values.keys())
    if missing:
        raise PinError(path, f"missing: {', '.join(missing)}")
    subdir = PurePosixPath(values["subdir"])
    if subdir.is_absolute() or ".." in subdir.parts or not subdir.parts:
        raise PinError(path, f"subdir {values['subdir']!r} is not a relative directory")
    return Pin(**values)
