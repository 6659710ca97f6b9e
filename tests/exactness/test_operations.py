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


def test_attention_skips_what_the_mask_bars() -> None:
    n_cells, dim = 3000, 64
    q, k, v = normal(2, 1, dim), normal(1, n_cells, dim, seed=1), normal(1, n_cells, dim, seed=2)
    chosen = np.sort(np.random.default_rng(3).permutation(n_cells)[:515])
    mask = np.full((1, n_cells), -np.inf, np.float32)
    mask[0, chosen] = 0
    sparse = Operations().attention(q, k, v, "f16", mask)
    keys, values = (x[0, chosen].astype(np.float16).astype(np.float64) for x in (k, v))
    weights = np.exp(q[:, 0] @ keys.T / 8)
    expected = weights @ values / weights.sum(axis=1, keepdims=True)
    assert np.abs(sparse - expected.ravel()).max() < 2e-6


@pytest.mark.parametrize("cells_are", ["implied", "in-order", "scattered"])
@pytest.mark.parametrize("n_pool", [60, 300, 1200])
def test_attention_to_named_cells_has_the_bits_of_a_mask(n_pool: int, cells_are: str) -> None:
    kpool, n_top, dim = 4, 32, 64
    n_cells = n_pool * kpool + 256
    draw = np.random.default_rng(4)
    q, k, v = normal(4, 8, dim), normal(2, n_cells, dim, seed=1), normal(2, n_cells, dim, seed=2)
    cells = draw.permutation(n_cells) if cells_are == "scattered" else np.roll(np.arange(n_cells), -40)
    pool_cells = cells[: n_pool * kpool].reshape(n_pool, kpool).astype(np.int32)
    pools = np.stack([np.sort(draw.permutation(n_pool)[:n_top]) for _ in range(8)]).astype(np.int32)
    # a row sees fewer pools than it had to select, the last one none, and 0 to 3 cells behind them
    ranges = np.array([[row, 0 if row == 7 else n_pool - 3 * row - 5, 40] for row in range(8)], np.int32)
    tail = np.full((8, kpool - 1), n_cells, np.int32)
    for row in range(8):
        tail[row, : row % kpool] = cells[n_pool * kpool + row : n_pool * kpool + row + row % kpool][::-1]
    mask = np.full((8, n_cells), -np.inf, np.float32)
    for row in range(8):
        first, n = ranges[row, :2]
        seen = pools[row][(pools[row] >= first) & (pools[row] < first + n)]
        mask[row, pool_cells[seen].ravel()] = 0
        mask[row, tail[row][tail[row] < n_cells]] = 0

    expected = np.concatenate([Operations().attention(q[:, i : i + 1], k, v, "f16", mask[i : i + 1]) for i in range(8)])
    for n_threads in (1, 3):
        operations = Operations(n_threads=n_threads)
        for width in (1, 3, 8):
            found = operations.attention_to_cells(
                q[:, :width],
                k,
                v,
                pools=pools[:width],
                pool_cells=None if cells_are == "implied" else pool_cells,
                pool_ranges=ranges[:width],
                tail=tail[:width],
            )
            assert found.tobytes() == expected[: len(found)].tobytes(), f"{width} rows, {n_threads} threads"


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("dim", [32, 128])
def test_delta_net(dim: int, n_threads: int) -> None:
    n_head, n_head_k = 4, 2
    q, k, v = (normal(8, heads, dim, seed=i) / dim**0.5 for i, heads in enumerate((n_head_k, n_head_k, n_head)))
    log_decay, beta = -np.abs(normal(8, n_head, 1, seed=3)), np.abs(normal(8, n_head, 1, seed=4)) / 4
    start = normal(n_head, dim, dim, seed=5)
    operations = Operations(n_threads=n_threads)

    def run(tokens: slice, state: Floats, n_snapshots: int) -> tuple[Floats, Floats]:
        inputs = {"q": q, "k": k, "v": v, "log_decay": log_decay, "beta": beta}
        of_tokens = {name: values[tokens] for name, values in inputs.items()}
        return operations.delta_net(**of_tokens, state=state, n_snapshots=n_snapshots)

    outputs, states, state = [], [], start
    for i in range(8):
        output, snapshots = run(slice(i, i + 1), state, 1)
        state = snapshots[0]
        outputs.append(output)
        states.append(state)
    for width in WIDTHS:
        for n_snapshots in (1, 3, 8):
            output, snapshots = run(slice(0, width), start, n_snapshots)
            assert output.tobytes() == np.concatenate(outputs[:width]).tobytes()
            for back, snapshot in enumerate(snapshots):
                assert snapshot.tobytes() == states[width - 1 - back].tobytes(), f"{back} tokens back"

    # the first step, by the definition
    of_head = [head % n_head_k for head in range(n_head)]
    decayed = start * np.exp(log_decay[0])[:, :, None]
    delta = (v[0] - np.einsum("hji,hi->hj", decayed, k[0, of_head])) * beta[0]
    expected = decayed + delta[:, :, None] * k[0, of_head][:, None, :]
    assert np.abs(states[0] - expected).max() < 1e-5
    assert np.abs(outputs[0][0] - np.einsum("hji,hi->hj", expected, q[0, of_head]) / dim**0.5).max() < 1e-5


