"""Deterministic orders of runs: which arm runs when, from a seed and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pylucebox.ab.records import PlannedRun

__all__ = ["ORDERS", "SENTINEL_PAIRS", "balanced_pairs", "block_orders", "lay_out", "williams_rows"]

ORDERS = ("abba", "random", "williams")

SENTINEL_PAIRS = 4
"""Pairs of the sentinel with itself: it is shorter than the workloads and may scatter more."""


def williams_rows(n: int) -> list[tuple[int, ...]]:
    """Return a Latin square in which every treatment follows every other equally often (E. J. Williams, 1949).

    Parameters
    ----------
    n
        Treatments, at least 1.

    Returns
    -------
    list of tuple
        `n` rows for even `n`. For odd `n` one square cannot do it: `n` rows and the same rows mirrored. Each half is
        Latin, so that after any multiple of `n` rows every treatment has been at every place equally often.
    """
    first = [(index // 2 + 1 if index % 2 else -(index // 2)) % n for index in range(n)]
    square = [tuple((treatment + shift) % n for treatment in first) for shift in range(n)]
    if n % 2 == 0 or n == 1:
        return square
    return [*square, *(row[::-1] for row in square)]


def block_orders(n_arms: int, n_blocks: int, order: str, rng: random.Random) -> list[tuple[int, ...]]:
    """Return the order of the arms in each block.

    Parameters
    ----------
    n_arms, n_blocks
        Sizes.
    order
        ``"abba"``: two arms alternate by the Thue-Morse sequence AB BA BA AB ..., which over 2**k blocks cancels drift
        of a degree below k, and starts with either by the seed; with more arms the same as ``"williams"``.
        ``"williams"``: rows of a Williams design, shuffled within each Latin half. ``"random"``: every block shuffled.
    rng
        Source of chance.
    """
    if order == "random":
        return [tuple(rng.sample(range(n_arms), n_arms)) for _ in range(n_blocks)]
    if n_arms == 2 and order == "abba":
        flip = rng.randrange(2)
        return [((0, 1), (1, 0))[(block.bit_count() + flip) % 2] for block in range(n_blocks)]
    rows: list[tuple[int, ...]] = []
    design = williams_rows(n_arms)
    halves = [design[start : start + n_arms] for start in range(0, len(design), n_arms)]
    while len(rows) < n_blocks:
        for half in rng.sample(halves, len(halves)):
            rows += rng.sample(half, n_arms)
    return rows[:n_blocks]


def balanced_pairs(n_pairs: int, n_arms: int) -> int:
    """Return `n_pairs` rounded up so that every arm is at every place of a block equally often."""
    return -(-n_pairs // n_arms) * n_arms


def lay_out(
    workloads: Sequence[str],
    arms: Sequence[str],
    *,
    n_pairs: int,
    n_aa: int,
    controls: Sequence[str],
    order: str,
    isolation: str,
    sentinel: tuple[str, str] | None,
    sentinel_every: int,
    seed: int,
) -> tuple[PlannedRun, ...]:
    """Lay out a whole session.

    Each arm is started once and the result thrown away; then come the baseline and the sentinel against themselves,
    and the controls of the digest, then the blocks. A block holds one workload with every arm once; all workloads have
    their block before any has its next one, so that a disturbance hits one pair of several workloads and not several
    pairs of one. Under
    ``"request"`` isolation an arm runs all workloads of a block in one process, one arm after the other.

    Parameters
    ----------
    workloads, arms
        Names; the baseline is the first arm.
    n_pairs, n_aa
        Blocks, and pairs of the baseline with itself, per workload.
    controls
        Workloads with a control request.
    order, seed
        See `block_orders`.
    isolation
        ``"process"`` or ``"request"``.
    sentinel
        Names of the sentinel's workload and arm, or None.
    sentinel_every
        Main runs between two sentinel runs.

    Returns
    -------
    tuple of PlannedRun
        In running order. The first part does not depend on `n_pairs`, so a session may decide on it later.
    """
    rng = random.Random(seed)
    start = [PlannedRun(index=0, phase="settle", workload=workloads[0], arm=arm) for arm in arms]
    watch = [] if sentinel is None else [PlannedRun(index=0, phase="sentinel", workload=sentinel[0], arm=sentinel[1])]
    gate = [
        PlannedRun(index=0, phase="aa", workload=name, arm=arms[0], block=block, position=position, side=side)
        for block in range(n_aa)
        for number, name in enumerate(workloads)
        for position, side in enumerate(((0, 1), (1, 0))[(block + number) % 2])
    ]
    if sentinel is not None:
        gate += [
            PlannedRun(
                index=0, phase="aa", workload=sentinel[0], arm=sentinel[1], block=block, position=side, side=side
            )
            for block in range(SENTINEL_PAIRS)
            for side in (0, 1)
        ]
    gate += [PlannedRun(index=0, phase="control", workload=name, arm=arms[0]) for name in controls]
    if isolation == "request":
        main = _arm_by_arm(workloads, arms, block_orders(len(arms), n_pairs, order, rng))
    else:
        orders = {name: block_orders(len(arms), n_pairs, order, rng) for name in workloads}
        main = _pair_by_pair(workloads, arms, orders, n_pairs)
    runs = [*start, *watch, *gate, *watch, *_watched(main, watch, sentinel_every)]
    return tuple(replace(run, index=index) for index, run in enumerate(_numbered(runs)))


def _pair_by_pair(
    workloads: Sequence[str], arms: Sequence[str], orders: dict[str, list[tuple[int, ...]]], n_pairs: int
) -> Iterator[PlannedRun]:
    for block in range(n_pairs):
        for name in workloads:
            for position, arm in enumerate(orders[name][block]):
                yield PlannedRun(index=0, phase="main", workload=name, arm=arms[arm], block=block, position=position)


def _arm_by_arm(workloads: Sequence[str], arms: Sequence[str], orders: list[tuple[int, ...]]) -> Iterator[PlannedRun]:
    for block, order in enumerate(orders):
        for position, arm in enumerate(order):
            for name in workloads:
                yield PlannedRun(index=0, phase="main", workload=name, arm=arms[arm], block=block, position=position)


def _watched(main: Iterator[PlannedRun], watch: list[PlannedRun], every: int) -> Iterator[PlannedRun]:
    """Put a sentinel run after every `every` runs and at the end, never between the runs of a pair."""
    since = 0
    pending = None
    for run in main:
        place = (run.workload, run.block)
        if since >= every and place != pending:
            yield from watch
            since = 0
        yield run
        since += 1
        pending = place
    if since:
        yield from watch


def _numbered(runs: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
    """Count the sentinel runs."""
    n_sentinels = 0
    for run in runs:
        if run.phase == "sentinel":
            yield replace(run, block=n_sentinels)
            n_sentinels += 1
        else:
            yield run
