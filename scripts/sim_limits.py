#!/usr/bin/env python
"""How far any width rule could get on the recorded texts, on all machines: regret, in units of the best fixed width's.

    python scripts/sim_limits.py               # about three minutes
    python scripts/sim_limits.py --json limits.json

Two kinds of rows, all of whole texts. First the adaptive width with things given to it that no engine has: exact costs,
chances from weights fitted on the very text it decodes, no ledger. Then rules made of nothing but such chances: one
that knows those of a whole chain before it drafts, and one that drafts while the chance of holding, times what the next
draft is foretold to have, is above a threshold. Threshold and price of time are chosen in hindsight, for each text and
machine: on the half of the text that they are used on, or, without hindsight, on the other half.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pylucebox.sim.bounds import best_fixed, clairvoyant_us, informed_us
from pylucebox.sim.costs import CostCurve, curves
from pylucebox.sim.library import recorded
from pylucebox.sim.machine import QUIET, REALISTIC, Machine, swept
from pylucebox.sim.replay import replay
from pylucebox.sim.trace import DEPTH, Trace
from pylucebox.width import CycleContext, CyclePlan, WidthCosts
from pylucebox.width.calibration import Calibrator, Signs, log_odds
from pylucebox.width.controller import AdaptiveWidth
from pylucebox.width.echo import Echo
from pylucebox.width.forecast import Forecast

THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7)
PRICES = (0.8, 0.9, 1.0, 1.1, 1.2)  # in units of the best fixed width's speed
RIDGE = 0.5
NO_LIMIT = 1e9  # plain steps that may be lost


@dataclass(frozen=True)
class Known:
    """A text, and for each position and depth the chance of the draft and what was foretold of that."""

    trace: Trace
    chances: list[list[float]]
    foretold: list[list[float]]


def known(trace: Trace) -> Known:
    """Fit weights on a text and look at it through them."""
    features, held, counts = _features(trace)
    weights = _fitted(features[counts], held[counts])
    chances = 1.0 / (1.0 + np.exp(-features @ weights))
    return Known(trace, chances.tolist(), _foretold(trace, chances.tolist()))


def _features(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    hints = trace.hints()
    echo = Echo(hints.prompt)
    rows = []
    for at, (drafts, probs) in enumerate(zip(trace.drafts, trace.probs, strict=True)):
        if at:
            echo.extend(trace.tokens[at : at + 1])
        echo.start()
        for depth in range(DEPTH):
            luck = 0.0 if hints.draws is None else hints.draws.luck(at + 1 + depth)
            rows.append((1.0, log_odds(probs[depth]), luck, echo.follow(drafts[depth]), depth == 0, depth / DEPTH))
    shape = len(trace.match), DEPTH
    match, depths = np.array(trace.match)[:, None], np.arange(DEPTH)
    left = len(trace.match) - np.arange(len(trace.match))[:, None]
    return np.array(rows, dtype=float).reshape(*shape, -1), match > depths, (match >= depths) & (depths < left)


def _fitted(features: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Return the weights of a logistic regression, by Newton's method."""
    weights = np.zeros(features.shape[1])
    for _ in range(30):
        chances = 1.0 / (1.0 + np.exp(-features @ weights))
        slope = features.T @ (chances - held) + RIDGE * weights
        bend = (features * (chances * (1.0 - chances))[:, None]).T @ features + RIDGE * np.eye(len(weights))
        weights -= np.linalg.solve(bend, slope)
    return weights


def _foretold(trace: Trace, chances: list[list[float]]) -> list[list[float]]:
    echo, forecast, recent = Echo(trace.hints().prompt), Forecast(), 0.75
    found = []
    for at, drafts in enumerate(trace.drafts):
        if at:
            echo.extend(trace.tokens[at : at + 1])
            recent += 0.1 * ((trace.match[at - 1] > 0) - recent)
        echo.start()
        forecast.start(echo.tail)
        row = []
        for depth, draft in enumerate(drafts):
            row.append(1.0 / (1.0 + math.exp(-forecast.ahead(depth, log_odds(recent), echo.length))))
            echo.follow(draft)
            forecast.note(depth, log_odds(chances[at][depth]), draft)
        found.append(row)
    return found


def stopping_us(
    text: Known, costs: WidthCosts, threshold: float, price: float, part: tuple[int, int]
) -> tuple[float, int]:
    """Return the time of the rule with a threshold from one position of a text to another, and where it ends."""
    trace, verify, drafts = text.trace, costs.verify_us, (0.0, *costs.draft_us)
    at, us = part[0], 0.0
    while at < part[1]:
        chances, foretold = text.chances[at], text.foretold[at]
        n, best, value, best_value, reach = 0, 0, 0.0, 0.0, 1.0
        limit = min(DEPTH, trace.max_tokens - 2 - at)
        while n < limit and reach * foretold[n] >= threshold:
            reach *= chances[n]
            n += 1
            value += reach - price * (verify[n] - verify[n - 1])
            if value > best_value:
                best, best_value = n, value
        held = min(best, trace.match[at])
        us += verify[best] + drafts[n] + (costs.reject_us if held < best else 0.0)
        at += 1 + held
    return us, at


