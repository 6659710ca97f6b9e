"""Looking where nothing is known is paid from time that was saved up for it, never from cycles."""

from __future__ import annotations

from typing import Final

__all__ = ["Credits"]

_FLOOR: Final = 0.006
_VALUE: Final = 0.003


class Credits:
    """Two accounts of microseconds, each a share of the time that cycles took.

    Attributes
    ----------
    floor_us
        Spent whatever the estimates say, so that none of them is final.
    value_us
        Spent where an estimate is so uncertain that knowing better could change the choice.
    spent_us
        What both have paid for.
    """

    def __init__(self, voucher_us: float = 0.0) -> None:
        self.floor_us = 0.0
        self.value_us = voucher_us
        self.spent_us = 0.0

    def earn(self, took_us: float, most_us: float) -> None:
        """Save the shares of a cycle, up to the price `most_us` of the dearest exploration."""
        self.floor_us = min(self.floor_us + _FLOOR * took_us, most_us)
        self.value_us = min(self.value_us + _VALUE * took_us, most_us)

    def pay_floor(self, price_us: float, *, debt_us: float = 0.0) -> bool:
        """Pay if there is enough, or if no more than `debt_us` is owed afterwards."""
        if price_us > self.floor_us + debt_us:
            return False
        self.floor_us -= price_us
        self.spent_us += price_us
        return True

    def pay_value(self, price_us: float) -> bool:
        """Pay if there is enough."""
        if price_us > self.value_us:
            return False
        self.value_us -= price_us
        self.spent_us += price_us
        return True
