"""What the controller keeps of one sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width.acceptance import PRIOR, Acceptance
from pylucebox.width.brief import BriefCycles
from pylucebox.width.calibration import Calibrator, Recent, Signs, log_odds
from pylucebox.width.echo import Echo
from pylucebox.width.forecast import Forecast
from pylucebox.width.hints import TextHints
from pylucebox.width.lookahead import mood_of
from pylucebox.width.policy import CycleObservation
from pylucebox.width.shadows import Label, Shadows
from pylucebox.width.spurts import Spurts, StepCosts
from pylucebox.width.surprise import Foretold

__all__ = ["SequenceState"]

_GOES_ON: Final = 0.1  # weight of a cycle in the habit of drafting deeper


class SequenceState:
    """Estimates about one text, and what its present cycle was planned to be.

    Attributes
    ----------
    acceptance, recent, shadows
        What is known of its drafts.
    brief
        Chooses where no draft is looked at.
    k
        Drafts that counting would verify.
    goes_on
        For each depth, in what share of the cycles that came so far another draft was worth it.
    n_past, limit
        Tokens in the context, and most drafts of the present cycle.
    signs
        What spoke for each draft of the present cycle that was looked at.
    chances, usual
        Calibrated chances of these drafts, and what they would be without luck.
    moods
        How sure each of these drafts, and the one to come, could be expected to be; see `mood_of`.
    reach
        Chance that all of these drafts hold.
    stop
        Where drafting ought to have stopped in this cycle; 0 if that was not asked.
    hopes
        Whether the last draft that was labelled held and was not verified.
    reason
        Why the present cycle verifies nothing, should it do so.
    """

    def __init__(
        self,
        acceptance: Acceptance | None = None,
        hints: TextHints | None = None,
        spurts: Spurts | None = None,
    ) -> None:
        self.acceptance = acceptance or Acceptance()
        self.recent = Recent(max(PRIOR, self.acceptance.rates()[0]))
        self.shadows = Shadows()
        self.brief = BriefCycles(self.acceptance)
        self.spurts = spurts or Spurts(Foretold(), StepCosts())
        self.k = 0
        self.goes_on = [0.5] * MAX_DRAFT
        self.n_past = -1
        self.limit = MAX_DRAFT
        self.signs: list[Signs] = []
        self.chances: list[float] = []
        self.usual: list[float] = []
        self.moods: list[int] = []
        self.reach = 1.0
        self.stop = 0
        self.hopes = False
        self.reason = "price"
        self._draws = None if hints is None else hints.draws
        self._n_prompt = 0 if hints is None else hints.n_prompt
        self._echo = Echo() if hints is None else Echo(hints.prompt)
        self._forecast = Forecast()

    def plan(self, n_past: int, limit: int) -> None:
        """Start a cycle of at most `limit` drafts; a negative number is none."""
        self.n_past, self.stop = n_past, 0
        self.limit, self.reason = (limit, "price") if limit > 0 else (0, "limit")
        if self.moods:  # drafts were looked at
            self.signs, self.chances, self.usual, self.moods, self.reach = [], [], [], [], 1.0

    def open_chain(self) -> int:
        """Begin a chain of drafts; return the mood that its first draft will be made in."""
        self._echo.start()
        self._forecast.start(self._echo.tail)
        mood = mood_of(self._forecast.ahead(0, self.recent.odds, self._echo.length))
        self.moods = [mood]
        return mood

    def luck(self, depth: int) -> float:
        """Return the luck of the token at `depth`, 0 if it is not known."""
        draws = self._draws
        return 0.0 if draws is None else draws.luck(self.n_past - self._n_prompt + 1 + depth)

    def look(self, calibrator: Calibrator, probs: Sequence[float], tokens: Sequence[int]) -> None:
        """Look at the drafts that were made since the last look."""
        if not self.moods:
            self.open_chain()
        echo, forecast, recent = self._echo, self._forecast, self.recent.odds
        for depth in range(len(self.signs), len(probs)):
            draft = tokens[depth] if depth < len(tokens) else None
            says = 0.0 if draft is None else echo.follow(draft)
            signs = Signs(log_odds(probs[depth]), recent, self.luck(depth), says)
            chance, usual = calibrator.chance(depth, signs)
            self.signs.append(signs)
            self.chances.append(chance)
            self.usual.append(usual)
            forecast.note(depth, log_odds(usual), draft)
            self.moods.append(mood_of(forecast.ahead(depth + 1, recent, echo.length)))
            self.reach *= chance

    def labels(self, observation: CycleObservation) -> Iterator[Label]:
        """Give all that a cycle tells about drafts, its own and earlier ones."""
        accepted, verified = observation.n_accepted, observation.n_verified
        tokens, drafts, signs = observation.tokens, observation.draft_tokens, self.signs
        if self.shadows:
            if tokens:
                yield from self.shadows.labels(tokens)
            else:
                self.shadows.clear()
        n_signs = len(signs)
        for depth in range(accepted):
            yield Label(depth, signs[depth] if depth < n_signs else None, True)
        if accepted < verified:
            # Behind an end token there is neither a rejection nor anything to learn.
            if not tokens or len(tokens) > accepted:
                yield Label(accepted, signs[accepted] if accepted < n_signs else None, False)
        elif len(drafts) > verified and len(tokens) == verified + 1:
            self.shadows.add(verified, drafts[verified:], signs[verified:])
            # The chain just added waits for this cycle's last token, earlier ones have seen it.
            yield from self.shadows.newest_label(tokens[-1])

    def take(self, tokens: Sequence[int]) -> None:
        """Take what a cycle added to the text."""
        if tokens:
            self._echo.extend(tokens)
        else:
            self._echo = Echo()  # what is missing cannot be found

    def keep_habit(self) -> None:
        """Remember how deep drafting went in this cycle."""
        for depth in range(1, self.stop):
            self.goes_on[depth] += _GOES_ON * (1.0 - self.goes_on[depth])
        if 0 < self.stop < MAX_DRAFT:
            self.goes_on[self.stop] -= _GOES_ON * self.goes_on[self.stop]
