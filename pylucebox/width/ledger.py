"""Bounds what a request can lose against decoding without MTP."""

from __future__ import annotations

from typing import Final

__all__ = ["Ledger"]

_SHARE: Final = 0.014  # of the time without MTP that may be lost; 0.02 are promised
_STEPS: Final = 4.0  # plain steps that may be lost on top
_WINDOW: Final = 1024.0  # tokens whose share can be saved up, so that a long request cannot lose it all at once
_MOST_GAIN: Final = 8.0  # plain steps of gain that can be lost again


class Ledger:
    """Plain steps that may still be lost: a few at first, a little for each token, and what drafts have gained.

    As long as no cycle is begun that could lose more than there is, a request takes at no time longer than 1.02 times
    plain decoding plus four steps. Where plain steps are short a cycle may risk six more, if the text itself promises
    that it gains: see `pylucebox.width.spurts`. A plain cycle is what all is compared with, so it costs nothing but its
    drafts. Charging its measured time against an estimate of itself would park a request forever once the estimate is
    a little low.

    Attributes
    ----------
    lost_us, worst_us
        Time lost so far against plain decoding, now and at its worst; negative is gained.
    """

    def __init__(self) -> None:
        self.lost_us = 0.0
        self.worst_us = 0.0
        self._room = _STEPS

    @property
    def room(self) -> float:
        """Plain steps that may still be lost."""
        return self._room

    def room_us(self, plain_us: float) -> float:
        """Return what the next cycle may take longer than a plain step, which takes `plain_us`."""
        return self._room * plain_us

    def plain(self, draft_us: float, n_tokens: float, plain_us: float) -> None:
        """Enter a cycle that verified no draft, and what its drafts took."""
        self._enter(draft_us, n_tokens, plain_us)

    def drafted(self, took_us: float, n_tokens: float, plain_us: float) -> None:
        """Enter a cycle that verified drafts."""
        self._enter(took_us - n_tokens * plain_us, n_tokens, plain_us)

    def _enter(self, lost_us: float, n_tokens: float, plain_us: float) -> None:
        self.lost_us += lost_us
        self.worst_us = max(self.worst_us, self.lost_us)
        room = self._room + _SHARE * n_tokens - lost_us / plain_us
        self._room = min(room, _STEPS + _SHARE * _WINDOW + _MOST_GAIN)
