"""Orders of runs: balanced, deterministic, and complete."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from pylucebox._errors import InvalidArgumentError
from pylucebox.ab.errors import ComparisonError
from pylucebox.ab.planner import Wishes, build_plan, claim_note, default_aa, default_pairs, with_pairs_for
from pylucebox.ab.power import MIN_SAME_PAIRS, pairs_that_can_claim
from pylucebox.ab.records import Arm, PlannedRun
from pylucebox.ab.schedule import SENTINEL_PAIRS, balanced_pairs, block_orders, lay_out, williams_rows
from pylucebox.ab.simulate import Behaviour, stub_plan

ARMS = {name: Behaviour() for name in ("off", "k3", "adaptive")}


@pytest.mark.parametrize("n", range(1, 9))
def test_williams_rows_balance_places_and_neighbours(n: int) -> None:
    rows = williams_rows(n)
    for place in range(n):
        assert set(Counter(row[place] for row in rows).values()) == {len(rows) // n}
    follows = Counter(pair for row in rows for pair in pairwise(row))
    assert len(follows) == n * (n - 1)
    assert len(set(follows.values())) <= 1


@pytest.mark.parametrize(("order", "n_arms"), [("abba", 2), ("abba", 3), ("williams", 3), ("williams", 4)])
def test_every_arm_is_at_every_place_equally_often(order: str, n_arms: int) -> None:
    for seed in range(5):
        n_blocks = balanced_pairs(8, n_arms)
        orders = block_orders(n_arms, n_blocks, order, random.Random(seed))
        assert len(orders) == n_blocks
        for place in range(n_arms):
            assert set(Counter(row[place] for row in orders).values()) == {n_blocks // n_arms}


def test_two_arms_alternate_so_that_linear_drift_cancels() -> None:
    orders = block_orders(2, 8, "abba", random.Random(3))
    first, second = orders[0], orders[1]
    assert first != second
    assert orders == [first, second, second, first, second, first, first, second]
    drift = [(1 if row[0] == 0 else -1) * block for block, row in enumerate(orders)]
    assert sum(drift) == 0


def test_random_order_is_a_permutation_of_each_block_and_depends_on_the_seed() -> None:
    orders = [tuple(block_orders(4, 20, "random", random.Random(seed))) for seed in (1, 1, 2)]
    assert all(sorted(row) == [0, 1, 2, 3] for row in orders[0])
    assert orders[0] == orders[1] != orders[2]


def layout(n_pairs: int, seed: int = 1, isolation: str = "process") -> tuple[PlannedRun, ...]:
    return lay_out(
        ["a", "b"],
        ["off", "k3", "adaptive"],
        n_pairs=n_pairs,
        n_aa=2,
        controls=["a"],
        order="williams",
        isolation=isolation,
        sentinel=("sentinel", "off"),
        sentinel_every=4,
        seed=seed,
    )


@pytest.mark.parametrize("isolation", ["process", "request"])
def test_every_block_has_every_arm_once_on_every_workload(isolation: str) -> None:
    runs = layout(6, isolation=isolation)
    assert [run.index for run in runs] == list(range(len(runs)))
    main = Counter((run.workload, run.block, run.arm) for run in runs if run.phase == "main")
    assert set(main.values()) == {1}
    assert len(main) == 2 * 6 * 3
    same = Counter((run.workload, run.block, run.side) for run in runs if run.phase == "aa")
    assert same == Counter(
        (workload, block, side)
        for workload, n_pairs in (("a", 2), ("b", 2), ("sentinel", SENTINEL_PAIRS))
        for block in range(n_pairs)
        for side in range(2)
    )
    assert [run.workload for run in runs if run.phase == "control"] == ["a"]


def test_sentinels_enclose_the_session_and_never_split_a_pair() -> None:
    runs = layout(6)
    assert runs[-1].phase == "sentinel"
    assert [run.block for run in runs if run.phase == "sentinel"][:3] == [0, 1, 2]
    for before, run, after in zip(runs, runs[1:], runs[2:], strict=False):
        if run.phase == "sentinel" and after.phase == before.phase == "main":
            assert (before.workload, before.block) != (after.workload, after.block)


def test_what_comes_before_the_pairs_does_not_depend_on_their_number() -> None:
    few, many = layout(0), layout(9)
    assert many[: len(few)] == few
    assert {run.phase for run in few} == {"settle", "sentinel", "aa", "control"}


def test_plan_is_the_same_for_the_same_seed_only() -> None:
    plans = [stub_plan(ARMS, Wishes(seed=seed), n_workloads=2) for seed in (1, 1, 2)]
    assert plans[0].sha256 == plans[1].sha256 != plans[2].sha256


def test_default_pairs_allow_a_claim_in_every_row() -> None:
    for n_arms, n_workloads in ((2, 1), (2, 7), (3, 6), (4, 6), (3, 30)):
        n_rows = n_workloads * (n_arms - 1)
        n_pairs = default_pairs(n_rows, n_arms)
        assert n_pairs >= max(8, pairs_that_can_claim(n_rows))
        assert n_pairs % n_arms == 0


def test_note_says_when_no_claim_is_possible() -> None:
    plan = stub_plan(ARMS, Wishes(n_pairs=3), n_workloads=2)
    assert claim_note(plan, None).startswith("3 pairs cannot make a claim in a table of 4 rows")
    plan = stub_plan(ARMS, Wishes(), n_workloads=2)
    assert claim_note(plan, 0.008) == (
        "9 pairs find an effect of 1.8% in any one of 4 rows with 80% probability (a run scatters by 0.80%)."
    )


@pytest.mark.parametrize(
    ("detect", "seen"), [(0.012, "40 pairs find"), (0.001, "differences below 1.00% count as none")]
)
def test_planned_effect_that_is_too_small_is_refused_with_what_is_possible(detect: float, seen: str) -> None:
    plan = stub_plan(ARMS, Wishes(detect=detect), n_workloads=2)
    with pytest.raises(ComparisonError, match=seen):
        with_pairs_for(plan, 0.03)


@pytest.mark.parametrize(
    ("names", "baseline", "argument"),
    [
        (["a"], None, "arms"),
        (["a", "a"], None, "arms"),
        (["a", "b"], "c", "baseline"),
        (["a", "sentinel"], None, "arms"),
    ],
)
def test_arms_that_cannot_be_compared_are_refused(names: list[str], baseline: str | None, argument: str) -> None:
    suite = stub_plan(ARMS, Wishes()).suite
    arms = [Arm(name=name, kind="engine") for name in names]
    with pytest.raises(InvalidArgumentError) as caught:
        build_plan(arms, baseline, suite, Wishes())
    assert caught.value.argument == argument


def test_baseline_comes_first_whatever_the_order_of_the_arms() -> None:
    suite = stub_plan(ARMS, Wishes()).suite
    plan = build_plan([Arm(name=name, kind="engine") for name in ("x", "y", "z")], "y", suite, Wishes())
    assert [arm.name for arm in plan.arms] == ["y", "x", "z"]
    assert plan.rows == (("text-0", "x"), ("text-0", "z"))


@pytest.mark.parametrize(("n_workloads", "n_aa"), [(1, 12), (5, 3), (6, 2), (40, 2)])
def test_few_workloads_get_more_pairs_of_the_baseline_with_itself(n_workloads: int, n_aa: int) -> None:
    assert default_aa(n_workloads) == n_aa
    assert n_aa * n_workloads >= MIN_SAME_PAIRS
