#!/usr/bin/env python3
"""Measure what Python adds to a cycle, with a session that answers at once: microseconds a cycle.

Fixed widths, a policy that chooses widths, one that plans drafts, and one that looks at them. What a policy itself
takes is left out, since those here answer at once as well. In a real run caches are cold after each native call, so
expect several times as much.

    python scripts/policy_overhead.py [--cycles 20000] [--repeats 7]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from pylucebox._generate import Run
from pylucebox._request import RequestRules
from pylucebox._session import Ask, CycleTimes, MoreDrafts, Proposal, SeqCycle
from pylucebox._spec import spec_active
from pylucebox.width import CycleContext, CycleObservation, CyclePlan, FixedWidth

RESULT = SeqCycle(0, (1, 2, 3, 4), 3, 3, 0, (0.5, 0.5, 0.5), 3, (1, 2, 3))
TIMES = CycleTimes(100, 900, 5, 2, 4, 4, 3, False, False)
PROPOSAL = Proposal(0, (1, 2, 3), (0.5, 0.5, 0.5))


class Instant:
    """A session whose every draft holds, at once."""

    n_ctx = 10**9
    n_seq = 1
    max_width = 8

    def open_sampler(self, *_: object) -> None:
        """Return nothing: none is needed."""

    def prefill(self, *_: object, **__: object) -> tuple[int, int]:
        """Return a token."""
        return 1, 0

    def propose(self, asks: Sequence[MoreDrafts]) -> tuple[list[Proposal], int]:  # noqa: ARG002 - always the same
        """Return three drafts."""
        return [PROPOSAL], 100

    def cycle(self, asks: Sequence[Ask]) -> tuple[list[SeqCycle], CycleTimes]:  # noqa: ARG002 - always the same
        """Return four tokens."""
        return [RESULT], TIMES


class Planner(FixedWidth):
    """Plans three drafts, and looks at them if told to."""

    def __init__(self, *, ask: bool) -> None:
        super().__init__(4)
        self._plan = CyclePlan(4, 3, ask)

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:  # noqa: ARG002 - always the same
        """Return the plan."""
        return self._plan

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:  # noqa: ARG002 - always the same
        """Verify all."""
        return 4, 0

    def observe(self, seq: int, observation: CycleObservation) -> None:
        """Learn nothing."""

    def worth_drafting(self, prompt_tokens: int, max_tokens: int) -> None:
        """Raise no objection."""

    def telemetry(self) -> Any:
        """Tell nothing."""


def us_per_cycle(policy: Any, n_cycles: int) -> float:
    """Return the time of a cycle in a run of so many."""
    rules = RequestRules(
        n_ctx=10**9, verify_width=4 if policy is None else 0, max_width=8, spec=spec_active("measured")
    )
    request = rules.request(
        [1] * 10, max_tokens=4 * n_cycles + 1, stop=(), sampling=None, logprobs=None, verify_width=None
    )
    run = Run(request, Instant(), 0, lambda _token: b"x", policy)  # type: ignore[arg-type]
    began = time.perf_counter()
    run.drive()
    return (time.perf_counter() - began) / n_cycles * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=7, help="the fastest counts (default: 7)")
    args = parser.parse_args()
    for name, policy in (
        ("fixed width", None),
        ("width policy", FixedWidth(4)),
        ("plans", Planner(ask=False)),
        ("plans and looks", Planner(ask=True)),
    ):
        fastest = min(us_per_cycle(policy, args.cycles) for _ in range(args.repeats))
        print(f"{name:<16} {fastest:6.2f} us a cycle")


if __name__ == "__main__":
    main()
