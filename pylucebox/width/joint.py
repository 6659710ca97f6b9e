"""How many drafts all sequences of a pass verify: with equally many the model runs once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from pylucebox._stats import MAX_DRAFT
from pylucebox.width.choice import best_of, joint_rates
from pylucebox.width.costs import Prices
from pylucebox.width.exploration import Credits
from pylucebox.width.policy import MAX_WIDTH, CyclePlan

__all__ = ["JointChoice"]


class JointChoice:
    """The present choice for a number of sequences that run together.

    Attributes
    ----------
    k
        Drafts that each verifies.
    looks
        Whether each makes one more, to see whether it would hold.
    """

    def __init__(self) -> None:
        self.k = 0
        self.looks = False

    def choose(
        self,
        texts: Sequence[tuple[list[float], int]],
        n_active: int,
        widest: int,
        prices: Prices,
        room_us: float,
    ) -> None:
        """Choose anew how many drafts to verify; the parameters are those of `joint_rates`."""
        self.k = best_of(joint_rates(texts, n_active, widest, prices, room_us), self.k)

    def look(self, widest: int, prices: Prices, room_us: float, account: Credits) -> None:
        """Choose whether to make one more draft, paid from `account`; the other parameters are those of `choose`."""
        # One more step of the common chain, paid once, shows a draft of each sequence.
        price_us = prices.draft[min(self.k + 1, MAX_DRAFT)] - prices.draft[self.k]
        self.looks = self.k + 1 < widest and price_us <= room_us and account.pay_floor(price_us)

    def stay(self, n_active: int, prices: Prices, room_us: float) -> None:
        """Keep the choice, unless more could be lost by it than may be."""
        self.looks = False
        _, verify, draft, reject = prices
        n_rows = min(MAX_WIDTH, n_active * (self.k + 1))
        if self.k and verify[n_rows - 1] + draft[self.k] + reject - verify[min(n_active, MAX_WIDTH) - 1] > room_us:
            self.k = 0

    def rest(self) -> None:
        """Draft nothing for now."""
        self.k, self.looks = 0, False

    def plan(self, limit: int) -> CyclePlan:
        """Return the share of a sequence that can verify at most `limit` drafts."""
        k = self.k
        if k >= limit:
            return CyclePlan(limit + 1, limit)
        return CyclePlan(k + 1, k + 1) if self.looks else CyclePlan(k + 1, k)
