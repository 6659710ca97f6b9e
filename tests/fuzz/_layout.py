"""Where each number and text of a GGUF header lies, so that a mutation can aim at one."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


@dataclass(frozen=True)
class Field:
    """Bytes of a header with one meaning.

    Attributes
    ----------
    what
        ``count``, ``length``, ``text``, ``kind``, ``value``, ``float``, ``dims``, ``dim`` or ``offset``.
    owner
        Key or tensor it belongs to.
    start, n_bytes
        Where it lies in the file.
    """

    what: str
    owner: str
    start: int
    n_bytes: int


@dataclass(frozen=True)
class Layout:
    """Fields of a header in the order of the file.

    Attributes
    ----------
    fields
        All of them, but only the first and last entries of long arrays.
    keys_at, tensors_at, end
        Where keys, tensor records and what follows them begin, in bytes.
    """

    fields: tuple[Field, ...]
    keys_at: int
    tensors_at: int
    end: int


class _Walker:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.fields: list[Field] = []

    def number(self, what: str, owner: str, n_bytes: int) -> int:
        value = int.from_bytes(self.content[self.at : self.at + n_bytes], "little")
        self.fields.append(Field(what, owner, self.at, n_bytes))
        self.at += n_bytes
        return value

    def text(self, owner: str | None = None) -> str:
        (n_bytes,) = struct.unpack_from("<Q", self.content, self.at)
        found = self.content[self.at + 8 : self.at + 8 + n_bytes].decode("utf-8", "replace")
        self.number("length", owner or found, 8)
        if n_bytes:
            self.fields.append(Field("text", owner or found, self.at, n_bytes))
        self.at += n_bytes
        return found

    def value(self, kind: int, owner: str) -> None:
        if kind == _STRING:
            self.text(owner)
        elif kind == _ARRAY:
            self.array(owner)
        else:
            self.number("float" if kind in (6, 12) else "value", owner, _SIZES[kind])

    def array(self, owner: str) -> None:
        kind, length = self.number("kind", owner, 4), self.number("count", owner, 8)
        for index in range(length):
            n_fields = len(self.fields)
            self.value(kind, owner)
            if 16 <= index < length - 2:
                del self.fields[n_fields:]


def layout_of(content: bytes) -> Layout:
    """Walk over a header that is in order."""
    walker = _Walker(content)
    walker.number("magic", "", 4)
    walker.number("version", "", 4)
    n_tensors, n_keys = walker.number("count", "tensors", 8), walker.number("count", "keys", 8)
    keys_at = walker.at
    for _ in range(n_keys):
        key = walker.text()
        walker.value(walker.number("kind", key, 4), key)
    tensors_at = walker.at
    for _ in range(n_tensors):
        name = walker.text()
        for _ in range(walker.number("dims", name, 4)):
            walker.number("dim", name, 8)
        walker.number("kind", name, 4)
        walker.number("offset", name, 8)
    return Layout(tuple(walker.fields), keys_at, tensors_at, walker.at)
