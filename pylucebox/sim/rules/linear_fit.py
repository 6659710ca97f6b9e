"""The rule of the pull request that brought MTP for this model to another engine on gfx1151 ("cycle-cost fit").

Written from its description. It counts how often a draft holds where it was reached, with 16 trials at 0.9 to begin
with and a memory of 128 cycles, fits a straight line to the times of cycles, and takes the number of drafts, 1 to 7,
with the most tokens per time. Every 17th cycle looks one deeper, every eighth of those at all seven. At first it
climbs: from three drafts, one more after each cycle whose drafts all held. It never stops drafting, and each request
begins anew.
"""

from __future__ import annotations

from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width import CycleContext, CycleObservation

__all__ = ["LinearFit"]

_PRIOR_TRIALS: Final = 16.0
_PRIOR_HOLDS: Final = 0.90
_MEMORY: Final = 127 / 128  # per cycle
_PROBE_EVERY: Final = 17
_DEEP_EVERY: Final = 8
_RAMP_CYCLES: Final = 16
_RAMP_START: Final = 3
_SKIPPED: Final = 4  # first samples of each width
_CLAMP: Final = 0.25
_RIDGE: Final = 8.0  # samples that the line it starts from counts for


class LinearFit:
    """Tokens per time with a straight line for the time.

    Parameters
    ----------
    base_us, slope_us
        The line it starts from: time without drafts, and time per draft, in microseconds. The original has 47 ms and
        20 ms, those of its one machine.
    """

    def __init__(self, base_us: float = 47_000.0, slope_us: float = 20_000.0) -> None:
        self._prior = (base_us, slope_us)
        self.begin(1, MAX_DRAFT + 1)

    def begin(self, n_seq: int, max_width: int) -> None:  # noqa: ARG002 - all sequences share one state
        """Forget everything."""
        self._held = [_PRIOR_TRIALS * _PRIOR_HOLDS] * MAX_DRAFT
        self._tried = [_PRIOR_TRIALS] * MAX_DRAFT
        base, slope = self._prior
        # Sums of a weighted least-squares line, begun with points on the line it starts from.
        xs = (0.0, float(MAX_DRAFT))
        weight = _RIDGE / len(xs)
        self._w = _RIDGE
        self._wx = weight * sum(xs)
        self._wxx = weight * sum(x * x for x in xs)
        self._wy = weight * sum(base + slope * x for x in xs)
        self._wxy = weight * sum(x * (base + slope * x) for x in xs)
        self._n_seen = [0] * (MAX_DRAFT + 1)
        self._n_cycles = 0
        self._ramp = _RAMP_START

    def choose(self, seq: int, context: CycleContext) -> int:  # noqa: ARG002 - all sequences share one state
        """Return the width of the line's best number of drafts, or of a probe."""
        best = self._best()
        if self._n_cycles < _RAMP_CYCLES:
            best = self._ramp
        probe = self._n_cycles % _PROBE_EVERY == _PROBE_EVERY - 1
        if probe:
            deep = self._n_cycles // _PROBE_EVERY % _DEEP_EVERY == _DEEP_EVERY - 1
            best = MAX_DRAFT if deep else min(MAX_DRAFT, best + 1)
        return min(best + 1, context.max_width)

    def observe(self, seq: int, observation: CycleObservation) -> None:  # noqa: ARG002 - all sequences share one state
        """Count what held, and add the time to the line."""
        self._n_cycles += 1
        drafts, held = observation.n_verified, observation.n_accepted
        for depth in range(MAX_DRAFT):
            self._held[depth] *= _MEMORY
            self._tried[depth] *= _MEMORY
        for depth in range(min(drafts, held + 1)):
            self._tried[depth] += 1.0
            self._held[depth] += depth < held
        self._ramp = min(MAX_DRAFT, self._ramp + 1) if held == drafts else max(_RAMP_START, self._best())
        self._n_seen[drafts] += 1
        if self._n_seen[drafts] > _SKIPPED:
            self._learn_time(drafts, observation.draft_us + observation.verify_us + observation.rollback_us)

    def _learn_time(self, drafts: int, took_us: float) -> None:
        base, slope = self._line()
        expected = base + slope * drafts
        sample = min(max(took_us, (1 - _CLAMP) * expected), (1 + _CLAMP) * expected)
        x = float(drafts)
        for name, value in (("_w", 1.0), ("_wx", x), ("_wxx", x * x), ("_wy", sample), ("_wxy", x * sample)):
            setattr(self, name, _MEMORY * getattr(self, name) + value)

    def _line(self) -> tuple[float, float]:
        spread = self._w * self._wxx - self._wx * self._wx
        slope = max(0.0, (self._w * self._wxy - self._wx * self._wy) / spread) if spread > 1e-9 else self._prior[1]
        return (self._wy - slope * self._wx) / self._w, slope

    def _best(self) -> int:
        base, slope = self._line()
        tokens = reach = 1.0
        best, best_rate = 1, 0.0
        for drafts in range(1, MAX_DRAFT + 1):
            reach *= self._held[drafts - 1] / self._tried[drafts - 1]
            tokens += reach
            rate = tokens / (base + slope * drafts)
            if rate > best_rate:
                best, best_rate = drafts, rate
        return best
