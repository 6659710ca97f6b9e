"""Where a request loses time against one that knows which drafts will hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pylucebox.sim.costs import cycle_us
from pylucebox.sim.replay import Replay
from pylucebox.width import WidthCosts

__all__ = ["Losses", "losses_of", "mean_losses"]


@dataclass(frozen=True, slots=True)
class Losses:
    """Time in units of the clairvoyant's, less 1 if all are added up.

    Attributes
    ----------
    unverified
        Drafts that were made and not verified.
    rejected
        Drafts that were verified and did not hold, their rows, and what the rejections cost.
    short
        Cycles that stopped before the drafts did: what it takes longer to make the drafts that held in these cycles
        than in those of the clairvoyant.
    """

    unverified: float
    rejected: float
    short: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.unverified + self.rejected + self.short


def losses_of(replay: Replay, costs: WidthCosts, clairvoyant_us: float) -> Losses:
    """Return where a request that was alone on a machine lost time.

    Parameters
    ----------
    replay
        What was done.
    costs
        Of the machine.
    clairvoyant_us
        Least time of the request, above 0; see `pylucebox.sim.bounds.clairvoyant_us`.
    """
    unverified = rejected = least = 0.0
    for cycle in replay.cycles:
        failed = cycle.n_accepted < cycle.n_verified
        verified_us = cycle_us(costs, cycle.n_verified + 1, cycle.n_verified, rejected=failed)
        held_us = cycle_us(costs, cycle.n_accepted + 1, cycle.n_accepted, rejected=False)
        unverified += cycle_us(costs, cycle.n_verified + 1, cycle.n_drafted, rejected=failed) - verified_us
        rejected += verified_us - held_us
        least += held_us
    return Losses(unverified / clairvoyant_us, rejected / clairvoyant_us, least / clairvoyant_us - 1.0)


def mean_losses(found: Sequence[Losses]) -> Losses | None:
    """Return the arithmetic means over requests; None if there are none."""
    if not found:
        return None
    n = len(found)
    return Losses(
        unverified=sum(each.unverified for each in found) / n,
        rejected=sum(each.rejected for each in found) / n,
        short=sum(each.short for each in found) / n,
    )
