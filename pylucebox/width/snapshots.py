"""What the adaptive width keeps from one process to the next: costs, and what probabilities mean. Never a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pylucebox._errors import InvalidArgumentError
from pylucebox.width.book import CostBook
from pylucebox.width.calibration import Calibrator

__all__ = ["restored_parts", "snapshot_of"]

_VERSION: Final = 2


def snapshot_of(book: CostBook, calibrator: Calibrator) -> dict[str, Any]:
    """Return both for JSON."""
    return {"version": _VERSION, "costs": book.snapshot(), "calibrator": calibrator.snapshot()}


def restored_parts(stored: Mapping[str, Any]) -> tuple[CostBook, Calibrator]:
    """Return what `snapshot_of` described.

    Raises
    ------
    InvalidArgumentError
        It is no snapshot of this version.
    """
    try:
        if stored["version"] != _VERSION:
            raise ValueError("another version")
        return CostBook.restored(stored["costs"]), Calibrator.restored(stored["calibrator"])
    except (KeyError, TypeError, ValueError) as error:
        allowed = "a dictionary as AdaptiveWidth.snapshot makes it"
        raise InvalidArgumentError(argument="stored", value=stored, allowed=allowed) from error
