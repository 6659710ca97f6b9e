"""HTML from Python values. Texts are escaped unless they are `Html` already, so nothing gets in by being forgotten."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final

__all__ = ["Html", "el", "identifier", "join"]

_VOID: Final = frozenset({"br", "meta", "link", "hr"})
# XML does not have these characters at all, escaped or not, and a browser would show nothing for them.
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """Markup that needs no more escaping."""

    __slots__ = ()


def _text(content: object) -> str:
    return content if isinstance(content, Html) else escape(_CONTROL.sub("\ufffd", str(content)))


def el(tag: str, /, *children: object, **attributes: object) -> Html:
    """Return an element.

    Parameters
    ----------
    tag
        Its name.
    *children
        Content; what is not `Html` is escaped, None is left out.
    **attributes
        Values; None leaves one out, True stands for itself. ``class_`` is ``class``, other underscores are hyphens.
    """
    shown = "".join(_attribute(key, value) for key, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{shown}/>")
    content = "".join(_text(child) for child in children if child is not None)
    return Html(f"<{tag}{shown}>{content}</{tag}>")


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = "class" if key == "class_" else key.replace("_", "-")
    shown = name if value is True else f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(_CONTROL.sub(chr(0xFFFD), shown))}"'


def join(parts: Iterable[object], between: object = "") -> Html:
    """Return several pieces as one."""
    return Html(_text(between).join(_text(part) for part in parts if part is not None))


def identifier(*parts: str) -> str:
    """Return an id for an anchor; different parts give different ids."""
    return "-".join(re.sub(r"[^a-z0-9]", lambda match: f"_{ord(match[0]):x}_", part.lower()) for part in parts)
