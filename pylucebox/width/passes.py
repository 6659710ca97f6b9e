"""What is gathered of a cycle while its sequences plan and report."""

from __future__ import annotations

from pylucebox.width.policy import CycleObservation

__all__ = ["Pass"]


class Pass:
    """A cycle of one or several sequences, as far as they have planned and reported."""

    __slots__ = ("measures", "members", "n_drafted", "n_launches", "n_observed", "n_tokens", "rejected")

    def __init__(self) -> None:
        self.members: list[int] = []
        self.n_observed = 0
        self.n_tokens = 0
        self.n_drafted = 0
        self.n_launches = 1  # of drafts, if there are any
        self.rejected = False
        self.measures = False  # run for its time alone

    def add(self, observation: CycleObservation, n_tokens: int) -> int:
        """Take what was observed of one sequence, and how many tokens it got; return how many were observed so far."""
        self.n_observed += 1
        self.n_tokens += n_tokens
        self.n_drafted = max(self.n_drafted, observation.n_drafted)
        if observation.n_accepted < observation.width - 1:
            self.rejected = True
        return self.n_observed
