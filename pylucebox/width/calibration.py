"""From the MTP block's probabilities to chances: a small logistic regression that learns while it is used.

A draft's probability says much about whether it will hold, but not on the trunk's scale, and not equally for every
text. Six weights correct it: an offset, another for the first draft, the scale of the log-odds, and how much the recent
acceptance of the text, the number that will draw the token, and what the text had in such a place before count. Few
weights learn from few labels; bins would need hundreds.

Drafts that share the sampler's noise have no probability of that kind: theirs is made from their lead over the second
(docs/coupled-drafts.md), on the scale that the weights start from.
"""

from __future__ import annotations

from math import exp, log
from typing import Any, Final, NamedTuple

__all__ = ["Calibrator", "Recent", "Signs", "log_odds"]

_START: Final = (0.05, -0.19, 0.97, 0.1, 0.6, 0.56)
"""Weights that a model nothing is known of begins with: offset, first draft, then those of `Signs`.

Fitted on 31 texts of the built-in model, none of them among those that `lucebox sim` judges by."""

_N_OFFSETS: Final = 2  # of the weights, which may be negative
_STIFFNESS: Final = 20.0  # curvature that the start counts as, for each weight
_KEPT: Final = 0.995  # of the curvature, per label
_LIMIT: Final = 6.9  # log-odds of 0.999
_RECENT: Final = 0.1  # weight of a label in the recent acceptance
_SCORE_KEPT: Final = 127 / 128
_DOUBT: Final = 0.8  # squared error by which the chances may be behind: the first labels of a text are often odd ones


def log_odds(probability: float) -> float:
    """Return ln(p / (1 - p)), limited where p is almost 0 or 1; 0 for what is no probability."""
    if not 0.0 <= probability <= 1.0:  # NaN as well
        return 0.0
    if probability < 0.001:
        return -_LIMIT
    if probability > 0.999:
        return _LIMIT
    return log(probability / (1.0 - probability))


class Signs(NamedTuple):
    """What speaks for a draft, all as log-odds: above 0 for it, below against it.

    Attributes
    ----------
    odds
        The MTP block's probability.
    recent
        The recent acceptance of the text.
    luck
        The number that will draw the token, as `Draws.luck` has it.
    echo
        What the text had in such a place before, as `Echo.follow` has it.
    """

    odds: float
    recent: float
    luck: float
    echo: float


class Recent:
    """Recent acceptance of one text, over all depths, as log-odds."""

    def __init__(self, start: float) -> None:
        self.rate = start
        self.odds = log_odds(start)

    def learn(self, held: bool) -> None:
        """Take a label."""
        self.rate += _RECENT * (held - self.rate)

    def refresh(self) -> None:
        """Compute the log-odds anew; left to the caller because it is not needed per label."""
        self.odds = log_odds(self.rate)


class Calibrator:
    """Chance that a draft holds if those before it do, from its probability and the recent acceptance of the text."""

    def __init__(self) -> None:
        self._weights = list(_START)
        self._curvature = [_STIFFNESS] * len(_START)
        self._score = 0.0  # squared errors, decayed, of the calibrated chances
        self._counts_score = 0.0  # and of the mean acceptance
        self._n_scored = 0.0

    def chance(self, depth: int, signs: Signs) -> tuple[float, float]:
        """Return the chance of a draft that `depth` others come before, and what it would be without luck."""
        odds, recent, luck, echo = signs
        offset, first, scale, trust, luck_weight, echo_weight = self._weights
        z = offset + scale * odds + trust * recent + echo_weight * echo
        if not depth:
            z += first
        chance = usual = 1.0 / (1.0 + exp(-z)) if z > -_LIMIT else 0.001
        if luck:
            z += luck_weight * luck
            chance = 1.0 / (1.0 + exp(-z)) if z > -_LIMIT else 0.001
        return chance, usual

    @property
    def luck_weight(self) -> float:
        """Log-odds that a unit of luck adds."""
        return self._weights[4]

    def learn(self, depth: int, signs: Signs, held: bool, counted: float) -> None:
        """Take a label.

        Parameters
        ----------
        depth
            Of the draft, from 0.
        signs
            What spoke for it.
        held
            Whether it held.
        counted
            Chance that counting alone gave it.
        """
        weights, curvature = self._weights, self._curvature
        odds, recent, luck, echo = signs
        offset, first, scale, trust, luck_weight, echo_weight = weights
        z = offset if depth else offset + first
        z = z + scale * odds + trust * recent + (luck_weight * luck + echo_weight * echo)
        chance = 1.0 / (1.0 + exp(-max(-_LIMIT, min(_LIMIT, z))))
        error, steepness = held - chance, chance * (1.0 - chance)
        for index, x in ((0, 1.0), (1, 0.0 if depth else 1.0), (2, odds), (3, recent), (4, luck), (5, echo)):
            if x:
                bend = curvature[index] = _KEPT * curvature[index] + steepness * x * x
                weight = weights[index] + error * x / (bend if bend > 1.0 else 1.0)
                # More probable must never count as less likely.
                weights[index] = weight if weight > 0.0 or index < _N_OFFSETS else 0.0
        self._score = _SCORE_KEPT * self._score + error * error
        self._counts_score = _SCORE_KEPT * self._counts_score + (held - counted) ** 2
        self._n_scored = _SCORE_KEPT * self._n_scored + 1.0

    @property
    def better(self) -> bool:
        """Whether the chances beat counting, by Brier score over about the last 128 labels."""
        return self._score <= self._counts_score + _DOUBT

    @property
    def brier(self) -> tuple[float, float] | tuple[None, None]:
        """Brier scores of the chances and of counting; None before the first label."""
        if not self._n_scored:
            return None, None
        return self._score / self._n_scored, self._counts_score / self._n_scored

    def begin(self) -> None:
        """Start another text: keep half of what was learned about probabilities, but none of the pessimism."""
        kept = [start + 0.5 * (weight - start) for start, weight in zip(_START, self._weights, strict=True)]
        kept[:2] = map(max, kept[:2], _START[:2])
        self._weights = kept
        self._curvature = [min(bend, _STIFFNESS) for bend in self._curvature]

    def snapshot(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {"weights": list(self._weights), "curvature": list(self._curvature)}

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> Calibrator:
        """Return the calibrator that `snapshot` described."""
        calibrator = cls()
        weights, curvature = [float(w) for w in stored["weights"]], [float(c) for c in stored["curvature"]]
        if len(weights) != len(_START) or len(curvature) != len(_START):
            raise ValueError("another number of weights")
        calibrator._weights, calibrator._curvature = weights, curvature
        return calibrator
