"""Whole sessions on a scripted clock: the real schedule, runner, rules and statistics, with arms that only pretend.

This is what the harness is judged by. A planted effect must be found as often as promised, and where nothing differs,
or only the machine drifts, hardly any claim may be made.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pylucebox.ab.errors import ArmError
from pylucebox.ab.outcome import Outcome, RawSequence
from pylucebox.ab.planner import Wishes, build_plan
from pylucebox.ab.records import Arm, CycleRecord, Plan, PlannedRun, Request, RunRecord, Suite, Workload
from pylucebox.ab.results import Row
from pylucebox.ab.runner import Runner
from pylucebox.ab.store import MemoryStore, Session
from pylucebox.ab.verdict import summarise

__all__ = [
    "Behaviour",
    "ScriptedClock",
    "SilentDisplay",
    "StubLauncher",
    "World",
    "example_session",
    "simulate",
    "stub_plan",
]

BASE_MS = 10.0
"""Time of a token of the stub."""


@dataclass
class ScriptedClock:
    """Time passes when the script says so.

    Attributes
    ----------
    now
        Seconds.
    offset
        What the time of day is ahead by; changing it is a jump of the clock.
    """

    now: float = 1000.0
    offset: float = 1.8e9

    def monotonic(self) -> float:
        """Seconds that cannot be set."""
        return self.now

    def wall(self) -> float:
        """Time of day in seconds since 1970."""
        return self.now + self.offset

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@dataclass(frozen=True)
class Behaviour:
    """How an arm of the stub behaves.

    Attributes
    ----------
    effect
        Its speed over that of the baseline, less one.
    diverges_at
        Token from which its text is another.
    n_cached
        Prompt tokens that it says came from a cache.
    fails
        Code with which every run fails.
    width
        Verify width of its cycles; every draft of every second cycle holds.
    """

    effect: float = 0.0
    diverges_at: int | None = None
    n_cached: int = 0
    fails: str | None = None
    width: int = 1


@dataclass(frozen=True)
class World:
    """What happens to all arms alike.

    Attributes
    ----------
    sigma
        Scatter of a run: standard deviation of the logarithm of its speed.
    drift
        Relative loss of speed from the first run to the last, linear.
    slow_first
        Relative loss of speed of the first run of each phase.
    spike_share, spike
        Share of runs that something else disturbs, and the time it adds, relative.
    """

    sigma: float = 0.005
    drift: float = 0.0
    slow_first: float = 0.0
    spike_share: float = 0.0
    spike: float = 0.5


@dataclass
class StubLauncher:
    """Pretends to start arms.

    Attributes
    ----------
    clock
        Moved on by every run.
    behaviours
        By arm; arms that are not named behave like the baseline.
    world
        Common disturbances.
    rng
        Source of chance.
    n_planned
        Runs over which the drift is spread.
    before
        Called before each run with its number; may raise or move the clock.
    """

    clock: ScriptedClock
    behaviours: Mapping[str, Behaviour]
    world: World
    rng: random.Random
    n_planned: int
    before: Callable[[int], None] | None = None
    n_runs: int = 0

    @contextmanager
    def open(self, arm: Arm, *, n_ctx: int, n_seq: int) -> Iterator[_StubProcess]:  # noqa: ARG002 - no context to open
        """Start an arm."""
        yield _StubProcess(self, arm.name)

    def pace(self) -> float:
        """Return the time of this run's tokens over the usual one."""
        world = self.world
        slow = world.drift * self.n_runs / max(1, self.n_planned) + (world.slow_first if self.n_runs == 0 else 0.0)
        if world.spike_share and self.rng.random() < world.spike_share:
            slow += world.spike
        return (1.0 + slow) * math.exp(self.rng.gauss(0.0, world.sigma))


