"""Each operation alone: several rows at once have the bits of each row, in every layout and with any number of threads.

A session shows a fault only where its model's shapes take the path that has it; here the shapes are chosen.
"""

from __future__ import annotations

import numpy as np
import pytest
from _cells import WEIGHT_TYPES
from _operations import Floats, Operations

WIDTHS = range(2, 9)
# repacked layouts exist for these on some processor; other types stay as they are
REPACKED = ("q4_0", "q4_K", "iq4_nl", "q8_0", "q6_K")


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(
    ("weight_type", "repack"),
    [*((name, False) for name in WEIGHT_TYPES), *((name, True) for name in REPACKED)],
    ids=str,
)
# outputs: repacked layouts want multiples of 8, tiles of 16 and more have remainders
@pytest.mark.parametrize(("n_in", "n_out"), [(256, 40), (1280, 64)])
def test_product(n_in: int, n_out: int, weight_type: str, repack: bool, n_threads: int) -> None:
    operations = Operations(n_threads=n_threads, repack=repack)
    weights, rows = normal(n_out, n_in), normal(8, n_in, seed=1)
    single = np.concatenate([operations.product(weights, weight_type, rows[i : i + 1]) for i in range(8)])
    for width in WIDTHS:
        together = operations.product(weights, weight_type, rows[:width])
        assert together.tobytes() == single[: len(together)].tobytes(), f"{width} rows"
    reference = rows @ weights.T
    assert np.abs(single - reference.ravel()).max() < 0.25 * np.abs(reference).max()


@pytest.mark.parametrize(
    ("weight_type", "repack"),
    [*((name, False) for name in WEIGHT_TYPES), *((name, True) for name in REPACKED)],
    ids=str,
)
@pytest.mark.parametrize("n_used", [1, 2, 4])
def test_product_with_experts(n_used: int, weight_type: str, repack: bool) -> None:
    operations = Operations(repack=repack)
    weights, rows = normal(4, 32, 256), normal(8, 1, 256, seed=1)
    order = np.random.default_rng(2)
    experts = np.stack([order.permutation(4)[:n_used] for _ in range(8)]).astype(np.int32)
    single = np.concatenate(
        [operations.expert_product(weights, weight_type, rows[i : i + 1], experts[i : i + 1]) for i in range(8)]
    )
    for width in WIDTHS:
        together = operations.expert_product(weights, weight_type, rows[:width], experts[:width])
        assert together.tobytes() == single[: len(together)].tobytes(), f"{width} rows"


@pytest.mark.parametrize("cache_type", ["f32", "f16", "bf16", "q8_0"])
# a cache that is not cut, one of a few pieces, and one whose pieces are longer
@pytest.mark.parametrize("n_cells", [200, 1000, 4500])
def test_attention(n_cells: int, cache_type: str) -> None:
    n_head, n_head_kv, dim = 4, 2, 64
    q = normal(n_head, 8, dim)
    padded = n_cells + 256
    k, v = normal(n_head_kv, padded, dim, seed=1), normal(n_head_kv, padded, dim, seed=2)
    seen = np.arange(padded) < n_cells - 8 + np.arange(8)[:, None] + 1
    mask = np.where(seen & (np.random.default_rng(3).random((8, padded)) < 0.7), np.float32(0), np.float32(-np.inf))
    mask[np.arange(8), n_cells - 8 + np.arange(8)] = 0  # a row sees itself

    # alone, with no more padding than the cache of that row needs
    def alone(i: int) -> Floats:
        end = n_cells - 8 + i + 1
        end += -end % 8
        return Operations().attention(q[:, i : i + 1], k[:, :end], v[:, :end], cache_type, mask[i : i + 1, :end])

    single = np.concatenate([alone(i) for i in range(8)])
    for n_threads in (1, 2, 3):
        operations = Operations(n_threads=n_threads)
        for width in (1, 2, 5, 8):
            together = operations.attention(q[:, :width], k, v, cache_type, mask[:width])
            assert together.tobytes() == single[: len(together)].tobytes(), f"{width} rows, {n_threads} threads"
