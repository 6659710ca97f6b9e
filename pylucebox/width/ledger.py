"""Bounds what a request can lose against decoding without MTP."""

from __future__ import annotations

from typing import Final

__all__ = ["Ledger"]

_SHARE: Final = 0.02  # of the time without MTP that may be lost
_STEPS: Final = 4.0  # plain steps that may be lost on top
_WINDOW: Final = 1024.0  # tokens after which losses and gains are forgotten
_MOST_GAIN: Final = 8.0  # plain steps of gain that are kept


class Ledger:
    """Time lost against plain decoding, in microseconds; negative is gained.

    A plain cycle is what it is compared with, so it costs nothing but its shadow drafts. Charging its measured time
    against an estimate of itself would park a request forever once the estimate is a little low.
    """

    def __init__(self) -> None:
        self.lost_us = 0.0
        self.worst_us = 0.0
        self._n_tokens = 0.0

    def limit_us(self, plain_us: float) -> float:
        """Return the loss that is allowed now, where a plain step takes `plain_us`."""
        return plain_us * (_STEPS + _SHARE * min(self._n_tokens, _WINDOW))

    def room_us(self, plain_us: float) -> float:
        """Return what a cycle may take longer than a plain step, should all its drafts fail."""
        return self.limit_us(plain_us) - self.lost_us

    def plain(self, draft_us: float, n_tokens: float, plain_us: float) -> None:
        """Enter a cycle that verified no draft, and what its shadow drafts took."""
        self._enter(draft_us, n_tokens, plain_us)

    def drafted(self, took_us: float, n_tokens: float, plain_us: float) -> None:
        """Enter a cycle that verified drafts."""
        self._enter(took_us - n_tokens * plain_us, n_tokens, plain_us)

    def _enter(self, lost_us: float, n_tokens: float, plain_us: float) -> None:
        lost = (self.lost_us + lost_us) * (1.0 - n_tokens / _WINDOW)
        self.lost_us = max(lost, -_MOST_GAIN * plain_us)
        self.worst_us = max(self.worst_us, self.lost_us)
        self._n_tokens += n_tokens
