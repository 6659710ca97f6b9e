"""A machine made of a cost curve: times of cycles, with noise where asked for, and a clock that shows their sum."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pylucebox.width import WidthCosts

__all__ = ["QUIET", "REALISTIC", "ROUGH", "CycleTime", "Machine", "Noise", "passes", "swept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What real times have beside the cost curve. Sizes are in plain steps, so that they fit any machine.

    Attributes
    ----------
    jitter
        Standard deviation of the logarithm of each time.
    spike_chance, spike_steps
        How often a cycle is interrupted, and for how long.
    build_steps
        What a width costs more when it runs for the first time on a machine.
    """

    jitter: float = 0.0
    spike_chance: float = 0.0
    spike_steps: float = 0.0
    build_steps: float = 0.0


QUIET: Final = Noise()
"""Times exactly as the curve says."""
REALISTIC: Final = Noise(jitter=0.02, spike_chance=1 / 400, spike_steps=4.0, build_steps=0.5)
"""Two per cent of scatter, a hiccup of four steps every 400 cycles, graphs built at their first use."""
ROUGH: Final = Noise(jitter=0.2, spike_chance=1 / 200, spike_steps=20.0, build_steps=2.0)
"""A machine that others use, too: a fifth of scatter, a hiccup of twenty steps every 200 cycles, slow building."""


class CycleTime(NamedTuple):
    """Times of a cycle in microseconds: what an engine would have measured, and what the curve says of it."""

    draft_us: int
    verify_us: int
    rollback_us: int
    graph_built: bool
    draft_graph_built: bool
    true_us: float


class Machine:
    """Runs cycles on a cost curve.

    Parameters
    ----------
    costs
        What cycles cost.
    noise
        What is added to the times that policies see. Scores are always made from `CycleTime.true_us`.
    seed
        Of the noise.

    Attributes
    ----------
    costs
        As given.
    """

    def __init__(self, costs: WidthCosts, noise: Noise = QUIET, seed: int = 0) -> None:
        self.costs = costs
        self._noise = noise
        self._random = random.Random(seed)
        self._built: set[int] = set()
        self._drafted = False
        self._now_us = 0.0

    def clock(self) -> int:
        """Return the simulated time in nanoseconds. It stands still while a policy thinks."""
        return round(1000 * self._now_us)

    def cycle(self, widths: Sequence[int], n_drafts: int, *, rejected: bool) -> CycleTime:
        """Run a cycle.

        Parameters
        ----------
        widths
            Rows of each sequence, all together at most 8.
        n_drafts
            Length of the longest chain drafted, 0 to 7.
        rejected
            Whether a draft that was verified did not hold.
        """
        costs, noise = self.costs, self._noise
        rows = passes(widths)
        draft_us = costs.draft_us[n_drafts - 1] if n_drafts else 0.0
        verify_us = sum(costs.verify_us[n - 1] for n in rows)
        true_us = draft_us + verify_us + (costs.reject_us if rejected else 0.0)
        rollback_us = costs.reject_us if rejected else 0.0
        step_us = costs.verify_us[0]
        built = draft_built = False
        if noise is not QUIET:
            draft_us *= self._jitter()
            verify_us *= self._jitter()
            if self._random.random() < noise.spike_chance:
                verify_us += noise.spike_steps * step_us
            if noise.build_steps:
                built = not self._built.issuperset(rows)
                draft_built = n_drafts > 0 and not self._drafted
                verify_us += noise.build_steps * step_us * built
                draft_us += noise.build_steps * step_us * draft_built
                self._built.update(rows)
                self._drafted |= draft_built
        self._now_us += draft_us + verify_us + rollback_us
        return CycleTime(round(draft_us), round(verify_us), round(rollback_us), built, draft_built, true_us)

    def _jitter(self) -> float:
        return math.exp(self._random.gauss(0.0, self._noise.jitter))


def passes(widths: Sequence[int]) -> list[int]:
    """Return the rows of each pass through the model that a verify step of several sequences takes.

    Recurrent layers want equally many rows of each sequence in a pass, and the rows that may be rolled back in one. So
    llama.cpp takes as many sequences from the front as have the fewest rows of all, or else the first one alone.
    """
    waiting = list(widths)
    rows = []
    while waiting:
        fewest = min(waiting)
        n_seq = next((at for at, width in enumerate(waiting) if width != fewest), len(waiting)) or 1
        rows.append(n_seq * waiting[0])
        del waiting[:n_seq]
    return rows


def swept(costs: WidthCosts, noise: Noise, seed: int) -> WidthCosts:
    """Return costs as a sweep at load time would have measured them on a noisy machine.

    Each figure is the median of three; a common factor, up to 7 % off, stands for clocks and context that were others
    then.
    """
    if noise is QUIET:
        return costs
    source = random.Random(seed)
    scale = 1.0 + source.uniform(-0.07, 0.07)

    def measured(us: float) -> float:
        return us * scale * sorted(math.exp(source.gauss(0.0, noise.jitter)) for _ in range(3))[1]

    return WidthCosts(
        verify_us=tuple(map(measured, costs.verify_us)),
        draft_us=tuple(map(measured, costs.draft_us)),
        reject_us=costs.reject_us * scale,
        mtp_prefill_us_per_token=costs.mtp_prefill_us_per_token * scale,
        n_past=costs.n_past,
        source="sweep",
    )
