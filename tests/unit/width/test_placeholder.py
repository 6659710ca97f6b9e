"""Width policies, run against simulated texts and costs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from pylucebox._errors import InvalidArgumentError
from pylucebox.width import (
    MAX_WIDTH,
    CycleContext,
    CycleObservation,
    FixedWidth,
    PlaceholderWidth,
    WidthPolicy,
)

# Microseconds of a cycle by width, index 0 is width 1.
STEEP = [47_000 + 19_400 * w for w in range(8)]  # a GPU whose verify rows are dear
FLAT = [10_000 + 300 * w for w in range(8)]  # rows for next to nothing
CLIFF = [10_000, 11_000, 12_000, 13_000, 30_000, 31_000, 32_000, 33_000]
DEAR = [1_000 * (1 + w) for w in range(8)]  # a row costs a whole step: nothing to gain, ever
COSTS = {"steep": STEEP, "flat": FLAT, "cliff": CLIFF, "dear": DEAR}


@dataclass
class Run:
    """A simulated generation: what it took, and the widths it used."""

    tokens: int = 0
    time_us: int = 0
    widths: list[int] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return self.tokens / self.time_us


def simulate(
    policy: WidthPolicy,
    hold: Callable[[int], float],
    cost: Sequence[int],
    *,
    n_tokens: int = 1500,
    max_width: int = 8,
    seed: int = 0,
    noise: float = 0.02,
    n_builds: int = 1,
    n_seq: int = 1,
) -> Run:
    """Generate `n_tokens` per sequence; a draft at token n holds with probability hold(n) if those before it held."""
    rng = random.Random(seed)
    run, builds = Run(), Counter[int]()
    made = [0] * n_seq
    policy.begin(n_seq, max_width)
    while active := [seq for seq in range(n_seq) if made[seq] < n_tokens]:
        widths = {}
        for seq in active:
            context = CycleContext(seq, 100 + made[seq], n_tokens - made[seq], max_width)
            widths[seq] = policy.choose(seq, context)
            assert 1 <= widths[seq] <= min(max_width, context.max_tokens_left)
        widest, n_rows = max(widths.values()), sum(widths.values())
        builds[widest] += 1
        built = builds[widest] <= n_builds
        took = int(cost[widest - 1] * rng.uniform(1 - noise, 1 + noise)) + cost[0] // 2 * built
        run.time_us += took
        run.widths.append(widest)
        for seq in active:
            n_drafted, n_accepted = widths[seq] - 1, 0
            while n_accepted < n_drafted and rng.random() < hold(made[seq]):
                n_accepted += 1
            made[seq] += n_accepted + 1
            run.tokens += n_accepted + 1
            drafts = (0.5,) * n_drafted
            policy.observe(
                seq,
                CycleObservation(
                    seq, widths[seq], n_drafted, n_accepted, drafts, took // 4, took - took // 4, 0, n_rows, built
                ),
            )
    return run


def always(probability: float) -> Callable[[int], float]:
    return lambda _: probability


def best_fixed(hold: Callable[[int], float], cost: Sequence[int]) -> float:
    return max(simulate(FixedWidth(width), hold, cost).speed for width in range(1, MAX_WIDTH + 1))


# ---- fixed


def test_fixed_width_keeps_within_the_limits_of_the_cycle() -> None:
    policy = FixedWidth(6)
    assert policy.choose(0, CycleContext(0, 0, 100, 8)) == 6
    assert policy.choose(0, CycleContext(0, 0, 3, 8)) == 3
    assert policy.choose(0, CycleContext(0, 0, 100, 4)) == 4
    assert policy.choose(0, CycleContext(0, 0, 0, 8)) == 1


@pytest.mark.parametrize("width", [0, 9, -1, 2.0, True, "4", None])
def test_fixed_width_out_of_range_is_refused(width: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        FixedWidth(width)  # type: ignore[arg-type]
    assert caught.value.argument == "width"


def test_both_policies_have_the_protocol() -> None:
    assert isinstance(FixedWidth(1), WidthPolicy)
    assert isinstance(PlaceholderWidth(), WidthPolicy)


# ---- placeholder


def test_cheap_drafts_that_hold_lead_to_the_widest_step() -> None:
    run = simulate(PlaceholderWidth(), always(0.98), FLAT)
    assert Counter(run.widths[20:]).most_common(1)[0][0] == 8
    assert run.speed > 0.9 * best_fixed(always(0.98), FLAT)


@pytest.mark.parametrize("hold", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("name", ["steep", "dear"])
def test_useless_drafts_lead_to_none_with_rare_trials(name: str, hold: float) -> None:
    run = simulate(PlaceholderWidth(), always(hold), COSTS[name])
    late = run.widths[100:]
    assert late.count(1) > 0.9 * len(late)
    assert late.count(1) < len(late), "trials must go on"


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("hold", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_long_generation_is_never_much_slower_than_without_drafts(name: str, hold: float) -> None:
    off = simulate(FixedWidth(1), always(hold), COSTS[name])
    for seed in range(3):
        run = simulate(PlaceholderWidth(), always(hold), COSTS[name], seed=seed)
        assert run.speed > 0.95 * off.speed


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("hold", [0.1, 0.5, 0.8, 0.95])
def test_speed_is_near_that_of_the_best_fixed_width(name: str, hold: float) -> None:
    best = best_fixed(always(hold), COSTS[name])
    speeds = [simulate(PlaceholderWidth(), always(hold), COSTS[name], seed=seed).speed for seed in range(3)]
    assert sum(speeds) / len(speeds) > 0.85 * best


def test_known_costs_spare_the_next_request_its_warm_up() -> None:
    policy = PlaceholderWidth()
    simulate(policy, always(0.0), STEEP, n_tokens=500)
    off = simulate(FixedWidth(1), always(0.0), STEEP, n_tokens=100, n_builds=0)
    again = simulate(policy, always(0.0), STEEP, n_tokens=100, n_builds=0)
    assert again.speed > 0.93 * off.speed


def test_verdict_on_one_text_does_not_bind_the_next_request() -> None:
    policy = PlaceholderWidth()
    simulate(policy, always(0.0), STEEP, n_tokens=1000)
    run = simulate(policy, always(0.95), STEEP, n_tokens=300, n_builds=0)
    assert run.speed > 1.3 * simulate(FixedWidth(1), always(0.95), STEEP, n_tokens=300, n_builds=0).speed


@pytest.mark.parametrize("name", ["steep", "flat", "cliff"])
@pytest.mark.parametrize("n_seq", [1, 3])
def test_text_that_becomes_easier_brings_drafts_back(name: str, n_seq: int) -> None:
    run = simulate(PlaceholderWidth(), lambda n: 0.0 if n < 500 else 0.97, COSTS[name], n_tokens=3000, n_seq=n_seq)
    assert sum(width > 1 for width in run.widths[-50:]) > 40


def test_text_that_becomes_harder_ends_drafts() -> None:
    run = simulate(PlaceholderWidth(), lambda n: 0.97 if n < 1000 else 0.0, STEEP, n_tokens=2000)
    assert run.widths[-300:].count(1) > 270


def test_trials_end_although_they_hold_when_the_width_cannot_win() -> None:
    run = simulate(PlaceholderWidth(), always(1.0), [1000, 1100, 1200, 1300, 9000, 9000, 9000, 9000])
    assert run.widths[30:].count(8) < 0.05 * len(run.widths)


def test_one_slow_cycle_does_not_change_the_choice() -> None:
    policy = PlaceholderWidth()
    simulate(policy, always(0.98), FLAT, n_builds=0)
    policy.observe(0, CycleObservation(0, 8, 7, 7, (), 0, 900_000, 0, 8, False))
    chosen = []
    for _ in range(40):
        width = policy.choose(0, CycleContext(0, 0, 100, 8))
        policy.observe(0, CycleObservation(0, width, width - 1, width - 1, (), 0, FLAT[width - 1], 0, width, False))
        chosen.append(width)
    assert chosen.count(8) > 35


def test_engine_that_builds_a_graph_in_every_cycle_does_not_stall_the_warm_up() -> None:
    run = simulate(PlaceholderWidth(), always(0.98), FLAT, n_builds=10**9)
    assert run.widths[30:].count(8) > 0.8 * len(run.widths[30:])


def test_engine_that_never_drafts_as_deep_as_asked_does_not_stall_the_choice() -> None:
    policy = PlaceholderWidth()
    policy.begin(1, 8)
    asked = []
    for _ in range(100):
        asked.append(policy.choose(0, CycleContext(0, 0, 100, 8)))
        width = min(asked[-1], 2)
        policy.observe(0, CycleObservation(0, width, width - 1, 0, (), 0, DEAR[width - 1], 0, width, False))
    assert asked[30:].count(1) > 60


@pytest.mark.parametrize("max_width", range(1, 9))
def test_limits_hold_for_every_widest_width(max_width: int) -> None:
    run = simulate(PlaceholderWidth(), always(0.9), FLAT, max_width=max_width, n_tokens=300)
    assert run.tokens == 300
    assert max(run.widths) == max_width  # each width was at least tried


def test_sequences_of_a_batch_share_one_width() -> None:
    policy = PlaceholderWidth()
    policy.begin(4, 8)
    rng = random.Random(5)
    for _ in range(200):
        chosen = {policy.choose(seq, CycleContext(seq, 0, 100, 8)) for seq in range(4)}
        assert len(chosen) == 1
        width = chosen.pop()
        for seq in range(4):
            n_accepted = rng.randrange(width)
            policy.observe(seq, CycleObservation(seq, width, width - 1, n_accepted, (), 1, 9_000, 0, 4 * width, False))


def test_batch_with_useless_drafts_goes_without() -> None:
    run = simulate(PlaceholderWidth(), always(0.05), STEEP, n_seq=3, n_tokens=600)
    assert run.widths[100:].count(1) > 0.9 * len(run.widths[100:])


def test_costs_of_another_number_of_sequences_are_measured_anew() -> None:
    policy = PlaceholderWidth()
    simulate(policy, always(0.98), FLAT)
    assert set(simulate(policy, always(0.98), FLAT, n_tokens=60, n_builds=0).widths[:4]) != {1, 2, 4, 8}
    assert simulate(policy, always(0.98), FLAT, n_tokens=60, n_builds=0, n_seq=4).widths[:4] == [1, 2, 4, 8]
