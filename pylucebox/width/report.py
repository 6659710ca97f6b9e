"""Counts of a request for its telemetry."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pylucebox._stats import MAX_DRAFT
from pylucebox.width.policy import MAX_WIDTH, CycleObservation
from pylucebox.width.telemetry import WidthTelemetry

__all__ = ["Tally"]


class Tally:
    """Adds up what cycles did."""

    def __init__(self) -> None:
        self._cycles = 0
        self._tokens = 0
        self._verified = [0] * MAX_WIDTH
        self._drafted = [0] * MAX_WIDTH
        self._held = [0] * MAX_DRAFT
        self._seen = [0] * MAX_DRAFT
        self._reasons: Counter[str] = Counter()

    def add(self, observation: CycleObservation, n_tokens: int, reason: str) -> None:
        """Count a cycle of a sequence, or plain ones that are reported as one, and why they verified nothing."""
        n_verified = observation.width - 1
        n_cycles = 1 if n_verified else n_tokens
        self._cycles += n_cycles
        self._tokens += n_tokens
        self._verified[n_verified] += n_cycles
        self._drafted[observation.n_drafted] += n_cycles
        if not n_verified:
            self._reasons[reason] += n_cycles

    def label(self, depth: int, held: bool) -> None:
        """Count a draft whose predecessors all held."""
        self._seen[depth] += 1
        self._held[depth] += held

    def report(self, **figures: Any) -> WidthTelemetry:
        """Return the counts together with the figures that others know."""
        conditional = tuple(held / seen if seen else None for held, seen in zip(self._held, self._seen, strict=True))
        survival: list[float | None] = []
        reach: float | None = 1.0
        for rate in conditional:
            reach = None if rate is None or reach is None else reach * rate
            survival.append(reach)
        return WidthTelemetry(
            cycles=self._cycles,
            tokens=self._tokens,
            verified_histogram=tuple(self._verified),
            drafted_histogram=tuple(self._drafted),
            conditional_acceptance=conditional,
            survival_acceptance=tuple(survival),
            plain_reasons=tuple(self._reasons.most_common()),
            **figures,
        )
