"""Stand-in for the adaptive controller."""

from __future__ import annotations

from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width.policy import CycleContext, CycleObservation, widest_possible

__all__ = ["PlaceholderWidth"]


class PlaceholderWidth:
    """Stand-in for the adaptive controller: compares four widths by tokens per microsecond.

    It keeps a mean time for each of the widths 1, 2, 4 and the widest (this belongs to the machine and stays), and an
    estimate for each depth of how often a draft holds when those before it held (this belongs to the text, so a new
    request starts again from a neutral guess or better). From both follows the expected speed of each width; the
    fastest is taken.

    Widths that are not in use are tried again now and then, so no verdict is final. What such a trial is expected to
    lose is paid from a credit of 1 % of the time spent. All sequences of a batch share one choice.
    """

    PRIOR: Final = 0.6  # guess for a depth that was never seen; one weak observation
    MEMORY: Final = 10  # cycles that an estimate remembers
    LEAD: Final = 1.03  # a width must be so much faster to replace the present one
    CREDIT: Final = 0.01  # share of the time that trials may lose
    GAP: Final = 16  # fewest cycles between trials
    ATTEMPTS: Final = 4  # to time a width at the start of a request

    def __init__(self) -> None:
        self._n_seq = 0
        self._widths: tuple[int, ...] = (1,)
        self._width = 1  # in use
        self._time_us: dict[int, float] = {}
        self._n_timed: dict[int, int] = {}
        self._n_untimed: dict[int, int] = {}
        self._n_asked: dict[int, int] = {}
        self._holds = [self.PRIOR] * MAX_DRAFT
        self._n_seen = [1] * MAX_DRAFT
        self._trial: int | None = None
        self._next_trial = 0
        self._credit_us = 0.0
        self._since_trial = 0.0  # cycles
        self._last: CycleObservation | None = None

    def begin(self, n_seq: int, max_width: int) -> None:
        """Start a request: forget what the last text did to the drafts, keep what a cycle costs."""
        if n_seq != self._n_seq:  # more sequences, more rows: the times no longer apply
            self._n_seq = n_seq
            self._time_us.clear()
            self._n_timed.clear()
        self._widths = tuple(sorted({w for w in (1, 2, 4, max_width) if w <= max_width}))
        self._n_asked.clear()
        self._holds = [max(self.PRIOR, held) for held in self._holds]
        self._n_seen = [1] * MAX_DRAFT
        self._trial = self._last = None
        self._credit_us = 0.0
        self._width = self._fastest()

    def choose(self, seq: int, context: CycleContext) -> int:  # noqa: ARG002 - the choice is shared
        """Return the shared width, cut to the limits of the cycle."""
        if self._last is not None:  # the first sequence of a new cycle decides for all
            self._decide(self._last)
            self._last = None
        return min(self._unknown() or self._trial or self._width, widest_possible(context))

    def observe(self, seq: int, observation: CycleObservation) -> None:  # noqa: ARG002 - the choice is shared
        """Update times, acceptance and credit."""
        took_us: float = max(1, observation.draft_us + observation.verify_us + observation.rollback_us)
        # One hiccup of the machine must neither settle the matter nor pay for trials.
        took_us = min(took_us, 2 * self._time_us.get(observation.width, took_us))
        self._learn_time(observation.width, took_us, built=observation.graph_built)
        self._learn_acceptance(observation.n_verified, observation.n_accepted)
        # Each sequence reports the time of the whole cycle.
        share = observation.width / max(observation.width, observation.n_rows)
        self._credit_us += self.CREDIT * took_us * share
        self._since_trial += share
        self._last = observation

    def _unknown(self) -> int | None:
        """Return a width whose time is not known yet, unless the engine has repeatedly not run it when asked to."""
        fresh = (w for w in self._widths if w not in self._time_us and self._n_asked.get(w, 0) < self.ATTEMPTS)
        return next(fresh, None)

    def _decide(self, last: CycleObservation) -> None:
        asked = self._unknown()
        if asked is not None:
            self._n_asked[asked] = self._n_asked.get(asked, 0) + 1
        # Going wider must be worth it; going narrower needs no reason but speed, so that drafts never cost time.
        fastest = self._fastest()
        lead = self.LEAD if fastest > self._width else 1.0
        if self._speed(fastest) > lead * self._speed(self._width):
            self._width = fastest
        if not self._worth_repeating(last):
            self._trial = self._pick_trial()

    def _learn_time(self, width: int, took_us: float, *, built: bool) -> None:
        # A cycle that built a graph is slower than the next one of its width. But if they all build, that is the price.
        if width not in self._widths or (built and self._n_untimed.get(width, 0) < 2):
            self._n_untimed[width] = self._n_untimed.get(width, 0) + 1
            return
        known = self._time_us.get(width)
        n = self._n_timed[width] = min(self._n_timed.get(width, 0) + 1, self.MEMORY)
        self._time_us[width] = took_us if known is None else known + (took_us - known) / n

    def _learn_acceptance(self, n_verified: int, n_accepted: int) -> None:
        # Nothing is known of the drafts behind a rejected one: they continued another text.
        for depth in range(min(n_verified, n_accepted + 1)):
            n = self._n_seen[depth] = min(self._n_seen[depth] + 1, self.MEMORY)
            self._holds[depth] += ((depth < n_accepted) - self._holds[depth]) / n

    def _tokens(self, width: int) -> float:
        tokens = reach = 1.0
        for held in self._holds[: width - 1]:
            reach *= held
            tokens += reach
        return tokens

    def _speed(self, width: int) -> float:
        time_us = self._time_us.get(width)
        return self._tokens(width) / time_us if time_us else 0.0

    def _fastest(self) -> int:
        return max(self._widths, key=self._speed)

    def _worth_repeating(self, observation: CycleObservation) -> bool:
        """Tell whether a trial held in full and its width could win if that goes on: easier text has perhaps begun."""
        width, n_verified = observation.width, observation.n_verified
        if width != self._trial or width == self._width or not 0 < n_verified == observation.n_accepted:
            return False
        return width / self._time_us[width] > self.LEAD * self._speed(self._width)

    def _pick_trial(self) -> int | None:
        others = [width for width in self._widths if width != self._width and width in self._time_us]
        if not others or self._since_trial < self.GAP:
            return None
        width = others[self._next_trial % len(others)]
        loss_us = self._time_us[width] - self._tokens(width) / self._speed(self._width)
        if loss_us > self._credit_us:
            return None
        self._credit_us = max(0.0, self._credit_us - max(0.0, loss_us))
        self._since_trial = 0.0
        self._next_trial += 1
        return width
