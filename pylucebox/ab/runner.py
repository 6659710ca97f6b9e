"""Runs a plan: one run after the other, each judged, kept and, when it does not count, repeated once.

All decisions on the way depend on the plan and the records kept so far only. A session that was killed and is resumed
therefore goes on as if nothing had happened.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from pylucebox.ab import planner, verdict
from pylucebox.ab.cooldown import Cooldown
from pylucebox.ab.errors import ArmError, ComparisonError
from pylucebox.ab.outcome import Outcome, decode_speeds, first_difference, sequence_record
from pylucebox.ab.ports import ArmProcess, Clock, Display, Launcher, Machine
from pylucebox.ab.records import Arm, CycleRecord, Issue, Plan, PlannedRun, Request, RunRecord, Workload
from pylucebox.ab.store import Store
from pylucebox.ab.validity import check_clocks, check_machine, check_outcome, differs

__all__ = ["MAX_INVALID_SHARE", "Runner"]

MAX_INVALID_SHARE: Final = 0.10
"""Share of invalid runs above which a session is given up."""

_MIN_INVALID: Final = 4  # a short session is not given up for less
_STRIKES: Final = 3  # invalid attempts in a row after which an arm is left out


class _StopError(Exception):
    """The session ends before its schedule does."""


class Runner:
    """Runs a session.

    Parameters
    ----------
    plan
        What to run.
    launcher, store, clock, machine, display
        The outside.
    kept
        Records of an earlier part of the session.
    interim
        Whether to show a comparison after each block.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        launcher: Launcher,
        store: Store,
        clock: Clock,
        machine: Machine,
        display: Display,
        kept: Sequence[RunRecord] = (),
        interim: bool = True,
    ) -> None:
        self.plan = plan
        self.records = list(kept)
        self._interim = interim
        self._by_index: dict[int, list[RunRecord]] = {}
        self._by_arm: dict[str, list[RunRecord]] = {}
        self._times_s: dict[tuple[str, str], list[float]] = {}
        for record in kept:
            self._index(record)
        self._launcher = launcher
        self._store = store
        self._clock = clock
        self._machine = machine
        self._display = display
        self._cooldown = Cooldown(plan.cooldown, machine, clock)
        self._at_start: Mapping[str, Any] = {}
        self._deadline: float | None = None
        self._open = _OpenArm(launcher)

    def run(self) -> str | None:
        """Run what is left of the plan.

        Returns
        -------
        str or None
            Why the session ended early; None when the schedule was run to its end.

        Raises
        ------
        SessionFileError
            A result cannot be kept; those before it are.
        """
        self._at_start = self._machine.state()
        self._cooldown.begin()
        if self.plan.max_hours is not None:
            self._deadline = self._clock.monotonic() + 3600.0 * self.plan.max_hours
        try:
            with self._open:
                self._run_groups(_is_gate)
                self._decide_pairs()
                self._run_groups(lambda run: not _is_gate(run))
        except (_StopError, ComparisonError) as stop:
            if isinstance(stop, OSError):  # nothing more can be kept
                raise
            return str(stop)
        except KeyboardInterrupt:
            return "interrupted"
        return None

    def _decide_pairs(self) -> None:
        """Fix the number of pairs, now that the noise is known."""
        noise = verdict.noise_of(self.plan, self.records)
        sigma_run = None if noise is None else noise.sigma_run
        if self.plan.detect is not None and self.plan.n_pairs == 0:
            if sigma_run is None:
                raise _StopError("the noise is not known, because no pair of the baseline with itself was valid")
            self.plan = planner.with_pairs_for(self.plan, sigma_run)
            self._store.write_plan(self.plan)
        self._display.say(planner.claim_note(self.plan, sigma_run))

    def _run_groups(self, wanted: Callable[[PlannedRun], bool]) -> None:
        """Run blocks; what is invalid in a block is repeated at its end."""
        for _, group in groupby(filter(wanted, self.plan.runs), self._block_of):
            runs = list(group)
            n_before = len(self.records)
            for run in runs:
                if not self._attempts(run):
                    self._attempt(run, 0)
            for run in runs:
                attempts = self._attempts(run)
                if len(attempts) == 1 and not attempts[0].valid:
                    self._attempt(run, 1)
            if self._interim and runs[0].phase == "main" and len(self.records) > n_before:
                self._display.rows(verdict.rows_of(self.plan, self.records)[0])

    def _block_of(self, run: PlannedRun) -> tuple[object, ...]:
        if run.phase == "main" and self.plan.isolation == "request":
            return run.phase, run.block
        if run.phase in ("settle", "sentinel"):
            return run.phase, run.index
        return run.phase, run.workload, run.block

    def _attempts(self, run: PlannedRun) -> list[RunRecord]:
        return self._by_index.get(run.index, [])

    def _attempt(self, run: PlannedRun, attempt: int) -> None:
        dropped = self._reason_to_drop(run.arm)
        if dropped is not None:
            if attempt == 0:
                self._keep(_blank(run, attempt, self._clock.wall(), [Issue(code="dropped", detail=dropped)]), ())
            return
        if self._deadline is not None and self._clock.monotonic() + (self._expected_s(run) or 0.0) > self._deadline:
            raise _StopError(f"the time limit of {self.plan.max_hours:g} hours is reached")
        self._display.started(run, self._eta_s(run) if self._interim else None)
        record, cycles = self._measure(run, attempt)
        self._keep(record, cycles)
        self._give_up_if_hopeless(run)

    def _keep(self, record: RunRecord, cycles: Sequence[CycleRecord]) -> None:
        self._store.append(record, cycles)
        self.records.append(record)
        self._index(record)
        self._display.finished(record)

    def _index(self, record: RunRecord) -> None:
        self._by_index.setdefault(record.index, []).append(record)
        self._by_arm.setdefault(record.arm, []).append(record)
        if record.valid:
            self._times_s.setdefault((record.workload, record.arm), []).append(record.wall_s)

    def _measure(self, run: PlannedRun, attempt: int) -> tuple[RunRecord, Sequence[CycleRecord]]:
        issues = self._cooldown.wait()
        before = self._machine.state()
        wall, monotonic = self._clock.wall(), self._clock.monotonic()
        arm, workload = self.plan.arm(run.arm), self.plan.workload(run.workload)
        requests = _requests(run, workload)
        outcome: Outcome | None = None
        try:
            outcome = self._open.run(self.plan, arm, workload, requests)
        except ArmError as error:
            issues.append(Issue(code=error.code, detail=_detail(error)))
        wall_s, monotonic_s = self._clock.wall() - wall, self._clock.monotonic() - monotonic
        after = self._machine.state()
        issues += check_clocks(wall_s, monotonic_s)
        issues += check_machine(self._at_start, before, after)
        record = replace(
            _blank(run, attempt, wall, issues), wall_s=monotonic_s, machine={"before": before, "after": after}
        )
        energy_before, energy_after = before.get("energy_j"), after.get("energy_j")
        if energy_before is not None and energy_after is not None and energy_after >= energy_before:  # it wraps around
            record = replace(record, energy_j=energy_after - energy_before)
        if outcome is None:
            return record, ()
        record = _filled(record, outcome, check_outcome(arm, requests, outcome))
        return self._compared(record, outcome), outcome.cycles

    def _compared(self, record: RunRecord, outcome: Outcome) -> RunRecord:
        """Keep the text, and find where it leaves the workload's reference."""
        for sequence, raw in zip(record.sequences, outcome.sequences, strict=True):
            if sequence.token_sha256 is not None and raw.token_ids is not None:
                self._store.keep_tokens(sequence.token_sha256, raw.token_ids)
        if record.phase not in ("aa", "main") or not record.valid:
            return record
        reference = self._reference(record.workload)
        number = None if reference is None else differs(reference, record)
        if reference is None or number is None:
            return record
        at = None
        digest, ids = reference.sequences[number].token_sha256, outcome.sequences[number].token_ids
        known = None if digest is None else self._store.tokens(digest)
        if known is not None and ids is not None:
            at = first_difference(known, ids)
        return replace(record, diverged_at=at, diverged_seq=number)

    def _reference(self, workload: str) -> RunRecord | None:
        """Return the first valid run of the baseline on a workload."""
        mine = (record for record in self.records if record.workload == workload and record.arm == self.plan.baseline)
        return next((record for record in mine if record.valid and record.phase in ("aa", "main")), None)

    def _reason_to_drop(self, arm: str) -> str | None:
        """Say why an arm is left out; None while it is not."""
        mine = [r for r in self._by_arm.get(arm, []) if not any(issue.code == "dropped" for issue in r.issues)]
        settle = [record for record in mine if record.phase == "settle"]
        if len(settle) == 2 and not any(record.valid for record in settle):
            return f"it failed when it was first started: {_why(settle[-1])}"
        last = mine[-_STRIKES:]
        if len(last) == _STRIKES and not any(record.valid for record in last):
            return f"{_STRIKES} runs in a row failed: {_why(last[-1])}"
        return None

    def _give_up_if_hopeless(self, run: PlannedRun) -> None:
        dropped = self._reason_to_drop(run.arm)
        if dropped is not None and run.arm == self.plan.baseline:
            raise _StopError(f"the baseline {run.arm!r} cannot be measured: {dropped}")
        if dropped is not None and all(
            self._reason_to_drop(arm.name) for arm in self.plan.arms if arm.name != self.plan.baseline
        ):
            raise _StopError(f"no arm is left to compare with the baseline; {run.arm!r}: {dropped}")
        # An arm that is left out is one decision, not many invalid runs; and a repetition is no second run.
        left_out = {arm for arm in self._by_arm if self._reason_to_drop(arm)}
        invalid = [record for record in self.records if not record.valid and record.arm not in left_out]
        n_invalid = len({record.index for record in invalid})
        if n_invalid > max(_MIN_INVALID, MAX_INVALID_SHARE * len(self.plan.runs)):
            raise _StopError(
                f"{n_invalid} runs are invalid, more than {MAX_INVALID_SHARE:.0%} of the {len(self.plan.runs)} planned;"
                f" the last one: {_why(invalid[-1])}"
            )

    def _expected_s(self, run: PlannedRun) -> float | None:
        """Return the median time of runs like this one; None before there is one."""
        times = self._times_s.get((run.workload, run.arm))
        if not times:
            times = [
                time for (workload, _), known in self._times_s.items() if workload == run.workload for time in known
            ]
        if not times:
            times = [time for known in self._times_s.values() for time in known]
        return statistics.median(times) if times else None

    def _eta_s(self, run: PlannedRun) -> float | None:
        known: dict[tuple[str, str], float | None] = {}
        total = 0.0
        for later in self.plan.runs[run.index :]:
            key = (later.workload, later.arm)
            if key not in known:
                known[key] = self._expected_s(later)
            total += known[key] or 0.0
        return total or None


