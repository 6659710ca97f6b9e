"""Whether a draft continues a passage that the text or its prompt has had before."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Final

__all__ = ["SEARCHED_TOKENS", "Echo"]

SEARCHED_TOKENS: Final = 2048
"""Tokens at the end of a prompt that are searched for passages."""

_KEY: Final = 3  # tokens that a passage must share to be found
_LONGEST: Final = 16  # tokens, beyond which a longer passage says no more
_AT_ONCE: Final = 128  # tokens entered in one cycle
_STRENGTH: Final = tuple(log2(max(_KEY, length) / _KEY + 0.5) for length in range(_LONGEST + 1))


class Echo:
    """An index of passages of a text by their last three tokens.

    It follows a chain of drafts: what once came after the passage that the text ends with is what an echo would bring,
    and a draft that says the same is likelier to hold, one that says otherwise less so.

    Parameters
    ----------
    prompt
        What the text begins with.
    """

    def __init__(self, prompt: Sequence[int] = ()) -> None:
        self._tokens = list(prompt[-SEARCHED_TOKENS:])
        self._last: dict[tuple[int, ...], int] = {}  # where the token behind a passage stands
        self._n_entered = _KEY  # tokens before which all passages are in the index
        self._tail: list[int] = []  # last tokens of the text and the drafts after them
        self._at = -1  # of the token that an echo would bring next; -1 for none
        self._length = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Take further tokens of the text."""
        self._tokens += tokens

    def start(self) -> None:
        """Begin a chain behind the last token of the text."""
        tokens, last = self._tokens, self._last
        end = min(len(tokens), self._n_entered + _AT_ONCE)
        for at in range(self._n_entered, end):
            last[tokens[at - 3], tokens[at - 2], tokens[at - 1]] = at
        self._n_entered = max(self._n_entered, end)
        self._tail = tokens[-_LONGEST:]
        self._find()

    def _find(self) -> None:
        tail, tokens = self._tail, self._tokens
        self._at = self._last.get(tuple(tail[-_KEY:]), -1)
        if self._at < 0:
            self._length = 0
            return
        length, before = _KEY, self._at - 1
        longest = min(_LONGEST, len(tail), self._at)
        while length < longest and tokens[before - length] == tail[-1 - length]:
            length += 1
        self._length = length

    @property
    def tail(self) -> Sequence[int]:
        """The last tokens of the text, and the drafts of the chain after them."""
        return self._tail

    @property
    def length(self) -> int:
        """Tokens of the passage that an echo would go on with; 0 without one."""
        return self._length

    def follow(self, draft: int) -> float:
        """Take the next draft of the chain.

        Returns
        -------
        float
            How strongly the text speaks for the draft; negative against it, 0 if it says nothing.
        """
        self._tail.append(draft)
        at = self._at
        if at < 0:
            self._find()
            return 0.0
        strength = _STRENGTH[self._length]
        if self._tokens[at] == draft:
            self._length = min(self._length + 1, _LONGEST)
            self._at = at + 1 if at + 1 < len(self._tokens) else -1
            if self._at < 0:
                self._length = 0
            return strength
        self._find()
        return -strength
