"""The sweep over all widths, on a scripted session with scripted times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from _fake_session import FakeSession

from pylucebox._errors import DecodeError
from pylucebox._session import Ask, CycleTimes, SeqCycle
from pylucebox.calibration import SweepOptions, measure_costs

QUICK = SweepOptions(n_past=64)
REPLY = bytes(range(2, 250)) * 40


class TimedSession(FakeSession):
    """Takes 100 us a row and 10 us a draft more; the first cycle of a width builds its graph and takes much longer."""

    def __init__(self, *, n_ctx: int = 4096, holds: Callable[[int], bool] = lambda n: n % 2 == 0) -> None:
        super().__init__(REPLY, holds=holds, n_ctx=n_ctx)
        self.clock_us = 0
        self.seen: set[int] = set()
        self.spikes: Callable[[int], int] = lambda _n: 0
        self.prompts: list[int] = []

    def now(self) -> float:
        return self.clock_us / 1e6

    def prefill(self, seq: int, tokens: Sequence[int], sampler: Any, *, use_mtp: bool, progress: Any = None) -> Any:
        self.prompts.append(len(tokens))
        self.clock_us += (30 if use_mtp else 25) * len(tokens)
        return super().prefill(seq, tokens, sampler, use_mtp=use_mtp, progress=progress)

    def cycle(self, asks: Sequence[Ask]) -> tuple[list[SeqCycle], CycleTimes]:
        results, _ = super().cycle(asks)
        (result,) = results
        width = result.n_verified + 1
        is_new = width not in self.seen
        self.seen.add(width)
        verify_us = (1000 + 100 * width) * (10 if is_new else 1) + self.spikes(len(self.asked))
        rollback_us = 40 if result.n_accepted < result.n_verified else 15
        times = CycleTimes(10 * (width - 1), verify_us, 5, rollback_us, width, width, width - 1, is_new, False)
        self.clock_us += times.draft_us + verify_us + rollback_us
        return results, times


def test_figures_are_those_of_the_machine() -> None:
    session = TimedSession()
    costs = measure_costs(session, QUICK, clock=session.now)
    assert costs is not None
    assert costs.verify_us == tuple(1000.0 + 100 * width for width in range(1, 9))
    assert costs.draft_us == tuple(10.0 * n for n in range(1, 8))
    assert costs.reject_us == 25.0
    assert costs.mtp_prefill_us_per_token == pytest.approx(5.0)
    assert (costs.n_past, costs.source) == (64, "sweep")
    assert session.busy == []


def test_hiccups_of_the_machine_do_not_count() -> None:
    session = TimedSession()
    session.spikes = lambda n: 900_000 if n % 3 == 0 else 0
    costs = measure_costs(session, SweepOptions(n_past=64, enough_s=1e9, limit_s=1e9), clock=session.now)
    assert costs is not None
    assert costs.verify_us == tuple(1000.0 + 100 * width for width in range(1, 9))


def test_slow_machine_is_left_after_one_pass() -> None:
    session = TimedSession()
    session.spikes = lambda _n: 300_000
    costs = measure_costs(session, QUICK, clock=session.now)
    assert costs is not None
    timed = [asks[0].width for asks in session.asked]
    assert all(timed.count(width) == 2 for width in range(1, 9))  # one to build, one to time


def test_machine_that_takes_seconds_for_a_step_is_not_measured() -> None:
    session = TimedSession()
    session.spikes = lambda _n: 4_000_000
    assert measure_costs(session, QUICK, clock=session.now) is None
    assert session.now() < 36
    assert session.busy == []


@pytest.mark.parametrize("after", [1, 3, 10, 25])
def test_caller_can_end_it(after: int) -> None:
    session, seen = TimedSession(), []

    def go_on(fraction: float) -> bool:
        seen.append(fraction)
        return len(seen) < after

    assert measure_costs(session, QUICK, go_on, session.now) is None
    assert len(seen) == after
    assert seen == sorted(seen)
    assert 0 <= seen[0] <= seen[-1] <= 1
    assert session.busy == []


def test_abort_ends_it() -> None:
    session = TimedSession()
    session._on_call = lambda name: session.abort() if name == "cycle" and len(session.asked) == 9 else None
    assert measure_costs(session, QUICK, clock=session.now) is None


def test_graphs_that_are_built_every_time_are_what_it_costs() -> None:
    session = TimedSession()

    class Forgetful(set[int]):
        def add(self, element: int) -> None:
            """Keep nothing."""

    session.seen = Forgetful()
    costs = measure_costs(session, QUICK, clock=session.now)
    assert costs is not None
    assert costs.verify_us[0] == 11_000


@pytest.mark.parametrize("n_ctx", [16, 40, 100])
def test_small_contexts_start_again_when_they_are_full(n_ctx: int) -> None:
    session = TimedSession(n_ctx=n_ctx, holds=lambda _n: True)
    costs = measure_costs(session, SweepOptions(n_past=4096, limit_s=1e9, enough_s=1e9), clock=session.now)
    assert costs is not None
    assert costs.n_past == max(4, n_ctx - 32)
    assert costs.verify_us == tuple(1000.0 + 100 * width for width in range(1, 9))


def test_what_is_wrong_with_the_model_is_raised_and_leaves_the_sequence_clear() -> None:
    session = TimedSession()

    def fail(name: str) -> None:
        if name == "cycle":
            raise DecodeError("cannot run a cycle")

    session._on_call = fail
    with pytest.raises(DecodeError):
        measure_costs(session, QUICK, clock=session.now)
    assert session.busy == []
