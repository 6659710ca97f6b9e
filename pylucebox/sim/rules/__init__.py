"""The rules that users meet elsewhere, and ours, under the names they have in tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pylucebox._errors import InvalidArgumentError
from pylucebox.sim.machine import Machine
from pylucebox.sim.rules.climb_drop import ClimbDrop
from pylucebox.sim.rules.linear_fit import LinearFit
from pylucebox.sim.rules.mean_accepted import MeanAccepted
from pylucebox.sim.rules.stopping import p_min, product
from pylucebox.width import FixedWidth, PlaceholderWidth, WidthCosts, WidthPolicy

__all__ = ["RULES", "Rule", "rules"]

MakePolicy = Callable[[WidthCosts, Machine], WidthPolicy]
"""Makes a policy for what a load-time sweep measured, and a machine whose clock it may read."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy in a table.

    Attributes
    ----------
    name
        Short.
    title
        What it is and where users meet it.
    make
        Makes a fresh policy.
    """

    name: str
    title: str
    make: MakePolicy


RULES: Final = (
    Rule("placeholder", "compares four widths by tokens per time", lambda costs, machine: PlaceholderWidth()),  # noqa: ARG005
    Rule("off", "no drafts", lambda costs, machine: FixedWidth(1)),  # noqa: ARG005
    Rule("fixed-3", "always three drafts, llama.cpp's default", lambda costs, machine: FixedWidth(4)),  # noqa: ARG005
    Rule("linear-fit", "tokens per time on a straight line (Lucebox)", lambda costs, machine: LinearFit()),  # noqa: ARG005
    Rule("mean-accepted", "as many as lately held (llama.cpp forks, #667)", lambda costs, machine: MeanAccepted()),  # noqa: ARG005
    Rule("climb-drop", "up on clean runs, down on pressure (#27210)", lambda costs, machine: ClimbDrop()),  # noqa: ARG005
    Rule("p-min-0.7", "each draft above 0.7, at most six (llama.cpp)", lambda costs, machine: p_min(0.7, 6)),  # noqa: ARG005
    Rule("product-0.6", "chain above 0.6, at most five (EXL3)", lambda costs, machine: product(0.6, 5)),  # noqa: ARG005
)


def rules(names: tuple[str, ...]) -> tuple[Rule, ...]:
    """Return rules by name, in the order given; all when there are none.

    Raises
    ------
    InvalidArgumentError
        A name is unknown.
    """
    known = {rule.name: rule for rule in RULES}
    for name in names:
        if name not in known:
            raise InvalidArgumentError(argument="rule", value=name, allowed=", ".join(known))
    return tuple(known[name] for name in names) if names else RULES
