"""The tables of power and false claims: many simulated sessions per case, through the whole harness."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pylucebox.ab import power
from pylucebox.ab.codec import Record
from pylucebox.ab.planner import Wishes, default_pairs
from pylucebox.ab.results import Verdict
from pylucebox.ab.simulate import Behaviour, World, simulate
from pylucebox.ab.stats import smallest_p

__all__ = ["Case", "CaseResult", "as_markdown", "cases", "run_case", "run_cases"]

SIGMA = 0.005
"""Scatter of a simulated run, as measured on quiet machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of session.

    Attributes
    ----------
    name
        What is planted.
    effects
        True effect of each arm beside the baseline.
    n_workloads
        Workloads of the table.
    world
        Common disturbances.
    detect
        Effect to plan for, as a fraction; None takes the default number of pairs.
    sentinel
        Whether a sentinel watches the machine; without one only the design protects from drift.
    most
        Largest share of sessions allowed with any wrong claim: FASTER or SLOWER where it is not so, or EQUIVALENT
        where the effect is not smaller than the margin. None: not limited.
    least
        Smallest share of rows with an effect that must be found; None: not promised.
    """

    name: str
    effects: tuple[float, ...] = (0.0,)
    n_workloads: int = 1
    world: World = field(default_factory=lambda: World(sigma=SIGMA))
    detect: float | None = None
    sentinel: bool = True
    most: float | None = 0.05
    least: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult(Record):
    """What came of a case.

    Attributes
    ----------
    name, n_sessions
        The case.
    n_rows, n_pairs
        Size of the table and pairs of a row; with pairs planned by the noise, the median over the sessions.
    wrong
        Share of sessions with a wrong claim.
    most
        Share allowed.
    found
        Share of rows with an effect whose direction was found; None when no arm has one.
    least
        Share promised.
    equivalent, unresolved
        Shares of rows.
    unsteady
        Share of sessions in which the sentinel forbade claims.
    """

    name: str
    n_sessions: int
    n_rows: int
    n_pairs: int
    wrong: float
    most: float | None
    found: float | None
    least: float | None
    equivalent: float
    unresolved: float
    unsteady: float

    @property
    def limit(self) -> float | None:
        """Largest `wrong` that is compatible with `most`, three standard errors of the simulation above it."""
        return None if self.most is None else self.most + 3.0 * math.sqrt(self.most * (1 - self.most) / self.n_sessions)

    @property
    def holds(self) -> bool:
        """Whether claims and promises are kept, as far as so many sessions can tell."""
        few = self.limit is None or self.wrong <= self.limit
        if self.least is None or self.found is None:
            return few
        slack = 3.0 * math.sqrt(self.least * (1 - self.least) / (self.n_sessions * self.n_rows))
        return few and self.found >= self.least - slack


def _promised(n_rows: int, sigma: float) -> float:
    """Return the effect that the planner promises to find in a table of two arms."""
    return power.detectable(default_pairs(n_rows, 2), power.ALPHA / n_rows, sigma, Wishes().equivalence) or 0.0


@functools.cache
def cases() -> tuple[Case, ...]:
    """Return all cases of the table."""
    return (
        Case(name="no effect, 1 row"),
        Case(name="no effect, 12 rows", effects=(0.0, 0.0), n_workloads=6),
        Case(name="no effect, runs scatter by 3 %", world=World(sigma=0.03)),
        Case(name="no effect, speed drifts by 3 %", world=World(sigma=SIGMA, drift=0.03)),
        Case(name="no effect, speed drifts by 10 %", world=World(sigma=SIGMA, drift=0.10)),
        Case(name="the same without a sentinel", world=World(sigma=SIGMA, drift=0.10), sentinel=False),
        Case(
            name="the same without a sentinel, 12 rows",
            effects=(0.0, 0.0),
            n_workloads=6,
            world=World(sigma=SIGMA, drift=0.10),
            sentinel=False,
        ),
        Case(name="no effect, first run takes twice the time", world=World(sigma=SIGMA, slow_first=1.0)),
        Case(name="no effect, 5 % of runs take 1.5 times the time", world=World(sigma=SIGMA, spike_share=0.05)),
        Case(name="effect as large as the margin, +1 %", effects=(0.01,)),
        Case(name="+2 %, 1 row", effects=(0.02,), least=power.POWER),
        Case(name="+2 %, 12 rows", effects=(0.02, 0.02), n_workloads=6, least=power.POWER),
        Case(name="-2 %, 1 row", effects=(-0.02,), least=power.POWER),
        Case(
            name="the effect promised for 1 row, runs scatter by 1 %",
            effects=(_promised(1, 0.01),),
            world=World(sigma=0.01),
            least=power.POWER,
        ),
        Case(
            name="the effect promised for 6 rows",
            effects=(_promised(6, SIGMA),),
            n_workloads=6,
            least=power.POWER,
        ),
        Case(name="+1.5 %, planned with --detect 1.5%", effects=(0.015,), detect=0.015, least=power.POWER),
        Case(name="+2 %, speed drifts by 3 %", effects=(0.02,), world=World(sigma=SIGMA, drift=0.03)),
    )


def _is_wrong(verdict: str, effect: float, margin: float) -> bool:
    if verdict == Verdict.FASTER.value:
        return effect <= 0.0
    if verdict == Verdict.SLOWER.value:
        return effect >= 0.0
    return verdict == Verdict.EQUIVALENT.value and abs(effect) >= margin


def run_case(case: Case, n_sessions: int, *, first_seed: int = 0, n_resamples: int = 1000) -> CaseResult:
    """Simulate a case.

    Parameters
    ----------
    case
        What to simulate.
    n_sessions
        How often.
    first_seed
        Seed of the first session; the others count on.
    n_resamples
        Bootstrap resamples of a row; fewer than in a real session, to save time.
    """
    arms = {"base": Behaviour(), **{f"arm-{n}": Behaviour(effect=effect) for n, effect in enumerate(case.effects)}}
    verdicts: Counter[str] = Counter()
    n_wrong = n_found = n_with_effect = n_unsteady = 0
    n_pairs = []
    for seed in range(first_seed, first_seed + n_sessions):
        wishes = Wishes(
            seed=seed,
            detect=case.detect,
            n_resamples=n_resamples,
            control=False,
            sentinel_every=8 if case.sentinel else 0,
        )
        done = simulate(
            arms, seed=seed, world=case.world, wishes=wishes, n_workloads=case.n_workloads, n_tokens=4
        ).session
        if done.summary is None:
            raise RuntimeError("a simulated session has a summary")
        n_pairs.append(done.plan.n_pairs)
        n_unsteady += done.summary.sentinel is not None and not done.summary.sentinel.ok
        wrong = False
        for row in (row for workload in done.summary.workloads for row in workload.rows):
            effect = arms[row.arm].effect
            verdicts[row.verdict] += 1
            wrong |= _is_wrong(row.verdict, effect, done.plan.equivalence)
            n_with_effect += effect != 0.0
            wanted = Verdict.FASTER if effect > 0 else Verdict.SLOWER
            n_found += effect != 0.0 and row.verdict == wanted.value
        n_wrong += wrong
    n_rows = case.n_workloads * len(case.effects)
    total = sum(verdicts.values())
    return CaseResult(
        name=case.name,
        n_sessions=n_sessions,
        n_rows=n_rows,
        n_pairs=sorted(n_pairs)[len(n_pairs) // 2],
        wrong=n_wrong / n_sessions,
        most=case.most,
        found=n_found / n_with_effect if n_with_effect else None,
        least=case.least,
        equivalent=verdicts[Verdict.EQUIVALENT.value] / total,
        unresolved=verdicts[Verdict.UNRESOLVED.value] / total,
        unsteady=n_unsteady / n_sessions,
    )


def run_cases(n_sessions: int, *, progress: Callable[[str], None]) -> list[CaseResult]:
    """Simulate all cases.

    Parameters
    ----------
    n_sessions
        Sessions per case.
    progress
        Called with a line per case.
    """
    results = []
    for case in cases():
        progress(f"{case.name} ...")
        results.append(run_case(case, n_sessions))
    return results


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def as_markdown(results: Sequence[CaseResult], n_sessions: int) -> str:
    """Return both tables as Markdown.

    Parameters
    ----------
    results
        Of `run_cases`.
    n_sessions
        Sessions per case.
    """
    head = (
        "planted",
        "rows",
        "pairs",
        "wrong claims",
        "allowed",
        "found",
        "promised",
        "EQUIVALENT",
        "UNRESOLVED",
        "unsteady",
    )
    lines = [
        f"{n_sessions} simulated sessions per case; a run scatters by {SIGMA:.1%} unless said.",
        "",
        "| " + " | ".join(head) + " |",
        "|---|" + "--:|" * (len(head) - 1),
    ]
    for result in results:
        cells = (
            result.name,
            str(result.n_rows),
            str(result.n_pairs),
            _share(result.wrong),
            _share(result.most),
            _share(result.found),
            _share(result.least),
            _share(result.equivalent),
            _share(result.unresolved),
            _share(result.unsteady),
        )
        lines.append("| " + " | ".join(cells) + " |")
    sizes = (4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 30, 40)
    rows = (1, 6, 12)
    lines += [
        "",
        f"Smallest effect found with {power.POWER:.0%} probability, in units of a run's scatter:",
        "",
        "| pairs | smallest p | " + " | ".join(f"{n} row{'s' if n > 1 else ''}" for n in rows) + " |",
        "|--:|--:|" + "--:|" * len(rows),
    ]
    for n_pairs in sizes:
        found = [power.detectable(n_pairs, power.ALPHA / n, 1e-4) for n in rows]
        units = ["none" if value is None else f"{value / 1e-4:.2f}" for value in found]
        lines.append(f"| {n_pairs} | {smallest_p(n_pairs):.2g} | " + " | ".join(units) + " |")
    return "\n".join(lines) + "\n"