@pytest.mark.parametrize("key_type", ["f32", "f16"])
@pytest.mark.parametrize("n_head", [2, 4, 6])
def test_index_scores(n_head: int, key_type: str) -> None:
    n_keys, dim = 200, 64
    q, keys = normal(20, n_head, dim), normal(n_keys, 1, dim, seed=1)
    weights = np.full((20, n_head), dim**-0.5, np.float32)
    mask = np.where(np.arange(n_keys) < 150 + np.arange(20)[:, None], np.float32(0), np.float32(-np.inf))
    single = [
        Operations().index_scores(q[i : i + 1], keys, key_type, weights[i : i + 1], mask[i : i + 1]) for i in range(20)
    ]
    for n_threads in (1, 3):
        for width in (2, 5, 8, 20):
            together = Operations(n_threads=n_threads).index_scores(
                q[:width], keys, key_type, weights[:width], mask[:width]
            )
            assert together.tobytes() == np.concatenate(single[:width]).tobytes(), f"{width} rows, {n_threads} threads"
    stored = keys[:, 0].astype(np.float16 if key_type == "f16" else np.float32).astype(np.float64)
    expected = np.maximum(q @ stored.T, 0).sum(axis=1) * dim**-0.5 + mask
    seen = mask == 0
    assert np.abs(np.concatenate(single)[seen] - expected[seen]).max() < 1e-5
    assert np.isneginf(np.concatenate(single)[~seen]).all()


@pytest.mark.parametrize("key_type", ["f32", "f16"])
@pytest.mark.parametrize("dim", [64, 20], ids=["vectors", "reference"])
def test_index_scores_in_ranges_are_those_with_a_mask(dim: int, key_type: str) -> None:
    n_rows, n_keys, n_head = 20, 203, 4
    q, keys = normal(n_rows, n_head, dim), normal(n_keys, 1, dim, seed=1)
    weights = np.full((n_rows, n_head), dim**-0.5, np.float32)
    # from and to anywhere within the keys that are scored together, and nothing at all
    ranges = np.array([[3 * row, 0 if row == 7 else n_keys - 9 * row, -1] for row in range(n_rows)], np.int32)
    at = np.arange(n_keys)
    seen = (at >= ranges[:, :1]) & (at < ranges[:, :1] + ranges[:, 1:2])
    mask = np.where(seen, np.float32(0), np.float32(-np.inf))
    for n_threads in (1, 3):
        operations = Operations(n_threads=n_threads)
        expected = operations.index_scores(q, keys, key_type, weights, mask)
        found = operations.index_scores_in_ranges(q, keys, key_type, weights, ranges)
        assert found.tobytes() == expected.tobytes()
        assert (np.isneginf(found) == ~seen).all()


@pytest.mark.parametrize("k", [1, 7, 64, 300])
def test_top_k_takes_the_first_of_equals(k: int) -> None:
    # many equal values, as rectified scores have them, and a tail that the mask bars
    values = np.maximum(np.round(normal(8, 300), 1), 0)
    values[:, 280:] = -np.inf
    found = Operations(n_threads=2).top_k(values, k)
    expected = np.sort(np.argsort(-values, axis=1, kind="stable")[:, :k], axis=1)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("n_channels", [20, 64])
@pytest.mark.parametrize("n_rows", [1, 3, 8, 30])
def test_convolution(n_rows: int, n_channels: int) -> None:
    x, taps = normal(n_channels, n_rows + 3), normal(n_channels, 4, seed=1)
    found = Operations(n_threads=2).convolution(x, taps)
    expected = np.stack([(x[:, i : i + 4] * taps).sum(axis=1) for i in range(n_rows)])
    assert np.abs(found - expected).max() < 1e-5
    single = np.concatenate([Operations().convolution(x[:, i : i + 4].copy(), taps) for i in range(n_rows)])
    assert single.tobytes() == found.tobytes()