def halves_us(text: Known, costs: WidthCosts, best_us: float) -> tuple[float, float]:
    """Return the time with what is best on each half of a text, used on that half and on the other."""
    n = len(text.trace.match)
    speed = n / best_us
    parts = (0, n // 2), (n // 2, n)
    choices = [(threshold, share * speed) for threshold in THRESHOLDS for share in PRICES]
    first, second = (min(choices, key=lambda c: stopping_us(text, costs, *c, part)[0]) for part in parts)

    def both(one: tuple[float, float], other: tuple[float, float]) -> float:
        us, at = stopping_us(text, costs, *one, parts[0])
        return us + stopping_us(text, costs, *other, (at, n))[0]

    return both(first, second), both(second, first)


class Given(Calibrator):
    """Chances that are given: those of the position in `at`."""

    def __init__(self, chances: list[list[float]]) -> None:
        super().__init__()
        self._chances = chances
        self.at = 0

    def chance(self, depth: int, signs: Signs) -> tuple[float, float]:  # noqa: ARG002
        """Return the chance of a draft, twice."""
        chance = min(0.999, max(0.001, self._chances[self.at][depth]))
        return chance, chance

    @property
    def better(self) -> bool:
        """Always."""
        return True

    @property
    def luck_weight(self) -> float:
        """Luck is in the chances."""
        return 0.0


class Helped(AdaptiveWidth):
    """The adaptive width with chances that are given, and without a ledger if asked."""

    def __init__(self, costs: WidthCosts, machine: Machine, text: Known, *, ledger: bool) -> None:
        super().__init__(costs, clock=machine.clock)
        self._given = self._calibrator = Given(text.chances)
        self._first = text.trace.n_prompt
        self._has_ledger = ledger

    def begin(self, n_seq: int, max_width: int) -> None:
        """Start a request."""
        super().begin(n_seq, max_width)
        if not self._has_ledger:
            self._ledger._room = NO_LIMIT

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:
        """Plan a cycle."""
        self._given.at = context.n_past - self._first
        return super().plan(seq, context)


Times = Callable[[Known, CostCurve], float]


def adaptive_us(text: Known, curve: CostCurve, *, exact: bool, given: bool, ledger: bool) -> float:
    """Return the time of the adaptive width, helped or not."""
    noise, seed = QUIET if exact else REALISTIC, 1
    machine, costs = Machine(curve.costs, noise, seed), swept(curve.costs, noise, seed)
    policy = Helped(costs, machine, text, ledger=ledger) if given else AdaptiveWidth(costs, clock=machine.clock)
    return replay(text.trace, policy, machine).decode_us


def share_of_regret(texts: Sequence[Known], machines: Iterable[CostCurve], time_us: Times) -> float:
    """Return the regret of something in units of the best fixed width's."""
    logs, best_logs = [], []
    for curve in machines:
        for text in texts:
            least = clairvoyant_us(text.trace, curve.costs)
            logs.append(math.log(time_us(text, curve) / least))
            best_logs.append(math.log(best_fixed(text.trace, curve.costs).us / least))
    return math.expm1(sum(logs) / len(logs)) / math.expm1(sum(best_logs) / len(best_logs))


def calibrated(text: Known) -> Trace:
    """Return the trace with the chances in place of the probabilities."""
    return replace(text.trace, probs=tuple(map(tuple, text.chances)))


def rows() -> dict[str, Times]:
    """Return what is measured, by name."""

    def helped(*, exact: bool = False, given: bool = False, ledger: bool = True) -> Times:
        return lambda text, curve: adaptive_us(text, curve, exact=exact, given=given, ledger=ledger)

    def stopping(which: int) -> Times:
        return lambda text, curve: halves_us(text, curve.costs, best_fixed(text.trace, curve.costs).us)[which]

    return {
        "adaptive": helped(),
        "adaptive, exact costs": helped(exact=True),
        "adaptive, chances fitted on the text": helped(given=True),
        "adaptive, both": helped(exact=True, given=True),
        "adaptive, both, without a ledger": helped(exact=True, given=True, ledger=False),
        "whole chains foreseen, probabilities": lambda text, curve: informed_us(text.trace, curve.costs),
        "whole chains foreseen, fitted chances": lambda text, curve: informed_us(calibrated(text), curve.costs),
        "fitted chances, threshold of the same half": stopping(0),
        "fitted chances, threshold of the other half": stopping(1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    args = parser.parse_args()
    texts = [known(trace) for trace in recorded()]
    found = {}
    for name, time_us in rows().items():
        found[name] = share_of_regret(texts, curves(), time_us)
        print(f"{name:46s} {found[name]:.3f}", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