@dataclass
class _StubProcess:
    launcher: StubLauncher
    arm: str

    def run(self, requests: Sequence[Request], warmup: Request | None) -> Outcome:  # noqa: ARG002 - nothing to warm up
        launcher = self.launcher
        if launcher.before is not None:
            launcher.before(launcher.n_runs)
        behaviour = launcher.behaviours.get(self.arm, Behaviour())
        token_ms = BASE_MS * launcher.pace() / (1.0 + behaviour.effect)
        launcher.n_runs += 1
        launcher.clock.now += 1.0
        if behaviour.fails is not None:
            raise ArmError(arm=self.arm, code=behaviour.fails, seen="the stub was told to fail")
        sequences: list[RawSequence] = []
        cycles: list[CycleRecord] = []
        for number, request in enumerate(requests):
            own, arrivals = _cycles(number, request.max_tokens, behaviour.width, token_ms)
            cycles += own
            sequences.append(_sequence(request, behaviour, arrivals))
        launcher.clock.now += max(sequence.arrivals[-1][1] for sequence in sequences) / 1000.0
        return Outcome(
            sequences=tuple(sequences), cycles=tuple(cycles), spec=_spec(cycles, behaviour.width), peak_rss_bytes=2**28
        )


def _sequence(request: Request, behaviour: Behaviour, arrivals: tuple[tuple[int, float], ...]) -> RawSequence:
    at = request.max_tokens if behaviour.diverges_at is None else behaviour.diverges_at
    start = len(request.prompt) + 100 * request.seed
    ids = tuple(start + token + (token >= at) for token in range(request.max_tokens))
    first_ms, last_ms = arrivals[0][1], arrivals[-1][1]
    return RawSequence(
        n_prompt=len(request.prompt),
        n_cached=behaviour.n_cached,
        n_tokens=len(ids),
        finish_reason="length",
        token_ids=ids,
        text=" ".join(map(str, ids)),
        ttft_ms=first_ms,
        prefill_ms=first_ms,
        decode_ms=last_ms - first_ms,
        arrivals=arrivals,
    )


def _cycles(
    seq: int, n_tokens: int, width: int, token_ms: float
) -> tuple[list[CycleRecord], tuple[tuple[int, float], ...]]:
    """Return cycles that give `n_tokens` tokens at a mean of `token_ms`, and when the tokens arrive."""
    first_ms = 5.0 * token_ms
    arrivals = [(1, first_ms)]
    cycles: list[CycleRecord] = []
    done = 1
    while done < n_tokens:
        rows = min(width, n_tokens - done)
        n_new = rows if len(cycles) % 2 == 0 else 1
        done += n_new
        arrivals.append((done, first_ms + token_ms * (done - 1)))
        cycles.append(
            CycleRecord(
                t_ms=token_ms * (done - 1),
                seq=seq,
                width=rows,
                n_drafted=rows - 1,
                n_accepted=n_new - 1,
                n_tokens=n_new,
                draft_us=round(100 * token_ms * (rows - 1)),
                verify_us=round(800 * token_ms * n_new),
                rollback_us=0,
                built=False,
            )
        )
    return cycles, tuple(arrivals)


def _spec(cycles: Sequence[CycleRecord], width: int) -> dict[str, Any]:
    per_pos = [
        [sum(c.n_drafted > d for c in cycles) for d in range(7)],
        [sum(c.n_accepted > d for c in cycles) for d in range(7)],
    ]
    return {
        "cycles": len(cycles),
        "num_drafts": sum(cycle.n_drafted > 0 for cycle in cycles),
        "num_draft_tokens": sum(per_pos[0]),
        "num_accepted_tokens": sum(per_pos[1]),
        "num_draft_tokens_per_pos": per_pos[0],
        "num_accepted_tokens_per_pos": per_pos[1],
        "draft_ms": sum(cycle.draft_us for cycle in cycles) / 1000,
        "verify_ms": sum(cycle.verify_us for cycle in cycles) / 1000,
        "sample_ms": 0.0,
        "rollback_ms": 0.0,
        "graphs_built": 0 if width else 1,
    }


class SteadyMachine:
    """A machine of which nothing can be read."""

    def state(self) -> Mapping[str, Any]:
        """Return nothing."""
        return {}


