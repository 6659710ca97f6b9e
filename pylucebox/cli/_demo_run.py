"""The measurements of `lucebox demo`: the same prompts on an engine without MTP and on one with it.

Order of work: every prompt without MTP and at the widest verify width, for the reference text, the acceptance by depth
and the cost of drafting; every prompt on the engine with MTP as users get it, to warm it up and check its texts; pairs
of the engine without MTP against itself, for the noise; and pairs of the two engines.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pylucebox._errors import DecodeError
from pylucebox._result import Completion
from pylucebox._sampling import SamplingParams
from pylucebox._stats import RequestStats, SpecStats
from pylucebox.ab.outcome import first_difference
from pylucebox.cli._demo_prompts import DemoPrompt
from pylucebox.cli._measure import CycleCost, Noise, cycle_cost, noise_of, plan_pairs
from pylucebox.cli._ports import EngineFactory, EngineLike, EngineOptions
from pylucebox.cli._request import follow

PROBE_WIDTH = 8

Clock = Callable[[], float]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class DemoPlan:
    """What is measured.

    Attributes
    ----------
    prompts
        Prompts, at least one.
    max_tokens
        Tokens of each run, at least 2: prefill yields the first one, which has no decode time.
    width
        Verify width of the engine with MTP: 0 (the engine chooses) or 2..8.
    n_rounds
        Pairs per prompt.
    n_noise_rounds
        Pairs per prompt of the engine without MTP against itself.
    n_threads
        Threads of both engines.
    """

    prompts: tuple[DemoPrompt, ...]
    max_tokens: int
    width: int
    n_rounds: int
    n_noise_rounds: int
    n_threads: int

    @property
    def n_runs(self) -> int:
        """Generations of the whole demo."""
        return 2 + len(self.prompts) * (3 + 2 * self.n_noise_rounds + 2 * self.n_rounds)


@dataclass(frozen=True)
class Run:
    """One timed generation.

    Attributes
    ----------
    completion
        What came out.
    prefill_s, decode_s
        Time to the first token, and from there to the last, seconds. Taken around the steps of the stream, so the
        engine's own work in Python counts in both arms.
    """

    completion: Completion
    prefill_s: float
    decode_s: float

    @property
    def tok_s(self) -> float:
        """Decode speed."""
        return self.completion.stats.decode_tokens / self.decode_s


@dataclass
class PromptRuns:
    """Everything measured on one prompt.

    Attributes
    ----------
    prompt
        The prompt.
    off
        Run without MTP. Its tokens are the reference.
    probe
        Run at `PROBE_WIDTH`, right after `off`.
    on
        First run on the engine with MTP; its times are warm-up.
    differs_at
        Index of the first token in which any run with MTP, or any repetition, differs from `off`; None if none does.
    mismatch
        The run that differs there.
    log_ratios
        ln(speed on / speed off) of each pair.
    tok_s_off, tok_s_on
        Decode speeds of the pairs' runs.
    prefill_ms_off, prefill_ms_on
        Times to the first token of the pairs' runs.
    stats_on
        Counts and times of the pairs' runs with MTP, summed.
    """

    prompt: DemoPrompt
    off: Run
    probe: Run
    on: Completion
    differs_at: int | None = None
    mismatch: Completion | None = None
    log_ratios: list[float] = field(default_factory=list)
    tok_s_off: list[float] = field(default_factory=list)
    tok_s_on: list[float] = field(default_factory=list)
    prefill_ms_off: list[float] = field(default_factory=list)
    prefill_ms_on: list[float] = field(default_factory=list)
    stats_on: SpecStats = field(default_factory=SpecStats)

    def check(self, completion: Completion) -> None:
        """Compare a run's tokens with the reference and remember the earliest difference."""
        index = first_difference(self.off.completion.token_ids, completion.token_ids)
        if index is not None and (self.differs_at is None or index < self.differs_at):
            self.differs_at, self.mismatch = index, completion

    def step_us(self) -> float:
        """Median time of a plain decode step, microseconds."""
        return 1e6 / statistics.median(self.tok_s_off)


@dataclass(frozen=True)
class DemoRuns:
    """Everything measured.

    Attributes
    ----------
    plan
        What was asked for.
    prompts
        Results, in the order of the plan.
    noise
        The engine without MTP against itself.
    """

    plan: DemoPlan
    prompts: tuple[PromptRuns, ...]
    noise: Noise

    @property
    def identical(self) -> bool:
        """Whether every run of every prompt gave the tokens of MTP off."""
        return all(runs.differs_at is None for runs in self.prompts)


