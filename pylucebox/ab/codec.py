"""Dataclasses to JSON and back, by their type hints."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Record", "canonical", "sha256_of"]


class Record:
    """Base of frozen dataclasses that are written as JSON objects."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; a number that JSON does not have (nan, infinity) is None."""
        plain: dict[str, Any] = _plain(self)
        return plain

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what `as_dict` wrote; unknown keys are ignored, so that a later minor version can add some.

        Raises
        ------
        ValueError
            A key without default is missing, or a value has the wrong shape.
        """
        return cls(**_fields_of(cls, content))


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _fields_of(cls: type, content: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise ValueError(f"{cls.__name__}: an object is needed, not {type(content).__name__}")
    hints = _hints(cls)
    out: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.name in content:
            out[field.name] = _read(hints[field.name], content[field.name], f"{cls.__name__}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{cls.__name__}: the key {field.name!r} is missing")
    return out


def _read(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        return None if value is None else _read(options[0], value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{where}: an array is needed, not {type(value).__name__}")
        items = get_args(hint)
        kinds = [items[0]] * len(value) if items[-1] is Ellipsis else list(items)
        return tuple(_read(kind, item, where) for kind, item in zip(kinds, value, strict=True))
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_dict(value)
    return _read_plain(hint, origin, value, where)


def _read_plain(hint: Any, origin: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wanted = origin or hint
    if wanted is Any:
        return value
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise ValueError(f"{where}: {getattr(wanted, '__name__', wanted)} is needed, not {type(value).__name__}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def canonical(content: Any) -> str:
    """Return JSON text that is the same for equal content: sorted keys, no spaces, ASCII only."""
    return json.dumps(_plain(content), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def sha256_of(content: Any) -> str:
    """Return the SHA-256, in hex, of the canonical JSON of `content`."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()
