"""The policy that never adapts."""

from __future__ import annotations

from pylucebox._errors import InvalidArgumentError
from pylucebox.width.policy import MAX_WIDTH, CycleContext, CycleObservation, widest_possible

__all__ = ["FixedWidth"]


class FixedWidth:
    """The same width in every cycle, cut only by the limits of the cycle.

    Parameters
    ----------
    width
        1 to 8.

    Raises
    ------
    InvalidArgumentError
        `width` is out of range.
    """

    def __init__(self, width: int) -> None:
        if type(width) is not int or not 1 <= width <= MAX_WIDTH:  # True is an int as well
            raise InvalidArgumentError(argument="width", value=width, allowed=f"an integer from 1 to {MAX_WIDTH}")
        self.width = width

    def begin(self, n_seq: int, max_width: int) -> None:
        """Do nothing: there is no state."""

    def choose(self, seq: int, context: CycleContext) -> int:  # noqa: ARG002 - all sequences alike
        """Return the width, cut to the limits of the cycle."""
        return min(self.width, widest_possible(context))

    def observe(self, seq: int, observation: CycleObservation) -> None:
        """Do nothing: there is nothing to learn."""
