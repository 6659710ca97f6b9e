"""Keeps what a policy thinks small beside the cycles it thinks about."""

from __future__ import annotations

from typing import Final

__all__ = ["Thrift"]

_SHARE: Final = 0.01  # of a cycle's time
_MOST_NS: Final = 32_000  # of a cycle, however long it is: with what calls the policy, 0.05 ms
_VOUCHER_NS: Final = 1_000_000  # at the start of a request, where thinking pays most
_PLENTY_NS: Final = 500_000
_TURN: Final = 6  # cycles for each in which the costlier part is done
_MOST_LIGHT: Final = 32  # cycles in a row without thought, after which there is some whatever it costs
_EARLY: Final = 64  # cycles of a request in which it is done each time, if they are long: most is learned in these


class Thrift:
    """An account of nanoseconds: cycles pay in a hundredth of their time up to a limit, the policy's own is taken out.

    Attributes
    ----------
    light
        Whether the present cycle is one to spend no thought on: the account is overdrawn.
    """

    def __init__(self) -> None:
        self.light = False
        self._saved_ns = float(_VOUCHER_NS)
        self._turn = 0
        self._n_light = 0  # in a row

    def earn(self, took_us: float) -> None:
        """Pay in for a cycle."""
        share_ns = min(_SHARE * 1000.0 * took_us, float(_MOST_NS))
        self._saved_ns = max(-float(_VOUCHER_NS), min(self._saved_ns + share_ns, float(_VOUCHER_NS)))

    def spend(self, took_ns: int) -> None:
        """Take out what the policy used."""
        self._saved_ns -= took_ns

    def next_cycle(self) -> None:
        """Decide how much thought the coming cycle gets."""
        self.light = self._saved_ns < 0.0 and self._n_light < _MOST_LIGHT
        if self.light:
            self._n_light += 1
        else:
            self._n_light = 0
            self._turn += 1

    @property
    def generous(self) -> bool:
        """Whether the present cycle may do what is costlier: now and then, and at the start wherever there is time."""
        if self.light:
            return False
        return self._turn % _TURN == 0 or (self._turn <= _EARLY and self._saved_ns > _PLENTY_NS)
