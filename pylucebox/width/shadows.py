"""Drafts that were made but not verified, until the text shows whether they would have held.

The text does not depend on the width, so the tokens of later cycles are labels for drafts that were never verified.
That costs a draft instead of a row, and it removes the bias of seeing deep drafts only where shallow ones were trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pylucebox.width.calibration import Signs

__all__ = ["Label", "Shadows"]


class Label(NamedTuple):
    """A draft, what spoke for it, and whether it held; all before it did."""

    depth: int
    signs: Signs | None
    held: bool


@dataclass(slots=True)
class _Chain:
    depth: int  # of the next draft
    tokens: tuple[int, ...]  # from there on
    signs: Sequence[Signs]


class Shadows:
    """Unverified drafts of one sequence."""

    def __init__(self) -> None:
        self._chains: list[_Chain] = []

    def __bool__(self) -> bool:
        """Tell whether any draft waits for its label."""
        return bool(self._chains)

    def clear(self) -> None:
        """Forget all drafts: tokens were missed."""
        self._chains.clear()

    def add(self, depth: int, tokens: Sequence[int], signs: Sequence[Signs]) -> None:
        """Keep the drafts from `depth` on; all before them held and the next token is the first one's label."""
        if tokens:
            self._chains.append(_Chain(depth, tuple(tokens), signs))

    def newest_label(self, token: int) -> Iterator[Label]:
        """Give the label that a token brings to the drafts added last only."""
        earlier, self._chains = self._chains[:-1], self._chains[-1:]
        yield from self.labels((token,))
        self._chains = earlier + self._chains

    def labels(self, tokens: Sequence[int]) -> Iterator[Label]:
        """Give the labels that further tokens of the text bring."""
        waiting = []
        for chain in self._chains:
            n_known = min(len(tokens), len(chain.tokens))
            alive = len(chain.tokens) > len(tokens)
            for index in range(n_known):
                held = tokens[index] == chain.tokens[index]
                yield Label(chain.depth + index, chain.signs[index] if index < len(chain.signs) else None, held)
                if not held:
                    alive = False
                    break
            if alive:
                chain.depth += n_known
                chain.tokens = chain.tokens[n_known:]
                chain.signs = chain.signs[n_known:]
                waiting.append(chain)
        self._chains = waiting
