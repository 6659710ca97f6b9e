"""From what the user asked for to a plan: how many pairs, in which order, and what they can find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pylucebox._errors import InvalidArgumentError
from pylucebox._version import __version__
from pylucebox.ab import power
from pylucebox.ab.errors import ComparisonError
from pylucebox.ab.records import Arm, Plan, Suite, Workload
from pylucebox.ab.schedule import balanced_pairs, lay_out
from pylucebox.ab.stats import MAX_PAIRS, smallest_p

__all__ = ["DEFAULT_PAIRS", "Wishes", "build_plan", "claim_note", "default_aa", "default_pairs", "with_pairs_for"]

DEFAULT_PAIRS = 8
"""Pairs unless the table or the order needs more."""

TYPICAL_SIGMA = 0.005
"""Scatter of a run that is assumed before it has been measured: half a per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user decides of a plan; None leaves it to us.

    Attributes
    ----------
    n_pairs, detect, n_aa, order, isolation, sentinel_every, cooldown, equivalence, max_hours, seed, control
        As in `Plan`; `control` is False to leave out the positive control of the digest.
    """

    n_pairs: int | None = None
    detect: float | None = None
    n_aa: int | None = None
    order: str = "abba"
    isolation: str = "process"
    sentinel_every: int = 8
    cooldown: str = "none"
    equivalence: float = 0.01
    max_hours: float | None = None
    seed: int = 1
    control: bool = True
    n_resamples: int = 10_000


def default_pairs(n_rows: int, n_arms: int) -> int:
    """Pairs that let every row make a claim, and every arm be at every place of a block equally often."""
    return balanced_pairs(max(DEFAULT_PAIRS, power.pairs_that_can_claim(n_rows)), n_arms)


def default_aa(n_workloads: int) -> int:
    """Return the pairs of the baseline with itself per workload that make enough for a noise floor."""
    return max(2, -(-power.MIN_SAME_PAIRS // n_workloads))


def build_plan(
    arms: Sequence[Arm],
    baseline: str | None,
    suite: Suite,
    wishes: Wishes,
    *,
    sentinel: tuple[Workload, Arm] | None = None,
    model: str | None = None,
    sidecar: str | None = None,
) -> Plan:
    """Decide everything.

    Parameters
    ----------
    arms
        At least two, of different names.
    baseline
        Name of one of them; None takes the first.
    suite
        At least one workload.
    wishes
        The rest.
    sentinel
        Short run repeated through the session and the arm that runs it; None for none.
    model, sidecar
        For the record.

    Raises
    ------
    InvalidArgumentError
        The arms or the baseline cannot be used.
    """
    names = [arm.name for arm in arms]
    if len(names) < 2 or len({*names, "sentinel"}) != len(names) + 1:
        allowed = "two or more arms of different names, none of them called sentinel"
        raise InvalidArgumentError(argument="arms", value=names, allowed=allowed)
    baseline = names[0] if baseline is None else baseline
    if baseline not in names:
        raise InvalidArgumentError(argument="baseline", value=baseline, allowed=", ".join(names))
    ordered = sorted(arms, key=lambda arm: arm.name != baseline)
    n_rows = len(suite.workloads) * (len(names) - 1)
    n_pairs = wishes.n_pairs
    if n_pairs is None:
        n_pairs = 0 if wishes.detect is not None else default_pairs(n_rows, len(names))
    plan = Plan(
        version=__version__,
        seed=wishes.seed,
        order=wishes.order,
        isolation=wishes.isolation,
        baseline=baseline,
        arms=tuple(ordered),
        suite=suite if wishes.control else _without_controls(suite),
        n_pairs=n_pairs,
        n_aa=default_aa(len(suite.workloads)) if wishes.n_aa is None else wishes.n_aa,
        sentinel=None if sentinel is None else sentinel[0],
        sentinel_arm=None if sentinel is None else sentinel[1],
        sentinel_every=wishes.sentinel_every,
        cooldown=wishes.cooldown,
        equivalence=wishes.equivalence,
        detect=wishes.detect,
        max_hours=wishes.max_hours,
        model=model,
        sidecar=sidecar,
        runs=(),
        n_resamples=wishes.n_resamples,
    )
    return _scheduled(plan)


def _without_controls(suite: Suite) -> Suite:
    return replace(suite, workloads=tuple(replace(workload, control=None) for workload in suite.workloads))


def _scheduled(plan: Plan) -> Plan:
    workloads = plan.suite.workloads
    watched = plan.sentinel is not None and plan.sentinel_arm is not None
    runs = lay_out(
        [workload.name for workload in workloads],
        [arm.name for arm in plan.arms],
        n_pairs=plan.n_pairs,
        n_aa=plan.n_aa,
        controls=[workload.name for workload in workloads if workload.control is not None],
        order=plan.order,
        isolation=plan.isolation,
        sentinel=(plan.sentinel.name, plan.sentinel_arm.name)
        if watched and plan.sentinel and plan.sentinel_arm
        else None,
        sentinel_every=plan.sentinel_every,
        seed=plan.seed,
    )
    return replace(plan, runs=runs)


def with_pairs_for(plan: Plan, sigma_run: float) -> Plan:
    """Complete a plan whose number of pairs follows from an effect to detect.

    Parameters
    ----------
    plan
        With `Plan.detect`, and without pairs yet.
    sigma_run
        Scatter of a run, from the baseline against itself.

    Raises
    ------
    ComparisonError
        So small an effect needs more pairs than can be tested exactly.
    """
    effect = plan.detect or 0.0
    n_pairs = power.pairs_for(effect, len(plan.rows), sigma_run, plan.equivalence)
    if n_pairs is None:
        can = power.detectable(MAX_PAIRS, power.ALPHA / len(plan.rows), sigma_run, plan.equivalence) or 0.0
        seen = f"a run scatters by {sigma_run:.2%}, and {MAX_PAIRS} pairs find {can:.2%} in {len(plan.rows)} rows"
        advice = "Ask for a larger effect, fewer workloads or arms, longer workloads, or a quieter machine."
        if effect < plan.equivalence:
            seen = f"differences below {plan.equivalence:.2%} count as none"
            advice = "Ask for a larger effect, or set a smaller --equiv."
        raise ComparisonError(f"an effect of {effect:.2%} cannot be detected", seen=seen, advice=advice)
    n_pairs = min(balanced_pairs(n_pairs, len(plan.arms)), MAX_PAIRS)
    return _scheduled(replace(plan, n_pairs=n_pairs))


def claim_note(plan: Plan, sigma_run: float | None) -> str:
    """Say in one sentence what the planned pairs can find.

    Parameters
    ----------
    plan
        With its pairs.
    sigma_run
        Scatter of a run; None when not measured yet.
    """
    n_rows = len(plan.rows)
    if smallest_p(plan.n_pairs) > power.ALPHA / n_rows:
        return (
            f"{plan.n_pairs} pairs cannot make a claim in a table of {n_rows} rows, whatever they show:"
            f" take {power.pairs_that_can_claim(n_rows)} or more."
        )
    sigma = TYPICAL_SIGMA if sigma_run is None else sigma_run
    effect = power.detectable(plan.n_pairs, power.ALPHA / n_rows, sigma, plan.equivalence) or 0.0
    basis = "if a run scatters by" if sigma_run is None else "a run scatters by"
    return (
        f"{plan.n_pairs} pairs find an effect of {effect:.1%} in any one of {n_rows} rows with"
        f" {power.POWER:.0%} probability ({basis} {sigma:.2%})."
    )
