"""The adaptive width with parts of what it knows taken away, to see what each part adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pylucebox.width import CycleContext, CycleObservation, CyclePlan, WidthPolicy
from pylucebox.width.controller import AdaptiveWidth

__all__ = ["Blind", "Plain", "Unhinted"]

_SAYS_NOTHING: Final = 0.5


class Unhinted:
    """A policy that is told nothing of the prompt or the sampler, so that of each draft it knows the probability alone.

    Parameters
    ----------
    policy
        The policy.
    """

    def __init__(self, policy: AdaptiveWidth) -> None:
        self._policy = policy

    def begin(self, n_seq: int, max_width: int) -> None:
        """Pass on."""
        self._policy.begin(n_seq, max_width)

    def choose(self, seq: int, context: CycleContext) -> int:
        """Pass on."""
        return self._policy.choose(seq, context)

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:
        """Pass on what is not about the text."""
        return self._policy.plan(seq, context._replace(hints=None))

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:
        """Pass on."""
        return self._policy.decide(seq, probs, tokens)

    def observe(self, seq: int, observation: CycleObservation) -> None:
        """Pass on."""
        self._policy.observe(seq, observation)


class Blind(Unhinted):
    """A policy that is shown the same probability for every draft, so that only counting is left."""

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:  # noqa: ARG002
        """Pass on how many drafts there are."""
        return self._policy.decide(seq, (_SAYS_NOTHING,) * len(probs))

    def observe(self, seq: int, observation: CycleObservation) -> None:
        """Pass on what held and what it took."""
        probs = (_SAYS_NOTHING,) * len(observation.draft_probs)
        self._policy.observe(seq, observation._replace(draft_probs=probs))


class Plain:
    """A policy that is only asked for widths, so that it can neither look at drafts nor draft deeper than it verifies.

    Parameters
    ----------
    policy
        The policy.
    """

    def __init__(self, policy: WidthPolicy) -> None:
        self._policy = policy

    def begin(self, n_seq: int, max_width: int) -> None:
        """Pass on."""
        self._policy.begin(n_seq, max_width)

    def choose(self, seq: int, context: CycleContext) -> int:
        """Pass on."""
        return self._policy.choose(seq, context)

    def observe(self, seq: int, observation: CycleObservation) -> None:
        """Pass on."""
        self._policy.observe(seq, observation)
