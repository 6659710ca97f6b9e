"""Steps without drafts: when they tell what decoding without MTP takes, and what the first draft behind them costs."""

from __future__ import annotations

from typing import Final

__all__ = ["PlainSteps"]

_STREAK: Final = 3  # plain steps in a row, of which all but the first count
_FIRST_STREAK: Final = 4
_SELDOM: Final = 400  # passes without a plain step that counts, after which a streak is run for its time
_IN_CACHES_US: Final = 2000.0  # of a plain step, below which weights come from caches that wider steps empty
_WARMING_IN_CACHES: Final = 8
"""Steps until caches are full again: behind eight rows those of the built-in model take 2.3, 1.8, 1.6, 1.4, 1.3, 1.2,
1.1 and 1.05 of the time of later ones on one core."""
_SELDOM_IN_CACHES: Final = 150
_LONG: Final = 8  # plain steps, behind which a draft tells what it costs to catch up with them


class PlainSteps:
    """Counts plain steps in a row, and asks for some where the time of one is not known well enough.

    After a wide step caches are cold, which they are not where nothing is drafted: only a plain step behind others
    tells what decoding without MTP takes. And where nothing is drafted, the MTP block does not run: the next draft has
    to wait until it has caught up.

    Attributes
    ----------
    n
        Plain steps in a row.
    """

    def __init__(self) -> None:
        self.n = 0
        self._on_gpu = False
        self._n_asked = 0
        self._n_since = 0
        self._behind_us = 0.0  # of the first draft behind plain steps, for each of these

    def expect(self, *, on_gpu: bool) -> None:
        """Expect steps of a GPU, which take the same time behind any others however short they are, or of a CPU."""
        self._on_gpu = on_gpu

    def begin_request(self) -> None:
        """Start a request; what was learned of the machine stays."""
        self.n = 0

    def ask_for_first(self, plain_us: float) -> None:
        """Ask for a streak, since a step in use may take another time than `plain_us`, that of a sweep."""
        if not self._on_gpu:
            self._n_asked = _FIRST_STREAK - 1 + self._n_warming(plain_us)

    @property
    def catch_up_us(self) -> float:
        """What the next draft costs besides itself."""
        return self._behind_us * max(0, self.n - 1)

    def asked(self, plain_us: float) -> bool:
        """Tell whether the next step should be plain for its time."""
        n_warming = self._n_warming(plain_us)
        if self._n_since >= (_SELDOM if n_warming == 1 else _SELDOM_IN_CACHES):
            self._n_since, self._n_asked = 0, _STREAK - 1 + n_warming
        return self._n_asked > 0

    def plain(self, plain_us: float, n: int = 1) -> bool:
        """Count `n` plain steps; return whether the time of the last tells what such steps take."""
        self.n += n
        self._n_asked = max(0, self._n_asked - 1)
        counts = self.n > self._n_warming(plain_us)
        self._n_since = 0 if counts else self._n_since + 1
        return counts

    def drafted(self, more_us: float | None) -> None:
        """Count a step with drafts, which took so much longer to make than their price; None if that tells nothing."""
        if more_us is not None and self.n >= _LONG:
            self._behind_us += 0.5 * (max(0.0, more_us / self.n) - self._behind_us)
        self.n = 0
        self._n_since += 1

    def _n_warming(self, plain_us: float) -> int:
        """Return how many plain steps in a row tell nothing yet."""
        return _WARMING_IN_CACHES if plain_us < _IN_CACHES_US and not self._on_gpu else 1
