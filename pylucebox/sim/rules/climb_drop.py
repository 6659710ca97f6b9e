"""One more after a run of clean cycles, one fewer when rejections pile up: a pull request to llama.cpp (#27210).

Written from its description, which gives floor and start; how long a run is and where the pressure breaks are choices
of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width import CycleContext, CycleObservation

__all__ = ["ClimbDrop"]

_FLOOR: Final = 3
_CLEAN_RUN: Final = 2  # cycles
_PRESSURE: Final = 6  # rejected drafts


@dataclass(slots=True)
class _State:
    drafts: int = _FLOOR
    n_clean: int = 0
    pressure: int = 0


class ClimbDrop:
    """Three drafts or more."""

    def __init__(self) -> None:
        self._states: dict[int, _State] = {}

    def begin(self, n_seq: int, max_width: int) -> None:  # noqa: ARG002 - the same for all
        """Start again from the floor."""
        self._states = {}

    def choose(self, seq: int, context: CycleContext) -> int:
        """Return the present width."""
        return min(self._states.setdefault(seq, _State()).drafts + 1, context.max_width)

    def observe(self, seq: int, observation: CycleObservation) -> None:
        """Climb or drop."""
        state = self._states.setdefault(seq, _State())
        n_lost = observation.n_verified - observation.n_accepted
        if n_lost == 0:
            state.n_clean += 1
            state.pressure = 0
            if state.n_clean >= _CLEAN_RUN:
                state.drafts, state.n_clean = min(MAX_DRAFT, state.drafts + 1), 0
            return
        state.n_clean = 0
        state.pressure += n_lost
        if state.pressure >= _PRESSURE:
            state.drafts, state.pressure = max(_FLOOR, state.drafts - 1), 0
