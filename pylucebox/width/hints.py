"""What is known of a text before it is written: its prompt, and the random numbers that will draw its tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Final

__all__ = ["Draws", "TextHints"]

_WORDS: Final = 624  # of the Mersenne twister's state
_LIMIT: Final = 5.0  # log-odds beyond which a number says no more
_KEPT: Final = 4096  # numbers kept; what lies further back is forgotten


class Draws:
    """The numbers that a seeded sampler will draw, foretold.

    llama.cpp's sampler takes one number from 0 to 1 of a Mersenne twister for each token, and the token is the first,
    in the order of their probabilities, where these add up to the number. So a low number draws the likeliest token,
    which is most often the draft, and a high one something else. The numbers depend on the seed alone: they are known
    before anything is drafted.

    Parameters
    ----------
    seed
        Of the sampler, 0 to 2**32 - 1.
    temperature
        Of the sampler, above 0.
    """

    def __init__(self, seed: int, temperature: float) -> None:
        self._seed = seed
        self._temperature = temperature
        self._random: random.Random | None = None
        self._first = 0  # token that the first entry below belongs to
        self._known: list[float] = []

    def luck(self, token: int) -> float:
        """Return how much its number favours the likeliest tokens, for each token of the text, counted from 0.

        Returns
        -------
        float
            Log-odds of drawing a higher number, times the temperature: with two tokens to choose from, the likelier one
            is drawn if it leads by more than the negative of that in logits. 0 for a token that is long past.
        """
        at = token - self._first
        while at >= len(self._known):
            if len(self._known) > _KEPT:
                del self._known[: _KEPT // 2]
                self._first += _KEPT // 2
                at -= _KEPT // 2
            self._known.append(self._next())
        return self._known[at] if at >= 0 else 0.0

    def _next(self) -> float:
        if self._random is None:
            self._random = _twister(self._seed)
        # As std::uniform_real_distribution<double> makes it of two words, the first of which is the lower one.
        number = self._random.getrandbits(64) * 2.0**-64
        if number < 1e-3:
            return _LIMIT * self._temperature
        odds = log((1.0 - number) / number) if number < 1.0 else -_LIMIT
        return self._temperature * min(_LIMIT, max(-_LIMIT, odds))


def _twister(seed: int) -> random.Random:
    """Return a generator in the state of ``std::mt19937(seed)``; Python's own seeding is another."""
    words = [seed & 0xFFFFFFFF]
    for index in range(1, _WORDS):
        last = words[-1]
        words.append((1812433253 * (last ^ (last >> 30)) + index) & 0xFFFFFFFF)
    generator = random.Random()
    generator.setstate((3, (*words, _WORDS), None))
    return generator


@dataclass(frozen=True, slots=True)
class TextHints:
    """What an engine knows of the text of a request.

    Attributes
    ----------
    prompt
        Token ids of the prompt, as far as they are known: texts repeat what stands in it.
    n_prompt
        Tokens in the context when the first token of the text is drawn.
    draws
        The numbers that draw the tokens; None where they are not foreseeable, or of no effect.
    """

    prompt: Sequence[int]
    n_prompt: int
    draws: Draws | None = None
