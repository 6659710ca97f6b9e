"""Measured costs in the user's cache folder: one small file for each model and way of running it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pylucebox._errors import InvalidArgumentError
from pylucebox.width import WidthCosts

__all__ = ["CostKey", "CostStore", "cache_dir", "default_store", "file_identity"]

FORMAT: Final = 1
_NAMES: Final = {"model": "another state of the model's files", "build": "another build", "device": "other devices"}

_log = logging.getLogger("pylucebox")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostKey:
    """What measured costs belong to.

    Attributes
    ----------
    model
        Identity of each file, see `file_identity`.
    settings
        What is set for the session and changes its speed.
    build
        Version, upstream build and series of the native library.
    device
        Devices of the machine.
    """

    model: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    build: str
    device: tuple[str, ...]

    def file_name(self) -> str:
        """Return the name of the file for this model and these settings, whatever build and devices are."""
        paths = [entry.rpartition("@")[0] for entry in self.model]
        text = json.dumps([paths, self.settings])
        return f"{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.json"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {name: json.loads(json.dumps(value)) for name, value in asdict(self).items()}


def file_identity(path: Path) -> str:
    """Return a text that changes when a file does: its path, size and time of change. No file is read.

    Raises
    ------
    OSError
        There is no such file.
    """
    found = path.stat()
    return f"{path.resolve()}@{found.st_size}-{found.st_mtime_ns}"


def cache_dir(environ: Mapping[str, str], platform: str = sys.platform) -> Path | None:
    """Return the folder for things that can be made again, by the rules of the platform; None without a home.

    ``$XDG_CACHE_HOME`` counts everywhere, if it is an absolute path as its specification demands.
    """
    chosen = Path(environ.get("XDG_CACHE_HOME", ""))
    if chosen.is_absolute():
        return chosen / "pylucebox"
    if platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return Path(local) / "pylucebox" / "Cache" if local else None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ("Library/Caches" if platform == "darwin" else ".cache") / "pylucebox"


class CostStore:
    """Files of measured costs in a folder. Nothing here raises: a cache that cannot be used is one that is empty.

    Parameters
    ----------
    folder
        Made when something is first put into it; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, key: CostKey) -> WidthCosts | None:
        """Return what is stored under a key; if nothing that can be used is, log why and return None."""
        if self._folder is None:
            return None
        path = self._folder / key.file_name()
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.info("stored costs of widths in %s cannot be read and are measured again: %s", path, error)
            return None
        reason = _stale(stored, key)
        if reason is None:
            try:
                return WidthCosts.from_dict(stored["costs"])
            except (InvalidArgumentError, KeyError, TypeError) as error:
                reason = f"they are damaged ({error})"
        _log.info("stored costs of widths in %s are measured again: %s", path, reason)
        return None

    def save(self, key: CostKey, costs: WidthCosts) -> Path | None:
        """Store costs, all or nothing; return the file, or None if it could not be written."""
        if self._folder is None:
            return None
        path = self._folder / key.file_name()
        document = {"format": FORMAT, "key": key.as_dict(), "costs": costs.as_dict()}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(document, indent=1))
        except OSError as error:
            _log.info("the costs of widths cannot be stored in %s: %s", path, error)
            return None
        return path


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new, and never a part.

    Raises
    ------
    OSError
        It cannot be written; nothing is left behind.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", text=True)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def _stale(stored: object, key: CostKey) -> str | None:
    if not isinstance(stored, dict) or stored.get("format") != FORMAT or not isinstance(stored.get("key"), dict):
        return "they have another format"
    for name, wanted in key.as_dict().items():
        if stored["key"].get(name) != wanted:
            return f"they are of {_NAMES.get(name, 'other settings')}"
    return None


def default_store(environ: Mapping[str, str] = os.environ) -> CostStore:
    """Return the store in the user's cache folder."""
    folder = cache_dir(environ)
    return CostStore(None if folder is None else folder / "widths")


def devices_of(devices: Sequence[Any]) -> tuple[str, ...]:
    """Return the devices of `SystemInfo` as texts for a key."""
    return tuple(f"{device.backend} {device.name}: {device.description}" for device in devices)
