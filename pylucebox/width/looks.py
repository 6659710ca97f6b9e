"""Looks at a chain of drafts: where they pay, and what they may spare."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["best_look", "rows_spared_us", "sure_drafts"]


def best_look(goes_on: Sequence[float], draft_us: Sequence[float], depth: int, limit: int, look_us: float) -> int:
    """Return after how many drafts one look is expected to spare most, or `limit` if that is less than it takes.

    Parameters
    ----------
    goes_on
        For each depth, how often another draft was worth its time.
    draft_us
        Time of a chain of 0, 1, ... drafts.
    depth, limit
        Drafts that are made anyway, and the most.
    look_us
        What a look takes, with the launch that makes the drafts behind it.
    """
    found, best_us, chance = limit, look_us, 1.0
    for at in range(depth, limit):
        chance *= goes_on[at]
        spared_us = (1.0 - chance) * (draft_us[limit] - draft_us[at])
        if spared_us > best_us:
            found, best_us = at, spared_us
    return found


def rows_spared_us(goes_on: Sequence[float], holds: Sequence[float], verify_us: Sequence[float], limit: int) -> float:
    """Return the time of rows that a look at all `limit` drafts, made in one launch, is expected to spare.

    It spares those behind where drafting lately ought to have stopped, and never more than those behind the first miss.

    Parameters
    ----------
    goes_on
        For each depth, how often another draft was worth its time.
    holds
        For each depth, the chance that a draft holds after all before it.
    verify_us
        Time of a step that verifies 0, 1, ... drafts.
    limit
        Drafts.
    """
    by_habit = by_misses = 0.0
    going = holding = 1.0
    for depth in range(limit):
        spared_us = max(0.0, verify_us[limit] - verify_us[depth])
        if depth:
            by_habit += going * (1.0 - goes_on[depth]) * spared_us
            going *= goes_on[depth]
        by_misses += holding * (1.0 - holds[depth]) * spared_us
        holding *= holds[depth]
    return min(by_habit, by_misses)


def sure_drafts(goes_on: Sequence[float], draft_us: Sequence[float], depth: int, limit: int, look_us: float) -> int:
    """Return how deep to draft before a look: on while it takes longer than it is expected to spare of one draft more.

    The parameters are those of `best_look`.
    """
    while depth < limit and (1.0 - goes_on[depth]) * (draft_us[depth + 1] - draft_us[depth]) < look_us:
        depth += 1
    return depth
