"""The runner with arms and clocks that are told what to do: rules, repetitions, giving up, and going on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pylucebox.ab.errors import ArmError, SessionFileError
from pylucebox.ab.planner import Wishes
from pylucebox.ab.records import CycleRecord, Plan, RunRecord
from pylucebox.ab.runner import Runner
from pylucebox.ab.simulate import (
    Behaviour,
    ScriptedClock,
    SilentDisplay,
    SteadyMachine,
    StubLauncher,
    World,
    stub_plan,
)
from pylucebox.ab.store import DirectoryStore, MemoryStore, Store, load_session
from pylucebox.ab.verdict import summarise

ARMS = {"base": Behaviour(), "other": Behaviour(effect=0.1), "third": Behaviour()}
WISHES = Wishes(n_pairs=3, n_aa=1, seed=4, n_resamples=100)


@dataclass
class Bench:
    """A runner and everything around it."""

    arms: Mapping[str, Behaviour] = field(default_factory=lambda: ARMS)
    wishes: Wishes = WISHES
    n_workloads: int = 2
    before: Callable[[int], None] | None = None
    store: Store = field(default_factory=MemoryStore)
    machine: Any = field(default_factory=SteadyMachine)
    clock: ScriptedClock = field(default_factory=ScriptedClock)
    kept: Sequence[RunRecord] = ()

    def __post_init__(self) -> None:
        self.plan: Plan = stub_plan(self.arms, self.wishes, n_workloads=self.n_workloads)
        rng = random.Random(1)
        self.launcher = StubLauncher(self.clock, self.arms, World(), rng, len(self.plan.runs), self.before)
        self.runner = Runner(
            self.plan,
            launcher=self.launcher,
            store=self.store,
            clock=self.clock,
            machine=self.machine,
            display=SilentDisplay(),
            kept=self.kept,
        )

    @property
    def records(self) -> list[RunRecord]:
        return self.runner.records

    def codes(self) -> list[str]:
        return [issue.code for record in self.records for issue in record.issues]


def schedule(records: Sequence[RunRecord]) -> list[tuple[int, int, str, str]]:
    return [(record.index, record.attempt, record.workload, record.arm) for record in records]


def test_every_planned_run_is_made_once_and_in_order() -> None:
    bench = Bench()
    assert bench.runner.run() is None
    assert [record.index for record in bench.records] == list(range(len(bench.plan.runs)))
    assert all(record.valid for record in bench.records)
    assert {record.started_utc[:4] for record in bench.records} == {"2027"}


def test_invalid_run_is_kept_and_repeated_once_at_the_end_of_its_block() -> None:
    failed: list[int] = []

    def fail_once(number: int) -> None:
        if number == 12 and not failed:
            failed.append(number)
            raise ArmError(arm="x", code="timeout", seen="no answer")

    bench = Bench(before=fail_once)
    assert bench.runner.run() is None
    invalid = [record for record in bench.records if not record.valid]
    assert [(record.attempt, record.issues[0].code) for record in invalid] == [(0, "timeout")]
    again = [record for record in bench.records if record.attempt == 1]
    assert [record.index for record in again] == [invalid[0].index]
    assert again[0].valid
    place = bench.records.index(again[0])
    last_of_block = bench.records[place - 1]
    assert (last_of_block.workload, last_of_block.block) == (again[0].workload, again[0].block)
    following = bench.records[place + 1]
    assert (following.workload, following.block) != (again[0].workload, again[0].block)


def test_clock_that_jumps_invalidates_the_run_it_jumps_in() -> None:
    clock = ScriptedClock()
    jumped: list[int] = []

    def jump(number: int) -> None:
        if number == 10 and not jumped:
            jumped.append(number)
            clock.offset += 3600.0

    bench = Bench(clock=clock, before=jump)
    assert bench.runner.run() is None
    assert bench.codes() == ["clock_jump"]


def test_arm_that_cannot_be_started_is_left_out_and_the_others_go_on() -> None:
    bench = Bench(arms={**ARMS, "other": Behaviour(fails="not_healthy")})
    assert bench.runner.run() is None
    tried = [record for record in bench.records if record.arm == "other" and record.issues[0].code == "not_healthy"]
    assert [record.phase for record in tried] == ["settle", "settle"]
    summary = summarise(bench.plan, {}, bench.records)
    rows = {row.arm: row for workload in summary.workloads for row in workload.rows}
    assert rows["other"].verdict == "INVALID"
    assert "not_healthy" in rows["other"].reason
    assert rows["third"].n_pairs == 3
    assert summary.exit_code == 4


def test_baseline_that_cannot_be_started_ends_the_session_at_once() -> None:
    bench = Bench(arms={**ARMS, "base": Behaviour(fails="start_failed")})
    stopped = bench.runner.run()
    assert stopped is not None
    assert "baseline 'base'" in stopped
    assert "start_failed" in stopped
    assert [(record.phase, record.attempt) for record in bench.records] == [("settle", 0), ("settle", 1)]
    assert summarise(bench.plan, {}, bench.records, complete=False, stopped=stopped).exit_code == 4


def test_session_without_anything_left_to_compare_ends() -> None:
    bench = Bench(arms={"base": Behaviour(), "other": Behaviour(n_cached=2)})
    stopped = bench.runner.run()
    assert stopped is not None
    assert "no arm is left" in stopped
    assert set(bench.codes()) == {"cached_prompt"}


def test_arm_that_starts_to_fail_midway_is_left_out_after_three_failures() -> None:
    bench = Bench(wishes=replace(WISHES, n_pairs=6))
    behaviours = dict(ARMS)
    bench.launcher.behaviours = behaviours

    def break_down(number: int) -> None:
        if number == 20:
            behaviours["other"] = Behaviour(fails="died")

    bench.launcher.before = break_down
    assert bench.runner.run() is None
    codes = bench.codes()
    assert codes.count("died") == 3
    assert codes.count("dropped") > 0
    assert [record.valid for record in bench.records if record.arm == "third" and record.attempt == 0].count(False) == 0


def test_too_many_invalid_runs_end_the_session() -> None:
    n_calls = 0

    def fail_often(number: int) -> None:  # noqa: ARG001 - by calls, not by runs
        nonlocal n_calls
        n_calls += 1
        if n_calls > 8 and n_calls % 2:
            raise ArmError(arm="x", code="timeout", seen="no answer")

    bench = Bench(before=fail_often)
    stopped = bench.runner.run()
    assert stopped is not None
    assert "are invalid, more than 10%" in stopped


def test_time_limit_starts_no_run_that_would_exceed_it() -> None:
    bench = Bench(wishes=replace(WISHES, max_hours=0.005))
    stopped = bench.runner.run()
    assert stopped == "the time limit of 0.005 hours is reached"
    assert 5 < len(bench.records) < len(bench.plan.runs)
    assert bench.clock.now - 1000.0 <= 18.0


def test_baseline_that_does_not_repeat_its_text_invalidates_the_workload() -> None:
    bench = Bench()
    behaviours = dict(ARMS)
    bench.launcher.behaviours = behaviours

    def waver(number: int) -> None:
        if number == 15:
            behaviours["base"] = Behaviour(diverges_at=9)

    bench.launcher.before = waver
    bench.runner.run()
    rows = [row for w in summarise(bench.plan, {}, bench.records).workloads for row in w.rows]
    assert {row.verdict for row in rows} == {"INVALID"}
    assert all("does not repeat its own text" in row.reason for row in rows)
    assert any("at token 9" in row.reason for row in rows)


def test_control_that_changes_nothing_leaves_identity_open() -> None:
    bench = Bench()
    same = replace(
        bench.plan.suite,
        workloads=tuple(replace(w, control=w.requests[0]) for w in bench.plan.suite.workloads),
    )
    bench.runner.plan = replace(bench.plan, suite=same)
    bench.runner.run()
    summary = summarise(bench.runner.plan, {}, bench.records)
    assert all(workload.control.startswith("INCONCLUSIVE") for workload in summary.workloads)
    assert all(row.identity.startswith("inconclusive") for workload in summary.workloads for row in workload.rows)


class HotMachine:
    """Cools down by a degree per look, and heats up when told."""

    def __init__(self) -> None:
        self.temperature_c = 50.0

    def state(self) -> Mapping[str, Any]:
        self.temperature_c = max(50.0, self.temperature_c - 1.0)
        return {"temperature_c": self.temperature_c}


def test_cooldown_waits_for_the_temperature() -> None:
    machine = HotMachine()

    def heat(number: int) -> None:  # noqa: ARG001 - every run heats
        machine.temperature_c += 10.0

    bench = Bench(machine=machine, before=heat, wishes=replace(WISHES, cooldown="temp:+2C"))
    assert bench.runner.run() is None
    assert all(record.machine["before"]["temperature_c"] <= 52.0 for record in bench.records)


def test_machine_that_stays_hot_invalidates() -> None:
    machine = HotMachine()

    def overheat(number: int) -> None:  # noqa: ARG001 - every run overheats
        machine.temperature_c = 9000.0

    bench = Bench(machine=machine, before=overheat, wishes=replace(WISHES, cooldown="temp:+2C"))
    assert bench.runner.run() is not None
    assert "too_hot" in bench.codes()


def test_processor_limit_that_changes_invalidates() -> None:
    class Throttled:
        limit = 3000

        def state(self) -> Mapping[str, Any]:
            return {"cpu_limit_mhz": self.limit}

    machine = Throttled()
    bench = Bench(machine=machine)
    bench.launcher.before = lambda number: setattr(machine, "limit", 3000 if number != 9 else 1500)
    bench.runner.run()
    assert "clock_limit" in bench.codes()


def test_energy_is_the_difference_of_the_counter() -> None:
    class Counter:
        joules = 100.0

        def state(self) -> Mapping[str, Any]:
            self.joules += 2.5
            return {"energy_j": self.joules}

    bench = Bench(machine=Counter())
    bench.runner.run()
    assert {record.energy_j for record in bench.records} == {2.5}


def test_interrupt_ends_the_session_and_keeps_what_there_is() -> None:
    def interrupt(number: int) -> None:
        if number == 9:
            raise KeyboardInterrupt

    bench = Bench(before=interrupt)
    assert bench.runner.run() == "interrupted"
    assert len(bench.records) == 9


@pytest.mark.parametrize("cut", [0, 1, 5, 8, 13, 22])
def test_resumed_session_makes_the_same_runs(tmp_path: Path, cut: int) -> None:
    whole = Bench(arms={**ARMS, "other": Behaviour(effect=0.1, n_cached=0)})
    whole.runner.run()
    store = DirectoryStore(tmp_path / "session")
    part = Bench(store=store)
    store.write_plan(part.plan)
    store.write_json("env.json", {"schema": 1})

    def kill(number: int) -> None:
        if number == cut:
            raise SystemExit

    part.launcher.before = kill
    with pytest.raises(SystemExit):
        part.runner.run()
    found = load_session(tmp_path / "session")
    assert len(found.runs) == cut
    rest = Bench(store=store, kept=found.runs)
    assert rest.plan == found.plan
    assert rest.runner.run() is None
    assert schedule(rest.records) == schedule(whole.records)
    assert schedule(load_session(tmp_path / "session").runs) == schedule(whole.records)


def test_resumed_session_repeats_a_run_that_failed_just_before_it_stopped() -> None:
    n_calls = 0

    def fail_then_stop(number: int) -> None:  # noqa: ARG001 - by calls, not by runs
        nonlocal n_calls
        n_calls += 1
        if n_calls == 13:
            raise ArmError(arm="x", code="timeout", seen="no answer")
        if n_calls == 14:
            raise KeyboardInterrupt

    part = Bench(before=fail_then_stop)
    assert part.runner.run() == "interrupted"
    assert not part.records[-1].valid
    rest = Bench(kept=part.records)
    assert rest.runner.run() is None
    assert [record.index for record in rest.records if record.attempt == 1] == [part.records[-1].index]


def test_planned_pairs_are_kept_when_a_session_with_detect_is_resumed() -> None:
    wishes = Wishes(detect=0.03, n_aa=2, seed=4, n_resamples=100)
    store = MemoryStore()
    whole = Bench(wishes=wishes, store=store)
    assert whole.plan.n_pairs == 0
    whole.runner.run()
    assert store.plan is not None
    assert store.plan.n_pairs == whole.runner.plan.n_pairs > 0
    n_gate = len(whole.plan.runs)
    resumed = Bench(wishes=wishes, kept=whole.records[:n_gate])
    resumed.runner.run()
    assert schedule(resumed.records) == schedule(whole.records)


@dataclass
class FullStore(MemoryStore):
    """Has room for so many runs."""

    room: int = 7

    def append(self, record: RunRecord, cycles: Sequence[CycleRecord]) -> None:
        if len(self.records) >= self.room:
            raise SessionFileError("cannot write", path="runs.jsonl", seen="No space left on device")
        super().append(record, cycles)


def test_full_disk_is_an_error_and_not_a_verdict() -> None:
    store = FullStore()
    bench = Bench(store=store)
    with pytest.raises(SessionFileError, match="No space left"):
        bench.runner.run()
    assert len(store.records) == store.room


def test_request_isolation_runs_the_workloads_of_an_arm_together() -> None:
    bench = Bench(wishes=replace(WISHES, isolation="request"))
    assert bench.runner.run() is None
    main = [record for record in bench.records if record.phase == "main"]
    for start in range(0, len(main), bench.n_workloads):
        assert len({(record.arm, record.block) for record in main[start : start + bench.n_workloads]}) == 1
    assert summarise(bench.plan, {}, bench.records).isolation == "request"


@pytest.mark.parametrize(
    ("other", "verdict", "code"), [(Behaviour(), "UNRESOLVED", 0), (Behaviour(diverges_at=0), "DIVERGED", 2)]
)
def test_edges_are_compared_by_their_text_only(other: Behaviour, verdict: str, code: int) -> None:
    bench = Bench(arms={"base": Behaviour(), "other": other}, n_workloads=1)
    edge = replace(bench.plan.suite.workloads[0], kind="edges")
    one_token = replace(edge, requests=(replace(edge.requests[0], max_tokens=1),), control=None)
    bench.runner.plan = replace(bench.plan, suite=replace(bench.plan.suite, workloads=(one_token,)))
    assert bench.runner.run() is None
    summary = summarise(bench.runner.plan, {}, bench.records)
    [row] = summary.workloads[0].rows
    assert (row.verdict, row.p, summary.exit_code) == (verdict, None, code)
    assert summary.pooled[0].verdict == "INVALID"
