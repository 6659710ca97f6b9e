"""Calibrated probabilities against a measured price, in a fork of llama.cpp ("--spec-auto").

Written from its description. Probabilities are corrected in ten bins for each of four groups of depths. A draft is kept
while the chance of its prefix is above the price of a row, and one more is made while that chance, times the mean
acceptance, is above the price of a draft; prices are the speed so far times what a row or draft takes, rows by a
straight line through the verify times. The first 64 cycles and then one in 32 are probes, whose depth goes round; what
is learned stays with the process. How probes go round is not described and chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width import CycleContext, CycleObservation, CyclePlan

__all__ = ["SpecAuto"]

_N_BINS: Final = 10
_N_GROUPS: Final = 4
_KEEPS_LABELS: Final = 0.99
_KEEPS_TIMES: Final = 0.995
_FIRST_PROBES: Final = 64  # cycles
_PROBE_EVERY: Final = 32
_PRIOR: Final = 1.0  # labels that a probability taken at face value counts for


class SpecAuto:
    """Drafts while they are worth their price."""

    def __init__(self) -> None:
        self._held = [[(number + 0.5) / _N_BINS * _PRIOR for number in range(_N_BINS)] for _ in range(_N_GROUPS)]
        self._seen = [[_PRIOR] * _N_BINS for _ in range(_N_GROUPS)]
        self._mean_held, self._mean_seen = 0.5, 1.0
        self._n_cycles = 0
        self._tokens = self._us = 0.0
        self._draft_us, self._n_drafts = 0.0, 0.0
        # Sums of the line through (rows, time): weight, x, xx, y, xy.
        self._sums = [0.0] * 5
        self._probe = 0
        self._most = 0

    def begin(self, n_seq: int, max_width: int) -> None:
        """Do nothing: what was learned stays."""

    def choose(self, seq: int, context: CycleContext) -> int:  # noqa: ARG002 - without probabilities there is no rule
        """Return no drafts, for callers that do not plan."""
        return 1

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:  # noqa: ARG002 - all sequences share one state
        """Probe, or begin with one draft if the mean acceptance says that it pays."""
        self._most = min(MAX_DRAFT, context.max_width - 1)
        self._probe = 0
        if self._n_cycles < _FIRST_PROBES or self._n_cycles % _PROBE_EVERY == 0:
            turn = self._n_cycles if self._n_cycles < _FIRST_PROBES else self._n_cycles // _PROBE_EVERY
            self._probe = min(1 + turn % MAX_DRAFT, self._most)
            return CyclePlan(self._probe + 1, self._probe)
        if self._most and self._is_worth_drafting(1.0):
            return CyclePlan(1, 1, ask=True)
        return CyclePlan(1, 0)

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:  # noqa: ARG002 - all sequences share one state
        """Draft one more, or verify the prefix that is worth its rows."""
        row_us = self._line()[1]
        reach, kept = 1.0, 0
        for depth, p in enumerate(probs):
            reach *= self._chance(depth, p)
            if kept == depth and reach > self._speed() * row_us:
                kept = depth + 1
        n_more = int(len(probs) < self._most and self._is_worth_drafting(reach))
        return kept + 1, n_more

    def observe(self, seq: int, observation: CycleObservation) -> None:  # noqa: ARG002 - all sequences share one state
        """Learn chances, times and speed."""
        self._n_cycles += 1
        took_us = observation.draft_us + observation.verify_us + observation.rollback_us
        self._tokens = _KEEPS_TIMES * self._tokens + len(observation.tokens)
        self._us = _KEEPS_TIMES * self._us + took_us
        self._draft_us = _KEEPS_TIMES * self._draft_us + observation.draft_us
        self._n_drafts = _KEEPS_TIMES * self._n_drafts + observation.n_drafted
        x, y = float(observation.n_rows), float(observation.verify_us)
        self._sums = [_KEEPS_TIMES * old + new for old, new in zip(self._sums, (1.0, x, x * x, y, x * y), strict=True)]
        held = observation.n_accepted
        for depth in range(min(observation.n_verified, held + 1)):
            group, number = _place(depth, observation.draft_probs[depth])
            self._held[group][number] = _KEEPS_LABELS * self._held[group][number] + (depth < held)
            self._seen[group][number] = _KEEPS_LABELS * self._seen[group][number] + 1.0
            self._mean_held = _KEEPS_LABELS * self._mean_held + (depth < held)
            self._mean_seen = _KEEPS_LABELS * self._mean_seen + 1.0

    def _is_worth_drafting(self, reach: float) -> bool:
        step_us = self._draft_us / self._n_drafts if self._n_drafts else 0.0
        return reach * self._mean_held / self._mean_seen > self._speed() * step_us

    def _chance(self, depth: int, p: float) -> float:
        group, number = _place(depth, p)
        return self._held[group][number] / self._seen[group][number]

    def _speed(self) -> float:
        return self._tokens / self._us if self._us else 0.0

    def _line(self) -> tuple[float, float]:
        w, wx, wxx, wy, wxy = self._sums
        spread = w * wxx - wx * wx
        slope = max(0.0, (w * wxy - wx * wy) / spread) if spread > 1e-9 * w * w else 0.0
        return (wy - slope * wx) / w if w else 0.0, slope


def _place(depth: int, p: float) -> tuple[int, int]:
    return min(depth, _N_GROUPS - 1), min(_N_BINS - 1, int(p * _N_BINS))
