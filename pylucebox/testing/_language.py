"""The toy language of the small models: which token may follow which."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pylucebox.testing._vocab import Vocabulary

END_RUN = "\x01\x02\x03\x04\x05\x06\x07"
"""A countdown to the end: each of these characters is followed by the next one, the last by ``<|im_end|>``.

No other token leads here, so a completion ends by itself only after a prompt that ends in one of them, and after
``END_RUN[k]`` it has exactly ``6 - k`` tokens before the end token.
"""

_CHARACTERS = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1))) + "é€😀"

# Both likely successors lie ahead on one ring of characters, so no text can fall into a loop of a few tokens.
_STRIDE = 5


@dataclass(frozen=True)
class Language:
    """Which token follows which; all ids are those of `Vocabulary`.

    Attributes
    ----------
    near, far
        Pairs (token, likely successor): one and five characters ahead on a random ring of all characters. A
        character of several bytes is entered at its first byte and left at its last.
    forced
        Pairs (token, only successor): inside a character of several bytes, and along `END_RUN`.
    """

    near: tuple[tuple[int, int], ...]
    far: tuple[tuple[int, int], ...]
    forced: tuple[tuple[int, int], ...]


def make_language(vocab: Vocabulary, rng: np.random.Generator) -> Language:
    """Put the characters on a ring in random order and link them."""
    spelled = [character.encode() for character in _CHARACTERS]
    ring = [spelled[index] for index in rng.permutation(len(spelled))]

    def ahead(n: int) -> tuple[tuple[int, int], ...]:
        return tuple((left[-1], entered[0]) for left, entered in zip(ring, ring[n:] + ring[:n], strict=True))

    runs = [list(raw) for raw in spelled]
    runs.append([*END_RUN.encode(), vocab.id_of("<|im_end|>")])
    forced = tuple(pair for run in runs for pair in pairwise(run))
    return Language(ahead(1), ahead(_STRIDE), forced)