class SilentDisplay:
    """Shows nothing."""

    def started(self, run: PlannedRun, eta_s: float | None) -> None:
        """Do nothing."""

    def finished(self, record: RunRecord) -> None:
        """Do nothing."""

    def rows(self, rows: Sequence[Row]) -> None:
        """Do nothing."""

    def say(self, text: str) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Simulated:
    """A session that was simulated.

    Attributes
    ----------
    session
        As if read from disk.
    store
        What was kept, with cycles and token ids.
    """

    session: Session
    store: MemoryStore = field(repr=False)

    def cycles(self, record: RunRecord) -> Sequence[CycleRecord]:
        """Return the cycles of a run."""
        return self.store.cycles.get((record.index, record.attempt), ())


def stub_plan(arms: Mapping[str, Behaviour], wishes: Wishes, *, n_workloads: int = 1, n_tokens: int = 16) -> Plan:
    """Plan a session of arms of the stub; the first is the baseline."""
    warmup = Request(prompt="warm-up", max_tokens=4)
    workloads = tuple(
        Workload(
            name=f"text-{number}",
            kind="stub",
            title=f"stub text {number}",
            requests=(Request(prompt="p" * (10 + number), max_tokens=n_tokens),),
            warmup=warmup,
            control=Request(prompt="p" * (10 + number), max_tokens=n_tokens, seed=1),
            n_ctx=n_tokens + 32,
        )
        for number in range(n_workloads)
    )
    suite = Suite(name="stub", workloads=workloads, corpus="none", corpus_sha256="", n_ctx=4096)
    engines = [
        Arm(name=name, kind="engine", widths=(behaviour.width,), options={"verify_width": behaviour.width})
        for name, behaviour in arms.items()
    ]
    short = Workload(
        name="sentinel",
        kind="stub",
        title="sentinel",
        requests=(Request(prompt="s", max_tokens=8),),
        warmup=warmup,
        control=None,
    )
    sentinel = short, Arm(name="sentinel", kind="engine", widths=(1,))
    return build_plan(engines, None, suite, wishes, sentinel=sentinel if wishes.sentinel_every else None)


def simulate(
    arms: Mapping[str, Behaviour],
    *,
    seed: int,
    world: World | None = None,
    wishes: Wishes | None = None,
    n_workloads: int = 1,
    n_tokens: int = 16,
) -> Simulated:
    """Run a session of the stub.

    Parameters
    ----------
    arms
        Behaviour by name; the first is the baseline.
    seed
        Of the noise.
    world
        Common disturbances.
    wishes
        As for a real session; None takes few resamples and the defaults.
    n_workloads, n_tokens
        Size of the table, and of a text.
    """
    wishes = Wishes(n_resamples=1000, seed=seed) if wishes is None else wishes
    plan = stub_plan(arms, wishes, n_workloads=n_workloads, n_tokens=n_tokens)
    clock, store = ScriptedClock(), MemoryStore()
    launcher = StubLauncher(clock, arms, world or World(), random.Random(seed), len(plan.runs))
    runner = Runner(
        plan,
        launcher=launcher,
        store=store,
        clock=clock,
        machine=SteadyMachine(),
        display=SilentDisplay(),
        interim=False,
    )
    stopped = runner.run()
    env: dict[str, Any] = {"schema": 1, "comparable": {"machine": "stub"}, "informative": {}, "sha256": "stub"}
    summary = summarise(runner.plan, env, runner.records, complete=stopped is None, stopped=stopped)
    session = Session(plan=runner.plan, env=env, runs=tuple(runner.records), summary=summary)
    return Simulated(session, store)


def example_session(kind: str) -> Simulated:
    """Return a session that shows something.

    Parameters
    ----------
    kind
        ``"faster"``, ``"diverged"``, ``"invalid"`` or ``"aa"``: what its second arm is; the third one is slower.
    """
    second = {
        "faster": Behaviour(effect=0.2, width=4),
        "diverged": Behaviour(effect=0.2, width=4, diverges_at=70),
        "invalid": Behaviour(n_cached=3),
        "aa": Behaviour(),
    }[kind]
    arms = {"off": Behaviour(), "k3": second, "k1": Behaviour(effect=-0.1, width=2)}
    return simulate(arms, seed=1, n_workloads=3, n_tokens=200)
