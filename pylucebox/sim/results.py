"""From cells to what is printed and stored: the table of rules, the targets, and the JSON document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pylucebox.sim.reliability import Reliability
from pylucebox.sim.suite import Cell, Plan, Section, Summary, geometric_mean, summarise

__all__ = ["SCHEMA", "Bound", "Result", "Target", "bounds", "conclude", "document", "targets"]

SCHEMA: Final = "lucebox-sim/1"

RELIABILITY_COLUMNS: Final = ("depth", "drafts", "held", "Brier", "of the mean", "skill", "ECE")
"""Headings of `reliability_row`."""

BEST_FIXED: Final = "best fixed"
CLAIRVOYANT: Final = "clairvoyant"
INFORMED: Final = "informed"


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that the default policy is meant to reach.

    Attributes
    ----------
    what
        In words.
    value
        Reached.
    limit
        To be reached.
    at_least
        Whether larger is better.
    """

    what: str
    value: float
    limit: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Bound:
    """What could have been, beside the rules of a section.

    Attributes
    ----------
    name
        ``"informed"`` or ``"clairvoyant"``; `pylucebox.sim.bounds` says what they know.
    mean, worst
        Speed in units of the best fixed width of each request: geometric mean and smallest.
    regret
        Geometric mean of the time in units of the clairvoyant's, less 1.
    """

    name: str
    mean: float
    worst: float
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A suite that was run.

    Attributes
    ----------
    plan
        The suite.
    cells
        Every rule on every text and machine.
    summaries
        For each section and rule.
    targets
        Of the first rule.
    reliability
        What the probabilities of the texts are worth, by depth.
    """

    plan: Plan
    cells: tuple[Cell, ...]
    summaries: tuple[Summary, ...]
    targets: tuple[Target, ...]
    reliability: tuple[Reliability, ...]

    def of(self, section: Section, rule: str) -> Summary | None:
        """Return a summary; None if there is none."""
        return next((each for each in self.summaries if (each.section, each.rule) == (section, rule)), None)

    @property
    def sections(self) -> tuple[Section, ...]:
        """Sections that have any cells, in order."""
        return tuple(dict.fromkeys(each.section for each in self.summaries))


def conclude(plan: Plan, cells: Sequence[Cell], found: Sequence[Reliability]) -> Result:
    """Sum up the cells of a suite."""
    summaries = summarise(cells)
    first = plan.rules[0].name
    return Result(
        plan=plan,
        cells=tuple(cells),
        summaries=tuple(summaries),
        targets=tuple(targets([each for each in summaries if each.rule == first])),
        reliability=tuple(found),
    )


def targets(summaries: Sequence[Summary]) -> list[Target]:
    """Return the targets of the adaptive width that the sections of a suite can tell about.

    Parameters
    ----------
    summaries
        Those of one rule.
    """
    found: list[Target] = []
    for each in summaries:
        if each.section == "single":
            found += [
                Target("mean speed, in units of the best fixed width of each request", each.mean, 1.04),
                Target("worst cell of that", each.worst, 0.96),
                Target("worst cell against no MTP", each.worst_off, 0.98),
            ]
            if each.regret is not None and each.best_regret is not None:
                share = each.regret / each.best_regret if each.best_regret else math.inf
                what = "regret to the clairvoyant, in units of the best fixed's"
                found.append(Target(what, share, 0.5, at_least=False))
        elif each.section == "short":
            found.append(Target("worst cell of short requests", each.worst, 0.97))
    return found


def bounds(cells: Sequence[Cell], section: Section) -> tuple[Bound, ...]:
    """Return what stands beside the rules of a section: what probabilities can tell, and the clairvoyant.

    Nothing where they are not computed.
    """
    known = {(cell.curve, cell.text, cell.seed): cell.reference for cell in cells if cell.section == section}
    triples = [
        (each.best_us, each.informed_us, each.clairvoyant_us)
        for each in known.values()
        if each.informed_us and each.clairvoyant_us
    ]
    if not triples:
        return ()
    informed = geometric_mean(best / informed for best, informed, _ in triples)
    worst = min(best / informed for best, informed, _ in triples)
    regret = geometric_mean(informed / least for _, informed, least in triples) - 1.0
    clairvoyant = geometric_mean(best / least for best, _, least in triples)
    return Bound(INFORMED, informed, worst, regret), Bound(CLAIRVOYANT, clairvoyant, 1.0, 0.0)


def document(result: Result) -> dict[str, Any]:
    """Return everything for JSON."""
    plan = result.plan
    return {
        "schema": SCHEMA,
        "suite": plan.name,
        "seeds": list(plan.seeds),
        "noise": plan.noise,
        "curves": [
            {"name": each.name, "title": each.title, "evidence": each.evidence, **each.costs.as_dict()}
            for each in plan.curves
        ],
        "texts": [
            {
                "name": trace.name,
                "kind": trace.kind,
                "n_tokens": len(trace.tokens),
                "digest": trace.digest,
                "facts": dict(trace.facts),
            }
            for trace in plan.traces
        ],
        "rules": [{"name": rule.name, "title": rule.title} for rule in plan.rules],
        "targets": [
            {
                "what": each.what,
                "value": each.value,
                "limit": each.limit,
                "at_least": each.at_least,
                "met": each.met,
            }
            for each in result.targets
        ],
        "bounds": {section: list(bounds(result.cells, section)) for section in result.sections},
        "summaries": list(result.summaries),
        "reliability": [reliability_document(each) for each in result.reliability],
        "cells": [_cell(cell) for cell in result.cells],
    }


def reliability_document(found: Reliability) -> dict[str, Any]:
    """Return the figures of one depth for JSON."""
    return {
        "depth": found.depth,
        "n": found.n,
        "held": found.held,
        "brier": found.brier,
        "brier_mean": found.brier_mean,
        "skill": found.skill,
        "ece": found.ece,
        "bins": list(found.bins),
    }


def reliability_row(found: Reliability) -> tuple[str, ...]:
    """Return the figures of a depth as texts, in the order of `RELIABILITY_COLUMNS`."""
    numbers = (found.held, found.brier, found.brier_mean, found.skill, found.ece)
    return ("all" if found.depth is None else str(found.depth), str(found.n), *(f"{number:.3f}" for number in numbers))


def _cell(cell: Cell) -> dict[str, Any]:
    replay = cell.replay
    return {
        "section": cell.section,
        "rule": cell.rule,
        "curve": cell.curve,
        "text": cell.text,
        "seed": cell.seed,
        "us": round(cell.us, 1),
        "to_best": cell.to_best,
        "to_off": cell.to_off,
        "best_drafts": cell.reference.best_drafts,
        "best_us": round(cell.reference.best_us, 1),
        "off_us": round(cell.reference.off_us, 1),
        "clairvoyant_us": cell.reference.clairvoyant_us,
        "losses": cell.losses,
        "informed_us": cell.reference.informed_us,
        "widths": None if replay is None else replay.widths(),
        "n_cycles": None if replay is None else len(replay.cycles),
        "n_accepted": None if replay is None else replay.n_accepted,
        "refused": None if replay is None else replay.refused,
    }
