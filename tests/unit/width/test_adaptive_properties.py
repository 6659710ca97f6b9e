"""What holds of the adaptive policy whatever happens."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

pytest.importorskip("hypothesis")

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pylucebox.width import AdaptiveWidth, CycleContext, CycleObservation, FixedWidth, WidthCosts
from pylucebox.width.choice import best_of, rates_of, worth_verifying
from pylucebox.width.costs import CostModel

from ._drive import FLAT, MACHINES, MIDDLE, STEEP, StoppedClock, Text, drive, text

FEW = settings(max_examples=25, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
MANY = settings(max_examples=100, deadline=None, derandomize=True)

chances = st.floats(0.0, 1.0)
machines = st.builds(
    lambda plain, rows, draft, reject: WidthCosts(
        verify_us=tuple(plain * (1 + sum(rows[:n])) for n in range(8)),
        draft_us=tuple(plain * draft * n for n in range(1, 8)),
        reject_us=plain * reject,
        mtp_prefill_us_per_token=0.0,
        n_past=0,
        source="sweep",
    ),
    st.floats(500.0, 100_000.0),
    st.lists(st.floats(0.0, 1.0), min_size=7, max_size=7),
    st.floats(0.01, 0.5),
    st.floats(0.0, 0.3),
)


@MANY
@given(
    machine=st.none() | machines,
    contexts=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=60),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_plan_is_above_a_cap(machine: WidthCosts | None, contexts: list[tuple[int, int, int]], seed: int) -> None:
    rng = random.Random(seed)
    policy = AdaptiveWidth(machine, clock=lambda: rng.randrange(10**9))  # a clock gone mad as well
    policy.begin(4, 8)
    for n_active, n_left, max_width in contexts:
        runs = []
        for seq in range(n_active):
            context = CycleContext(seq, rng.randrange(200_000), n_left, max_width, n_active)
            width, n_draft, asks = policy.plan(seq, context)
            probs = [rng.choice((0.0, 1.0, rng.random())) for _ in range(7)]
            while asks:
                width, n_more = policy.decide(seq, probs[:n_draft])
                n_draft += n_more
                asks = n_more > 0
            assert 1 <= width <= min(max_width, n_left)
            assert width - 1 <= n_draft <= min(7, max_width - 1, n_left - 1)
            runs.append((seq, width, n_draft, probs[:n_draft]))
        n_rows = sum(width for _, width, _, _ in runs)
        assert n_rows <= 8
        if rng.random() < 0.2:
            continue  # cancelled
        for seq, width, n_draft, probs in runs:
            held = rng.randint(0, width - 1)
            policy.observe(
                seq,
                CycleObservation(
                    seq=seq, width=width, n_drafted=n_draft, n_accepted=held,
                    draft_probs=tuple(probs) if rng.random() < 0.9 else (),
                    draft_us=rng.randrange(10**6), verify_us=rng.randrange(10**7), rollback_us=rng.randrange(10**6),
                    n_rows=n_rows, graph_built=rng.random() < 0.1, n_active=n_active,
                    draft_tokens=tuple(rng.randrange(3) for _ in range(n_draft)) if rng.random() < 0.9 else (),
                    tokens=tuple(rng.randrange(3) for _ in range(held + 1)) if rng.random() < 0.9 else (),
                    shared_prefill=rng.random() < 0.1,
                ),
            )  # fmt: skip
    json.dumps(policy.telemetry().as_dict(), allow_nan=False)
    json.dumps(policy.snapshot(), allow_nan=False)


@MANY
@given(
    machine=machines,
    low=st.lists(chances, min_size=7, max_size=7),
    better=st.lists(chances, min_size=7, max_size=7),
)
def test_counting_never_narrows_when_drafts_hold_more_often(
    machine: WidthCosts, low: list[float], better: list[float]
) -> None:
    prices = CostModel(WidthCosts.from_dict({**machine.as_dict(), "reject_us": 0.0})).prices
    high = [a + (1.0 - a) * b for a, b in zip(low, better, strict=True)]
    nobody = 99  # no present choice to stick to
    worse, best = (best_of(rates_of(rates, 7, prices), nobody) for rates in (low, high))
    gain = rates_of(high, 7, prices)
    assert best >= worse or gain[best] == pytest.approx(gain[worse])


@MANY
@given(machine=machines, share=st.lists(chances, min_size=7, max_size=7))
def test_fewer_drafts_are_verified_when_time_is_dearer(machine: WidthCosts, share: list[float]) -> None:
    prices = CostModel(machine).prices
    verified = [worth_verifying(share, prices, factor / prices.verify[0], 4.0) for factor in (1.0, 1.5, 2.0, 4.0)]
    assert all(a >= b for a, b in pairwise(verified)), prices


@MANY
@given(
    machine=machines, share=st.lists(chances, min_size=7, max_size=7), better=st.lists(chances, min_size=7, max_size=7)
)
def test_more_drafts_are_verified_when_they_are_surer(
    machine: WidthCosts, share: list[float], better: list[float]
) -> None:
    prices = CostModel(machine).prices
    surer = [a + (1.0 - a) * b for a, b in zip(share, better, strict=True)]
    wanted = [worth_verifying(chances, prices, 1.0 / prices.verify[0], 4.0) for chances in (share, surer)]
    assert wanted[0] <= wanted[1]


@FEW
@given(
    machine=machines,
    said=st.lists(st.tuples(st.integers(20, 200), chances), min_size=1, max_size=5),
    telling=st.booleans(),
    seed=st.integers(0, 99),
)
def test_ledger_bounds_the_loss_on_any_text(
    machine: WidthCosts, said: list[tuple[int, float]], telling: bool, seed: int
) -> None:
    spoken = text(*said, seed=seed, telling=telling)
    ran = drive(AdaptiveWidth(machine, clock=StoppedClock()), spoken, machine)
    off = drive(FixedWidth(1), spoken, machine)
    # Prices of the policy are rounded to microseconds and shrunk to a line.
    assert ran.us <= 1.001 * (1.02 * off.us + 4 * machine.verify_us[0])


@FEW
@given(name=st.sampled_from(sorted(MACHINES)), seed=st.integers(0, 99), length=st.integers(50, 900))
def test_ledger_bounds_the_loss_against_an_adversary(name: str, seed: int, length: int) -> None:
    """Drafts hold while the policy does not verify them, and fail as soon as it does."""
    machine, rng = MACHINES[name], random.Random(seed)
    policy = AdaptiveWidth(machine, clock=StoppedClock())
    policy.begin(1, 8)
    us, at = 0.0, 0
    while at < length:
        left = length - at
        width, n_draft, asks = policy.plan(0, CycleContext(0, at, left, 8))
        probs = [rng.uniform(0.9, 0.99)] * 7
        while asks:
            width, n_more = policy.decide(0, probs[:n_draft])
            n_draft += n_more
            asks = n_more > 0
        took = (machine.draft_us[n_draft - 1] if n_draft else 0.0, machine.verify_us[width - 1])
        rejected = machine.reject_us if width > 1 else 0.0
        drafts = tuple(at + 1 + d if width == 1 else -1 for d in range(n_draft))
        policy.observe(
            0,
            CycleObservation(
                0, width, n_draft, 0, tuple(probs[:n_draft]), round(took[0]), round(took[1]), round(rejected), width,
                False, draft_tokens=drafts, tokens=(at + 1,),
            ),
        )  # fmt: skip
        us += sum(took) + rejected
        at += 1
        assert us <= 1.001 * machine.verify_us[0] * (1.02 * at + 4)


@FEW
@given(
    name=st.sampled_from(["steep", "middle", "flat", "cliff"]),
    hopeless=st.integers(50, 1500),
    seed=st.integers(0, 99),
    telling=st.booleans(),
)
def test_no_state_is_absorbing(name: str, hopeless: int, seed: int, telling: bool) -> None:
    machine = MACHINES[name]
    said = text((hopeless, 0.02), (500, 0.98), seed=seed, telling=telling)
    ran = drive(AdaptiveWidth(machine, clock=StoppedClock()), said, machine)
    late = ran.verified(hopeless + 350)
    assert sum(late) / len(late) > 2.0


@settings(FEW, max_examples=8)
@given(row=st.integers(1, 8), factor=st.floats(0.1, 20.0), seed=st.integers(0, 99))
def test_stale_or_planted_price_does_not_pin_the_choice(row: int, factor: float, seed: int) -> None:
    planted = list(MIDDLE.verify_us)
    planted[row - 1] *= factor
    policy = AdaptiveWidth(WidthCosts.from_dict({**MIDDLE.as_dict(), "verify_us": planted}), clock=StoppedClock())
    said = text((3600, 0.85), seed=seed)
    honest = AdaptiveWidth(MIDDLE, clock=StoppedClock())
    drive(honest, said, MIDDLE, start=0, end=2800)
    drive(policy, said, MIDDLE, start=0, end=2800)
    right = drive(honest, said, MIDDLE, begin=False, start=2800)
    assert drive(policy, said, MIDDLE, begin=False, start=2800).speed > 0.93 * right.speed


@FEW
@given(machine=machines, seed=st.integers(0, 99), chance=chances)
def test_state_survives_json(machine: WidthCosts, seed: int, chance: float) -> None:
    said = text((150, chance), seed=seed)
    policy = AdaptiveWidth(machine, clock=StoppedClock())
    drive(policy, said, machine, noise=0.05)
    again = AdaptiveWidth(clock=StoppedClock())
    again.load(json.loads(json.dumps(policy.snapshot())))
    assert again.snapshot() == policy.snapshot()


def test_texts_of_the_tests_are_what_they_say() -> None:
    said: Text = text((2000, 0.8))
    share = sum(row[0] for row in said.holds) / len(said)
    assert share == pytest.approx(0.8, abs=0.03)
    assert drive(FixedWidth(1), said, FLAT).n_tokens == 1999
    assert drive(FixedWidth(4), said, STEEP).us > 0
