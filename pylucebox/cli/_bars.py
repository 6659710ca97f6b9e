"""Bars of text, for charts in a terminal. Pure: returns text."""

from __future__ import annotations

import sys
from typing import TextIO

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def is_drawable(out: TextIO = sys.stdout) -> bool:
    """Tell whether a stream is a terminal that can show block characters."""
    try:
        _EIGHTHS.encode(out.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return out.isatty()


def bar(share: float, width: int, *, drawn: bool) -> str:
    """Return a bar of `share` (0 to 1) of `width` characters: blocks if `drawn`, else number signs."""
    share = min(1.0, max(0.0, share))
    if not drawn:
        return "#" * round(share * width)
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