class _OpenArm:
    """The one arm that is alive. Under process isolation it ends with its run."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._stack = ExitStack()
        self._key: tuple[str, int, int] | None = None
        self._process: ArmProcess | None = None

    def __enter__(self) -> _OpenArm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._key = self._process = None
        self._stack.close()

    def run(self, plan: Plan, arm: Arm, workload: Workload, requests: Sequence[Request]) -> Outcome:
        n_ctx, n_seq = workload.n_ctx, workload.n_seq
        if plan.isolation == "process":
            with self._started(arm, n_ctx, n_seq) as process:
                return process.run(requests, workload.warmup)
        n_ctx = max(other.n_ctx for other in plan.suite.workloads)
        if self._process is None or self._key != (arm.name, n_ctx, n_seq):
            self.close()
            self._process = self._stack.enter_context(self._started(arm, n_ctx, n_seq))
            self._key = arm.name, n_ctx, n_seq
        try:
            return self._process.run(requests, workload.warmup)
        except ArmError:
            self.close()
            raise

    def _started(self, arm: Arm, n_ctx: int, n_seq: int) -> AbstractContextManager[ArmProcess]:
        return self._launcher.open(arm, n_ctx=n_ctx, n_seq=n_seq)


def _is_gate(run: PlannedRun) -> bool:
    """Tell whether a run comes before the comparison; the first two sentinel runs enclose the A/A pairs."""
    return run.phase != "main" and not (run.phase == "sentinel" and run.block > 1)


def _requests(run: PlannedRun, workload: Workload) -> tuple[Request, ...]:
    if run.phase == "control" and workload.control is not None:
        return (workload.control,)
    return workload.requests


def _blank(run: PlannedRun, attempt: int, wall: float, issues: Sequence[Issue]) -> RunRecord:
    return RunRecord(
        index=run.index,
        attempt=attempt,
        phase=run.phase,
        workload=run.workload,
        arm=run.arm,
        block=run.block,
        position=run.position,
        side=run.side,
        started_utc=datetime.datetime.fromtimestamp(wall, datetime.timezone.utc).isoformat(timespec="milliseconds"),
        wall_s=0.0,
        issues=tuple(issues),
    )


def _filled(record: RunRecord, outcome: Outcome, issues: Sequence[Issue]) -> RunRecord:
    engine, client = decode_speeds(outcome.sequences)
    prefills = [raw for raw in outcome.sequences if raw.prefill_ms]
    prefill_ms = sum(raw.prefill_ms or 0.0 for raw in prefills)
    widths: dict[str, int] = {}
    for cycle in outcome.cycles:
        widths[str(cycle.width)] = widths.get(str(cycle.width), 0) + 1
    return replace(
        record,
        issues=(*record.issues, *issues),
        sequences=tuple(sequence_record(raw) for raw in outcome.sequences),
        decode_tok_s=engine,
        client_tok_s=client,
        prefill_tok_s=1000.0 * sum(raw.n_prompt for raw in prefills) / prefill_ms if prefill_ms else None,
        ttft_ms=max((raw.ttft_ms for raw in outcome.sequences), default=None),
        spec=outcome.spec,
        widths=widths,
        peak_rss_bytes=outcome.peak_rss_bytes,
    )


def _detail(error: ArmError) -> str:
    return "\n".join([error.seen, *error.native_log])


def _why(record: RunRecord) -> str:
    return "; ".join(f"{issue.code}: {issue.detail.splitlines()[0]}" for issue in record.issues)
