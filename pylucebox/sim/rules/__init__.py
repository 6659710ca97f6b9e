"""The rules that users meet elsewhere, and ours, under the names they have in tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pylucebox._errors import InvalidArgumentError
from pylucebox.sim.machine import Machine
from pylucebox.sim.rules.ablations import Blind, Plain, Unhinted
from pylucebox.sim.rules.climb_drop import ClimbDrop
from pylucebox.sim.rules.linear_fit import LinearFit
from pylucebox.sim.rules.look_ahead import LookAhead
from pylucebox.sim.rules.mean_accepted import MeanAccepted
from pylucebox.sim.rules.spec_auto import SpecAuto
from pylucebox.sim.rules.stopping import p_min, product
from pylucebox.width import FixedWidth, WidthCosts, WidthPolicy
from pylucebox.width.controller import AdaptiveWidth

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
    has_mtp
        Whether MTP is there at all, so that prompts pay for it.
    """

    name: str
    title: str
    make: MakePolicy
    has_mtp: bool = True


def _simple(make: Callable[[], WidthPolicy]) -> MakePolicy:
    """Return a maker for a policy that knows nothing of its machine."""
    return lambda costs, machine: make()  # noqa: ARG005


def _adaptive(costs: WidthCosts, machine: Machine) -> AdaptiveWidth:
    return AdaptiveWidth(costs, clock=machine.clock)


RULES: Final = (
    Rule("adaptive", "the default, after a sweep", _adaptive),
    Rule("adaptive-cold", "the same without a sweep", lambda costs, machine: AdaptiveWidth(clock=machine.clock)),  # noqa: ARG005
    Rule(
        "adaptive-unhinted",
        "the same without prompt and sampler",
        lambda costs, machine: Unhinted(_adaptive(costs, machine)),
    ),
    Rule("adaptive-blind", "the same without probabilities", lambda costs, machine: Blind(_adaptive(costs, machine))),
    Rule("adaptive-plain", "the same, asked for widths only", lambda costs, machine: Plain(_adaptive(costs, machine))),
    Rule("look-ahead", "probabilities at face value against prices, no more", lambda costs, machine: LookAhead(costs)),  # noqa: ARG005
    Rule("off", "no drafts", _simple(lambda: FixedWidth(1)), has_mtp=False),
    Rule("fixed-3", "always three drafts (a common default)", _simple(lambda: FixedWidth(4))),
    Rule("linear-fit", "tokens per time, times on a straight line (Lucebox)", _simple(LinearFit)),
    Rule("mean-accepted", "as many as lately held (llama.cpp forks, Lucebox #667)", _simple(MeanAccepted)),
    Rule("climb-drop", "one more on clean runs, one fewer under pressure (llama.cpp #27210)", _simple(ClimbDrop)),
    Rule("p-min-0.7", "each draft above 0.7, at most six (llama.cpp)", _simple(lambda: p_min(0.7, 6))),
    Rule("product-0.6", "the chain above 0.6, at most five (EXL3)", _simple(lambda: product(0.6, 5))),
    Rule("spec-auto", "calibrated probabilities against a measured price (a llama.cpp fork)", _simple(SpecAuto)),
)
"""All rules, ours first."""


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
