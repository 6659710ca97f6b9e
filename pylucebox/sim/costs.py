"""Cost curves: what a cycle costs by its rows and drafts, as published or as `lucebox calibrate` measured it."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pylucebox._errors import InvalidArgumentError, LoadError, StrPath
from pylucebox.width import WidthCosts

__all__ = ["CostCurve", "curve", "curves", "cycle_us", "read_curves"]

_MAX_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCurve:
    """Costs of a machine under a name.

    Attributes
    ----------
    name, title
        Short and long.
    evidence
        ``"published"``: measured by others. ``"derived"``: computed from figures that others published.
        ``"constructed"``: a shape that exists, with figures of ours. ``"measured"``: read from a file.
    costs
        The costs; their `source` says where they come from.
    """

    name: str
    title: str
    evidence: str
    costs: WidthCosts


def cycle_us(costs: WidthCosts, n_rows: int, n_drafts: int, *, rejected: bool) -> float:
    """Return the time of a cycle in microseconds.

    Parameters
    ----------
    costs
        Of the machine.
    n_rows
        Rows verified, 1 to 8.
    n_drafts
        Length of the chain drafted, 0 to 7.
    rejected
        Whether a draft that was verified did not hold.
    """
    drafting = costs.draft_us[n_drafts - 1] if n_drafts else 0.0
    return costs.verify_us[n_rows - 1] + drafting + (costs.reject_us if rejected else 0.0)


@functools.cache
def curves() -> tuple[CostCurve, ...]:
    """Return the curves that come with the package."""
    text = resources.files("pylucebox.sim").joinpath("data/costs.json").read_text(encoding="utf-8")
    return tuple(_curve(entry) for entry in json.loads(text))


def curve(name: str) -> CostCurve:
    """Return a curve of the package by name.

    Raises
    ------
    InvalidArgumentError
        There is none of this name.
    """
    for found in curves():
        if found.name == name:
            return found
    raise InvalidArgumentError(argument="machine", value=name, allowed=", ".join(each.name for each in curves()))


def read_curves(path: StrPath) -> tuple[CostCurve, ...]:
    """Read the costs that `lucebox calibrate` wrote, a curve for each context length.

    Raises
    ------
    LoadError
        The file is missing, cannot be read, or holds something else.
    """
    name = os.fspath(path)
    advice = "Give a file that `lucebox calibrate` wrote."
    try:
        with Path(name).open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise LoadError(f"cannot read {name!r}", path=name, seen=error.strerror or str(error)) from error
    if len(raw) > _MAX_BYTES:
        raise LoadError(f"cannot read {name!r}", path=name, seen="it is too large for a cost file", advice=advice)
    try:
        found = [WidthCosts.from_dict(entry) for entry in _entries(json.loads(raw.decode()))]
    except (ValueError, TypeError, KeyError, RecursionError) as error:  # InvalidArgumentError is a ValueError
        seen = error.seen if isinstance(error, InvalidArgumentError) else "it has no list of costs"
        raise LoadError(f"cannot read {name!r}", path=name, seen=seen, advice=advice) from error
    stem = Path(name).stem
    return tuple(
        CostCurve(
            name=f"{stem}-{costs.n_past}" if len(found) > 1 else stem,
            title=f"{stem}, {costs.n_past} tokens of context",
            evidence="measured",
            costs=costs,
        )
        for costs in found
    )


def _entries(document: Any) -> list[dict[str, Any]]:
    """Return the costs in a document: those of `lucebox calibrate`, or a single `WidthCosts.as_dict`."""
    entries = document.get("costs", [document]) if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        msg = "a list of costs"
        raise TypeError(msg)
    return entries


def _curve(entry: Mapping[str, Any]) -> CostCurve:
    costs = WidthCosts.from_dict(entry)
    return CostCurve(name=entry["name"], title=entry["title"], evidence=entry["evidence"], costs=costs)
