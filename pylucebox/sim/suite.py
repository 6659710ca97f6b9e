"""Suites: which texts meet which machines, every rule replayed on all of them, and what that says of each rule."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pylucebox._errors import InvalidArgumentError
from pylucebox.sim.bounds import best_fixed, clairvoyant_us, fixed_us, informed_us
from pylucebox.sim.costs import CostCurve
from pylucebox.sim.losses import Losses, losses_of, mean_losses
from pylucebox.sim.machine import ROUGH, Machine, Noise, swept
from pylucebox.sim.replay import Replay, replay, replay_batch
from pylucebox.sim.rules import Rule
from pylucebox.sim.trace import DEPTH, Trace
from pylucebox.width import FixedWidth

__all__ = ["SHORT_TOKENS", "Cell", "Plan", "Reference", "Section", "Summary", "geometric_mean", "run", "summarise"]

SHORT_TOKENS: Final = 128
"""Tokens of short requests."""
_SEQUENCE_TOKENS: Final = 400
_ANSWER_TOKENS: Final = 32
_BATCHES: Final = (2, 4)

Section = str
"""``"single"``: fresh policy, whole text. ``"short"``: fresh policy, 128 tokens. ``"rough"``: as single, on a machine
that others use, too. ``"sequence"``: one policy for all the texts of a machine, one after the other. ``"batch"``:
several texts at once. ``"prefill"``: short answers after long prompts, with what MTP costs the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a suite replays.

    Attributes
    ----------
    name
        Of the suite.
    traces, curves, rules
        What meets what.
    noise
        What machines add to the times that policies see.
    seeds
        Of the noise; each cell is replayed once for each, those of ``batch`` and ``prefill`` for the first alone.
    sections
        What is replayed, in order.
    """

    name: str
    traces: tuple[Trace, ...]
    curves: tuple[CostCurve, ...]
    rules: tuple[Rule, ...]
    noise: Noise
    seeds: tuple[int, ...]
    sections: tuple[Section, ...]

    def __post_init__(self) -> None:
        """Refuse a plan without anything to replay."""
        for name in ("traces", "curves", "rules", "seeds", "sections"):
            if not getattr(self, name):
                raise InvalidArgumentError(argument=name, value=(), allowed="one or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What could have been on one text and one machine, in microseconds.

    Attributes
    ----------
    best_us, best_drafts
        Best fixed width of this very request, and its drafts; None where several requests share a step.
    off_us
        Without MTP.
    clairvoyant_us
        Bound for all policies; None where it is not computed.
    informed_us
        What the probabilities could tell; None where it is not computed.
    """

    best_us: float
    best_drafts: int | None
    off_us: float
    clairvoyant_us: float | None
    informed_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A rule on a text and a machine.

    Attributes
    ----------
    section, rule, curve, text, seed
        Which cell.
    us
        Time of the request by the cost curve.
    reference
        What could have been.
    replay
        What the rule did; None where several requests are summed up.
    losses
        Where it lost time against the clairvoyant; None where that is not computed.
    """

    section: Section
    rule: str
    curve: str
    text: str
    seed: int
    us: float
    reference: Reference
    replay: Replay | None
    losses: Losses | None = None

    @property
    def to_best(self) -> float:
        """Speed in units of the best fixed width's."""
        return self.reference.best_us / self.us

    @property
    def to_off(self) -> float:
        """Speed in units of decoding without MTP."""
        return self.reference.off_us / self.us


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a section says of a rule.

    Attributes
    ----------
    section, rule
        Which.
    n_cells
        Cells summed up.
    mean
        Geometric mean of the speed in units of the best fixed width of each request.
    worst, worst_cell
        The smallest of them, and where.
    worst_off, worst_off_cell
        The smallest speed in units of decoding without MTP, and where.
    regret
        Geometric mean of the time in units of the clairvoyant's, less 1; None where there is none.
    best_regret
        The same of the best fixed widths.
    losses
        Where the time of `regret` goes, mean over the cells; None where there is none.
    by_curve, by_text
        Geometric means of `mean` for each machine and each text.
    """

    section: Section
    rule: str
    n_cells: int
    mean: float
    worst: float
    worst_cell: str
    worst_off: float
    worst_off_cell: str
    regret: float | None
    best_regret: float | None
    losses: Losses | None
    by_curve: dict[str, float]
    by_text: dict[str, float]


def run(plan: Plan, progress: Callable[[str], None] = lambda _: None) -> list[Cell]:
    """Replay everything that a plan asks for.

    Parameters
    ----------
    plan
        The suite.
    progress
        Called with the name of a rule and a machine after both have met on all texts.
    """
    sections = {
        "single": _single,
        "short": _short,
        "rough": _rough,
        "sequence": _sequence,
        "batch": _batch,
        "prefill": _prefill,
    }
    cells: list[Cell] = []
    for curve in plan.curves:
        references = _References(curve)
        for rule in plan.rules:
            for section in plan.sections:
                cells += sections[section](plan, rule, curve, references)
            progress(f"{rule.name} on {curve.name}")
    return cells


class _References:
    """What could have been, computed once for each text and limit."""

    def __init__(self, curve: CostCurve) -> None:
        self._curve = curve
        self._known: dict[tuple[str, int], Reference] = {}
        self._batches: dict[str, Reference] = {}

    def of_batch(self, name: str, traces: Sequence[Trace]) -> Reference:
        if name not in self._batches:
            machine = Machine(self._curve.costs)
            means = [_mean_us(replay_batch(traces, FixedWidth(drafts + 1), machine)) for drafts in range(DEPTH + 1)]
            self._batches[name] = Reference(
                best_us=min(means), best_drafts=None, off_us=means[0], clairvoyant_us=None, informed_us=None
            )
        return self._batches[name]

    def of(self, trace: Trace) -> Reference:
        key = (trace.name, trace.max_tokens)
        if key not in self._known:
            costs = self._curve.costs
            best = best_fixed(trace, costs)
            self._known[key] = Reference(
                best_us=best.us,
                best_drafts=best.n_drafts,
                off_us=fixed_us(trace, costs, 0),
                clairvoyant_us=clairvoyant_us(trace, costs),
                informed_us=informed_us(trace, costs),
            )
        return self._known[key]


def _seed(*parts: object) -> int:
    """Return a seed that depends on its parts alone; `hash` of a text differs between runs."""
    return zlib.crc32("/".join(map(str, parts)).encode())


def _single(plan: Plan, rule: Rule, curve: CostCurve, references: _References) -> Iterable[Cell]:
    return _fresh("single", plan, rule, curve, references)


def _short(plan: Plan, rule: Rule, curve: CostCurve, references: _References) -> Iterable[Cell]:
    short = replace(plan, traces=tuple(trace.cut(SHORT_TOKENS) for trace in plan.traces))
    return _fresh("short", short, rule, curve, references)


def _rough(plan: Plan, rule: Rule, curve: CostCurve, references: _References) -> Iterable[Cell]:
    return _fresh("rough", replace(plan, noise=ROUGH), rule, curve, references)


def _fresh(section: Section, plan: Plan, rule: Rule, curve: CostCurve, references: _References) -> Iterable[Cell]:
    for trace in plan.traces:
        for seed in plan.seeds:
            noise_seed = _seed(curve.name, trace.name, seed)
            machine = Machine(curve.costs, plan.noise, noise_seed)
            policy = rule.make(swept(curve.costs, plan.noise, noise_seed), machine)
            done = replay(trace, policy, machine)
            yield _alone(done, section=section, rule=rule, curve=curve, trace=trace, seed=seed, references=references)


def _alone(
    done: Replay,
    *,
    section: Section,
    rule: Rule,
    curve: CostCurve,
    trace: Trace,
    seed: int,
    references: _References,
) -> Cell:
    """Return the cell of a request that had the machine to itself."""
    reference = references.of(trace)
    least_us = reference.clairvoyant_us
    return Cell(
        section=section,
        rule=rule.name,
        curve=curve.name,
        text=trace.name,
        seed=seed,
        us=done.decode_us,
        reference=reference,
        replay=done,
        losses=losses_of(done, curve.costs, least_us) if least_us else None,
    )


def _sequence(plan: Plan, rule: Rule, curve: CostCurve, references: _References) -> Iterable[Cell]:
    for seed in plan.seeds:
        noise_seed = _seed(curve.name, "sequence", seed)
        machine = Machine(curve.costs, plan.noise, noise_seed)
        policy = rule.make(swept(curve.costs, plan.noise, noise_seed), machine)
        order = random.Random(seed)
        traces = sorted(plan.traces, key=lambda trace: (order.random(), trace.name))
        for trace in (trace.cut(_SEQUENCE_TOKENS) for trace in traces):
            done = replay(trace, policy, machine)
            yield _alone(
                done, section="sequence", rule=rule, curve=curve, trace=trace, seed=seed, references=references
            )


def _batch(plan: Plan, rule: Rule, curve: CostCurve, references: _References) -> Iterable[Cell]:
    for n_seq in _BATCHES:
        for first in range(0, len(plan.traces) - n_seq + 1, n_seq):
            traces = [trace.cut(_SEQUENCE_TOKENS) for trace in plan.traces[first : first + n_seq]]
            name = "+".join(trace.name for trace in traces)
            seed = _seed(curve.name, name, plan.seeds[0])
            machine = Machine(curve.costs, plan.noise, seed)
            policy = rule.make(swept(curve.costs, plan.noise, seed), machine)
            yield Cell(
                section="batch",
                rule=rule.name,
                curve=curve.name,
                text=name,
                seed=plan.seeds[0],
                us=_mean_us(replay_batch(traces, policy, machine)),
                reference=references.of_batch(name, traces),
                replay=None,
            )


def _mean_us(replays: Sequence[Replay]) -> float:
    """Return how long requests that began together took on average, each from the common start to its own end."""
    return sum(done.decode_us for done in replays) / len(replays)


def _prefill(plan: Plan, rule: Rule, curve: CostCurve, references: _References) -> Iterable[Cell]:
    costs = curve.costs
    tax_us = costs.mtp_prefill_us_per_token * costs.n_past
    if not tax_us:  # nothing is known of this machine's prefill
        return
    for trace in plan.traces:
        short = replace(trace.cut(_ANSWER_TOKENS), n_prompt=costs.n_past, prompt=())
        bare = references.of(short)
        taxed = [fixed_us(short, costs, drafts) + tax_us * (drafts > 0) for drafts in range(DEPTH + 1)]
        seed = _seed(curve.name, trace.name, "prefill", plan.seeds[0])
        machine = Machine(costs, plan.noise, seed)
        done = replay(short, rule.make(swept(costs, plan.noise, seed), machine), machine, charge_prefill=rule.has_mtp)
        yield Cell(
            section="prefill",
            rule=rule.name,
            curve=curve.name,
            text=trace.name,
            seed=plan.seeds[0],
            us=done.total_us,
            reference=Reference(
                best_us=min(taxed),
                best_drafts=min(range(DEPTH + 1), key=lambda drafts: taxed[drafts]),
                off_us=taxed[0],
                clairvoyant_us=min(taxed[0], (bare.clairvoyant_us or 0.0) + tax_us),
                informed_us=min(taxed[0], (bare.informed_us or 0.0) + tax_us),
            ),
            replay=done,
        )


def summarise(cells: Sequence[Cell]) -> list[Summary]:
    """Return a summary for each section and rule, in the order in which they appear."""
    groups: dict[tuple[Section, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.section, cell.rule), []).append(cell)
    return [_summary(section, rule, group) for (section, rule), group in groups.items()]


def _summary(section: Section, rule: str, cells: Sequence[Cell]) -> Summary:
    worst = min(cells, key=lambda cell: cell.to_best)
    worst_off = min(cells, key=lambda cell: cell.to_off)
    bounds = [(cell.us, cell.reference.best_us, bound) for cell in cells if (bound := cell.reference.clairvoyant_us)]
    return Summary(
        section=section,
        rule=rule,
        n_cells=len(cells),
        mean=geometric_mean(cell.to_best for cell in cells),
        worst=worst.to_best,
        worst_cell=f"{worst.text} on {worst.curve}",
        worst_off=worst_off.to_off,
        worst_off_cell=f"{worst_off.text} on {worst_off.curve}",
        regret=geometric_mean(us / bound for us, _, bound in bounds) - 1.0 if bounds else None,
        best_regret=geometric_mean(best_us / bound for _, best_us, bound in bounds) - 1.0 if bounds else None,
        losses=mean_losses([cell.losses for cell in cells if cell.losses is not None]),
        by_curve=_means_by(cells, lambda cell: cell.curve),
        by_text=_means_by(cells, lambda cell: cell.text),
    )


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean of numbers above 0, one or more."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


def _means_by(cells: Sequence[Cell], key: Callable[[Cell], str]) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell.to_best)
    return {name: geometric_mean(ratios) for name, ratios in groups.items()}