class _Bench:
    """Runs prompts and reports progress after each run."""

    def __init__(self, plan: DemoPlan, progress: Progress, clock: Clock) -> None:
        self._plan = plan
        self._progress = progress
        self._clock = clock

    def run(self, engine: EngineLike, prompt: DemoPrompt, what: str) -> Run:
        sampling = SamplingParams(temperature=prompt.temperature, seed=prompt.seed) if prompt.temperature else None
        times = [self._clock()]
        stream = engine.stream(prompt.text, max_tokens=self._plan.max_tokens, sampling=sampling)
        completion = follow(stream, lambda _: times.append(self._clock()))
        if completion.stats.decode_tokens == 0:
            raise DecodeError(
                f"the demo prompt {prompt.name!r} has no decode speed", seen="the model ended at its first token"
            )
        self._progress(f"{what}: {prompt.name}")
        return Run(completion, prefill_s=times[1] - times[0], decode_s=times[-1] - times[1])

    def pairs(self, arms: tuple[EngineLike, EngineLike], n_rounds: int, what: str) -> list[tuple[int, Run, Run]]:
        """Run pairs of two arms; gives prompt index, run of arm 0 and run of arm 1 for each."""
        done = []
        for pair in plan_pairs(len(self._plan.prompts), n_rounds):
            order = (1, 0) if pair.second_first else (0, 1)
            prompt = self._plan.prompts[pair.prompt_index]
            runs = {arm: self.run(arms[arm], prompt, what) for arm in order}
            done.append((pair.prompt_index, runs[0], runs[1]))
        return done


def measure(
    plan: DemoPlan,
    factory: EngineFactory,
    *,
    progress: Progress,
    announce: Callable[[EngineLike, Noise], None],
    clock: Clock = time.perf_counter,
) -> DemoRuns:
    """Run the demo on the built-in model.

    Parameters
    ----------
    plan
        What to measure.
    factory
        Opens the engines. MTP is required, not just allowed, so that MTP off is never measured against itself.
    progress
        Called after each of the `DemoPlan.n_runs` runs.
    announce
        Called with the engine with MTP and the noise, before the comparison starts.
    clock
        Seconds, monotonic.

    Returns
    -------
    DemoRuns
        Measurements; speeds of prompts with differing texts are measured, too, but compare different work.

    Raises
    ------
    LuceboxError
        An engine cannot be opened or a run failed.
    """
    bench = _Bench(plan, progress, clock)
    drafting = EngineOptions(mtp="auto", spec="require", n_threads=plan.n_threads, verify_width=plan.width)
    with factory(EngineOptions(mtp="off", n_threads=plan.n_threads)) as off:
        with factory(replace(drafting, verify_width=PROBE_WIDTH)) as deep:
            for engine in (off, deep):
                bench.run(engine, plan.prompts[0], "warming up")
            probes = [
                (bench.run(off, prompt, "MTP off"), bench.run(deep, prompt, "full width")) for prompt in plan.prompts
            ]
        with factory(drafting) as on:
            return _compare(bench, plan, (off, on), probes, announce)


def _compare(
    bench: _Bench,
    plan: DemoPlan,
    engines: tuple[EngineLike, EngineLike],
    probes: Sequence[tuple[Run, Run]],
    announce: Callable[[EngineLike, Noise], None],
) -> DemoRuns:
    """Compare the engine without MTP with itself and then with the one with MTP."""
    off, on = engines
    results = []
    for prompt, (reference, probe) in zip(plan.prompts, probes, strict=True):
        runs = PromptRuns(prompt, reference, probe, bench.run(on, prompt, "warming up").completion)
        for completion in (probe.completion, runs.on):
            runs.check(completion)
        results.append(runs)

    same = bench.pairs((off, off), plan.n_noise_rounds, "off against off")
    for index, first, second in same:
        for run in (first, second):
            results[index].check(run.completion)
    noise = noise_of([math.log(second.tok_s / first.tok_s) for _, first, second in same], plan.n_rounds)
    announce(on, noise)

    for index, run_off, run_on in bench.pairs((off, on), plan.n_rounds, "off against on"):
        _record(results[index], run_off, run_on)
    return DemoRuns(plan, tuple(results), noise)


def _record(runs: PromptRuns, run_off: Run, run_on: Run) -> None:
    for run in (run_off, run_on):
        runs.check(run.completion)
    runs.log_ratios.append(math.log(run_on.tok_s / run_off.tok_s))
    runs.tok_s_off.append(run_off.tok_s)
    runs.tok_s_on.append(run_on.tok_s)
    runs.prefill_ms_off.append(1e3 * run_off.prefill_s)
    runs.prefill_ms_on.append(1e3 * run_on.prefill_s)
    runs.stats_on = runs.stats_on.merge(run_on.completion.stats)


def cost_of(stats: RequestStats | SpecStats, step_us: float) -> CycleCost:
    """Cost of the cycles behind `stats`, in plain steps of `step_us` microseconds.

    One sequence runs at a time, so each cycle verifies one row more than it drafted.
    """
    return cycle_cost(
        step_us=step_us,
        decode_us=1e3 * stats.decode_ms,
        draft_us=1e3 * stats.draft_ms,
        verify_us=1e3 * stats.verify_ms,
        n_cycles=stats.cycles,
        n_rows=stats.num_draft_tokens + stats.cycles,
        n_tokens=stats.decode_tokens,
    )
