"""How often drafts hold: two memories of the text, a short and a long one, mixed by how well each foretells.

Acceptance is kept conditional: of the drafts at a depth whose predecessors all held, the share that held too. Depths
are counted from 0 here, so entry 0 is the first draft of a cycle.
"""

from __future__ import annotations

from math import exp, log
from typing import Final

from pylucebox._stats import MAX_DRAFT

__all__ = ["PRIOR", "Acceptance", "expected_tokens"]

PRIOR: Final = 0.75
"""Conditional acceptance of a first draft that nothing is known of. Between published prose (0.68) and code (0.91)."""

_STRENGTH: Final = 3.0  # labels that the guess for a depth weighs
_FADE: Final = 0.97  # a depth is guessed to hold so much less often than the one before it
_MEMORIES: Final = (0.90, 0.985)  # about 10 and 67 labels
_EVIDENCE_KEPT: Final = 0.97  # per label, of how well each memory has foretold
_BIAS: Final = 3.0  # nats by which the short memory must have been better before it takes over
_MOST_CARRIED: Final = 8.0  # labels per depth that the next request starts from


def expected_tokens(acceptance: list[float]) -> list[float]:
    """Return the tokens that cycles with 0, 1, ... verified drafts are expected to produce."""
    tokens, reach = [1.0], 1.0
    for held in acceptance:
        reach *= held
        tokens.append(tokens[-1] + reach)
    return tokens


class Acceptance:
    """Conditional acceptance of one sequence, by depth."""

    def __init__(self) -> None:
        self._held = [[0.0] * MAX_DRAFT, [0.0] * MAX_DRAFT]
        self._seen = [[0.0] * MAX_DRAFT, [0.0] * MAX_DRAFT]
        self._evidence = 0.0  # log likelihood ratio, short memory over long
        self._cached: list[float] | None = None

    def learn(self, depth: int, held: bool) -> None:
        """Take a label: a draft at `depth`, all before which held, did or did not hold."""
        short = _take(self._held[0], self._seen[0], depth, held, _MEMORIES[0])
        long = _take(self._held[1], self._seen[1], depth, held, _MEMORIES[1])
        self._evidence = _EVIDENCE_KEPT * self._evidence + (log(short) - log(long))
        self._cached = None

    def rates(self) -> list[float]:
        """Return the conditional acceptance expected of each depth; the list is shared, do not change it."""
        rates = self._cached
        if rates is None:
            share = self.short_share
            rest = 1.0 - share
            rates = self._cached = []
            memories = self._held[0], self._seen[0], self._held[1], self._seen[1]
            # the mean of each depth is shrunk towards that of the depth before it
            short_guess = long_guess = PRIOR
            for held, seen, long_held, long_seen in zip(*memories, strict=True):
                short = (held + _STRENGTH * short_guess) / (seen + _STRENGTH)
                long = (long_held + _STRENGTH * long_guess) / (long_seen + _STRENGTH)
                rates.append(share * short + rest * long)
                short_guess, long_guess = short * _FADE, long * _FADE
        return rates

    @property
    def short_share(self) -> float:
        """Weight of the short memory, 0 to 1."""
        return 1.0 / (1.0 + exp(min(50.0, _BIAS - self._evidence)))

    def labels(self, depth: int) -> float:
        """Return about how many labels the estimate of a depth rests on, the guess included."""
        share = self.short_share
        return _STRENGTH + share * self._seen[0][depth] + (1.0 - share) * self._seen[1][depth]

    def successor(self) -> Acceptance:
        """Return what the next request starts from: good experience as a few labels, bad experience not at all."""
        fresh = Acceptance()
        if self.short_share > 0.5:  # the text had just changed, so its means are those of no text
            return fresh
        rates = self.rates()
        for depth in range(MAX_DRAFT):
            guess = PRIOR if depth == 0 else rates[depth - 1] * _FADE
            if rates[depth] < min(guess, PRIOR):
                break  # nor what lies behind it: it was seen too rarely
            n_labels = min(_MOST_CARRIED, self._seen[1][depth])
            for index in (0, 1):
                fresh._seen[index][depth] = n_labels
                fresh._held[index][depth] = n_labels * rates[depth]
        return fresh


def _take(held: list[float], seen: list[float], depth: int, it_held: bool, kept: float) -> float:
    """Add a label to a memory; return how likely that memory thought it, at least 0.001."""
    successes, trials = held[depth], seen[depth]
    chance = (successes + _STRENGTH * PRIOR) / (trials + _STRENGTH)
    held[depth] = kept * successes + it_held
    seen[depth] = kept * trials + 1.0
    if not it_held:
        chance = 1.0 - chance
    return chance if chance > 1e-3 else 1e-3
