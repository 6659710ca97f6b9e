"""Sessions with made-up figures, for the tests of the reports."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pylucebox.ab.records import (
    Arm,
    CycleRecord,
    Issue,
    Plan,
    PlannedRun,
    Request,
    RunRecord,
    SequenceRecord,
    Suite,
    Workload,
)
from pylucebox.ab.store import Session
from pylucebox.ab.verdict import summarise

N_TOKENS = 320
BASE_TOK_S = 1100.0

ENV = {
    "schema": 1,
    "comparable": {
        "cpu": "A processor with eight cores",
        "package": {"version": "0.1.0", "series": "cd160f"},
        "devices": ["CPU"],
        "governor": "performance",
    },
    "informative": {"kernel": "6.1.0", "load": [0.1, 0.2, 0.3], "power_cap_w": None},
    "sha256": "e" * 64,
}


@dataclass(frozen=True)
class Effect:
    """How an arm does on a workload.

    Attributes
    ----------
    ratio
        Speed over that of the baseline.
    accept
        Chance that a draft holds.
    width
        Verify width; 0 changes it during the run.
    diverged_at
        First token that differs.
    issue
        Code that all its runs get.
    noise
        Scatter of its runs beyond that of the session, as a fraction.
    """

    ratio: float = 1.0
    accept: float = 0.7
    width: int = 4
    diverged_at: int | None = None
    issue: str | None = None
    noise: float = 0.0


def workload(name: str, title: str = "A title", n_seq: int = 1) -> Workload:
    request = Request(prompt=f"Prompt of {name}", max_tokens=N_TOKENS, n_prompt=120)
    requests = tuple(replace(request, prompt=f"{request.prompt} {i}") for i in range(n_seq))
    warmup = Request(prompt="Other text", max_tokens=64, n_prompt=2)
    return Workload(
        name=name, kind="code", title=title, requests=requests, warmup=warmup, control=request, n_seq=n_seq, n_ctx=512
    )


def _width_at(effect: Effect, token: int) -> int:
    if effect.width:
        return effect.width
    return (2, 4, 8, 4, 1)[token * 5 // N_TOKENS]


def _cycles(effect: Effect, seconds: float, rng: random.Random) -> tuple[CycleRecord, ...]:
    drawn: list[tuple[int, int]] = []
    token = 1
    while token < N_TOKENS:
        width = min(_width_at(effect, token), N_TOKENS - token)
        held = 0
        while held < width - 1 and rng.random() < effect.accept:
            held += 1
        drawn.append((width, held))
        token += held + 1
    total = sum(1 + 0.4 * (width - 1) for width, _ in drawn)
    out = []
    t_ms = 0.0
    for width, held in drawn:
        t_ms += 1000 * seconds * (1 + 0.4 * (width - 1)) / total
        out.append(
            CycleRecord(
                t_ms=t_ms,
                seq=0,
                width=width,
                n_drafted=width - 1,
                n_accepted=held,
                n_tokens=held + 1,
                draft_us=100,
                verify_us=900,
                rollback_us=10,
                built=False,
            )
        )
    return tuple(out)


def _block_ms(cycles: Sequence[CycleRecord]) -> tuple[float, ...]:
    ends: list[float] = []
    count, before = 1, 0.0
    for cycle in cycles:
        wanted = 64 * (len(ends) + 1)
        if count + cycle.n_tokens >= wanted:
            ends.append(before + (cycle.t_ms - before) * (wanted - count) / cycle.n_tokens)
        count, before = count + cycle.n_tokens, cycle.t_ms
    return tuple(ends)


def _spec(cycles: Sequence[CycleRecord]) -> dict[str, object]:
    return {
        "cycles": len(cycles),
        "num_drafts": sum(cycle.n_drafted > 0 for cycle in cycles),
        "num_draft_tokens": sum(cycle.n_drafted for cycle in cycles),
        "num_accepted_tokens": sum(cycle.n_accepted for cycle in cycles),
        "num_draft_tokens_per_pos": [sum(cycle.n_drafted > at for cycle in cycles) for at in range(7)],
        "num_accepted_tokens_per_pos": [sum(cycle.n_accepted > at for cycle in cycles) for at in range(7)],
    }


class Maker:
    """Makes runs; equal seeds make equal sessions."""

    def __init__(self, seed: int = 1, noise: float = 0.004) -> None:
        self._rng = random.Random(seed)
        self._noise = noise
        self.cycles: dict[tuple[int, int], tuple[CycleRecord, ...]] = {}

    def run(self, planned: PlannedRun, work: Workload, effect: Effect) -> RunRecord:
        """Make the record of a run."""
        speed = BASE_TOK_S * effect.ratio * (1 + self._rng.gauss(0, self._noise + effect.noise))
        cycles = _cycles(effect, (N_TOKENS - 1) / speed, self._rng)
        self.cycles[planned.index, 0] = cycles
        text = f"{work.name} {effect.diverged_at} {planned.phase == 'control'}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        sequences = tuple(
            SequenceRecord(
                n_prompt=120,
                n_tokens=N_TOKENS,
                finish_reason="length",
                text_sha256=digest,
                token_sha256=digest,
                ttft_ms=80.0,
                decode_client_ms=cycles[-1].t_ms,
                decode_ms=cycles[-1].t_ms,
                block_ms=_block_ms(cycles),
            )
            for _ in work.requests
        )
        widths: dict[str, int] = {}
        for cycle in cycles:
            widths[str(cycle.width)] = widths.get(str(cycle.width), 0) + 1
        return RunRecord(
            index=planned.index,
            phase=planned.phase,
            workload=planned.workload,
            arm=planned.arm,
            block=planned.block,
            position=planned.position,
            side=planned.side,
            started_utc="2026-01-01T00:00:00Z",
            wall_s=1.4,
            sequences=sequences,
            decode_tok_s=speed,
            client_tok_s=speed * 0.999,
            prefill_tok_s=1500.0,
            ttft_ms=80.0,
            spec=_spec(cycles),
            widths=widths,
            diverged_at=effect.diverged_at,
            diverged_seq=None if effect.diverged_at is None else 0,
            peak_rss_bytes=180 * 2**20,
            issues=(Issue(code=effect.issue, detail="16 of 120 prompt tokens"),) if effect.issue else (),
        )


def session(
    effects: dict[tuple[str, str], Effect],
    *,
    workloads: Sequence[Workload],
    arms: Sequence[Arm],
    n_pairs: int = 9,
    isolation: str = "process",
    complete: bool = True,
    stopped: str | None = None,
    seed: int = 1,
    noise: float = 0.004,
    model: str | None = None,
) -> tuple[Session, Callable[[RunRecord], Sequence[CycleRecord]]]:
    """Make a whole session and what reads its cycles.

    Parameters
    ----------
    effects
        By workload and arm; the baseline is the first arm.
    workloads, arms, n_pairs, isolation, complete, stopped, seed, noise, model
        Of the plan and its summary.
    """
    baseline = arms[0].name
    off = Effect(width=1)
    planned: list[tuple[PlannedRun, Effect]] = []

    def add(phase: str, work: str, arm: str, *, block: int = 0, side: int = 0, effect: Effect = off) -> None:
        run = PlannedRun(index=len(planned), phase=phase, workload=work, arm=arm, block=block, side=side)
        planned.append((run, effect))

    for work in workloads:
        for block in range(2):
            add("aa", work.name, baseline, block=block, side=0)
            add("aa", work.name, baseline, block=block, side=1)
        add("control", work.name, baseline)
    for block in range(n_pairs):
        add("sentinel", workloads[0].name, baseline, block=block)
        for work in workloads:
            for arm in arms:
                add("main", work.name, arm.name, block=block, effect=effects.get((work.name, arm.name), off))
    plan = Plan(
        version="0.1.0",
        seed=seed,
        order="williams",
        isolation=isolation,
        baseline=baseline,
        arms=tuple(arms),
        suite=Suite(name="quick", workloads=tuple(workloads), corpus="pinned", corpus_sha256="c" * 64, n_ctx=4096),
        n_pairs=n_pairs,
        n_aa=2,
        sentinel_every=8,
        cooldown="none",
        equivalence=0.01,
        runs=tuple(run for run, _ in planned),
        n_resamples=500,
        model=model,
    )
    maker = Maker(seed, noise)
    by_name = {work.name: work for work in workloads}
    runs = tuple(maker.run(run, by_name[run.workload], effect) for run, effect in planned)
    summary = summarise(plan, ENV, runs, complete=complete, stopped=stopped)
    made = Session(plan=plan, env=ENV, runs=runs, summary=summary)
    return made, lambda run: maker.cycles.get((run.index, run.attempt), ())


ARMS = (
    Arm(name="off", kind="engine", widths=(1,), options={"verify_width": 1}),
    Arm(name="k3", kind="engine", widths=(4,), options={"verify_width": 4}),
    Arm(name="adaptive", kind="engine", widths=(1, 2, 3, 4, 5, 6, 7, 8), options={"verify_width": 0}),
)
WORKLOADS = (
    workload("sweep-count", "Counting (short)"),
    workload("sweep-json", "Records in a fixed pattern (short)"),
    workload("sweep-code", "A new module after half a module (short)"),
    workload("sweep-prose-essay", "An essay (short)"),
    workload("sweep-entropy", "Digests that nobody can guess: drafting must stop (short)"),
    workload("multi-3-short", "Three tasks of one kind together (short)", n_seq=3),
)
EFFECTS = {
    ("sweep-count", "k3"): Effect(1.42, 0.99, 4),
    ("sweep-count", "adaptive"): Effect(1.61, 0.99, 0),
    ("sweep-json", "k3"): Effect(1.18, 0.9, 4),
    ("sweep-json", "adaptive"): Effect(1.2, 0.9, 0),
    ("sweep-code", "k3"): Effect(1.0, 0.7, 4),
    ("sweep-code", "adaptive"): Effect(1.012, 0.7, 0, noise=0.03),
    ("sweep-prose-essay", "k3"): Effect(0.93, 0.6, 4, diverged_at=117),
    ("sweep-prose-essay", "adaptive"): Effect(1.001, 0.6, 0),
    ("sweep-entropy", "k3"): Effect(0.58, 0.1, 4),
    ("sweep-entropy", "adaptive"): Effect(0.97, 0.1, 0),
    ("multi-3-short", "k3"): Effect(1.0, 0.8, 4, issue="cached_prompt"),
    ("multi-3-short", "adaptive"): Effect(1.05, 0.8, 0),
}


def example() -> tuple[Session, Callable[[RunRecord], Sequence[CycleRecord]]]:
    """Make a session in which every verdict occurs."""
    return session(EFFECTS, workloads=WORKLOADS, arms=ARMS)
