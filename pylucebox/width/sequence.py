"""What the controller keeps of one sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width.acceptance import PRIOR, Acceptance
from pylucebox.width.calibration import Recent
from pylucebox.width.policy import CycleObservation
from pylucebox.width.shadows import Label, Shadows

__all__ = ["SequenceState"]

_GOES_ON: Final = 0.1  # weight of a cycle in the habit of drafting deeper


class SequenceState:
    """Estimates about one text, and what its present cycle was planned to be.

    Attributes
    ----------
    acceptance, recent, shadows
        What is known of its drafts.
    k
        Drafts that counting would verify.
    goes_on
        For each depth, in what share of the cycles that came so far another draft was worth it.
    n_past, limit
        Tokens in the context, and most drafts of the present cycle.
    chances
        Calibrated chances of the drafts of the present cycle.
    mood
        How sure the first draft of the last cycle with drafts was.
    stop
        Where drafting ought to have stopped in this cycle; 0 if that was not asked.
    hopes
        Whether the last draft that was labelled held and was not verified.
    reason
        Why the present cycle verifies nothing, should it do so.
    """

    def __init__(self, acceptance: Acceptance | None = None) -> None:
        self.acceptance = acceptance or Acceptance()
        self.recent = Recent(max(PRIOR, self.acceptance.rates()[0]))
        self.shadows = Shadows()
        self.k = 0
        self.goes_on = [0.5] * MAX_DRAFT
        self.n_past = -1
        self.limit = MAX_DRAFT
        self.chances: list[float] = []
        self.stop = 0
        self.mood = 1
        self.hopes = False
        self.reason = "price"

    def plan(self, n_past: int, limit: int) -> None:
        """Start a cycle."""
        self.n_past, self.limit = n_past, limit
        self.chances, self.stop, self.reason = [], 0, "price"

    def labels(self, observation: CycleObservation) -> Iterator[Label]:
        """Give all that a cycle tells about drafts, its own and earlier ones."""
        accepted, verified = observation.n_accepted, observation.n_verified
        tokens, drafts, probs = observation.tokens, observation.draft_tokens, observation.draft_probs
        if self.shadows:
            if tokens:
                yield from self.shadows.labels(tokens)
            else:
                self.shadows.clear()
        odds = self.recent.odds
        n_probs = len(probs)
        for depth in range(accepted):
            yield Label(depth, probs[depth] if depth < n_probs else None, odds, True)
        if accepted < verified:
            # Behind an end token there is neither a rejection nor anything to learn.
            if not tokens or len(tokens) > accepted:
                yield Label(accepted, probs[accepted] if accepted < n_probs else None, odds, False)
        elif len(drafts) > verified and len(tokens) == verified + 1:
            self.shadows.add(verified, drafts[verified:], probs[verified:], odds)
            # The chain just added waits for this cycle's last token, earlier ones have seen it.
            yield from self.shadows.newest_label(tokens[-1])

    def keep_habit(self) -> None:
        """Remember how deep drafting went in this cycle."""
        for depth in range(1, self.stop):
            self.goes_on[depth] += _GOES_ON * (1.0 - self.goes_on[depth])
        if 0 < self.stop < MAX_DRAFT:
            self.goes_on[self.stop] -= _GOES_ON * self.goes_on[self.stop]
