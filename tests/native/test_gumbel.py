"""The sampler that draws by the Gumbel-max rule: its noise bit by bit, its distribution, and what it depends on."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from _parity import shipped_pair

from pylucebox import InvalidArgumentError, SamplingParams
from pylucebox._model import Model, ModelOptions
from pylucebox._sampler import NativeSampler, gumbel_noise

_MASK = 0xFFFFFFFF
_KEY = 0x6C756365  # NOISE_KEY of gumbel_noise.h

Vector = "np.ndarray[Any, Any]"


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    """Philox4x32-10 as its paper defines it."""
    words, (k0, k1) = list(counter), key
    for _ in range(10):
        even, odd = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [(odd >> 32) ^ words[1] ^ k0, odd & _MASK, (even >> 32) ^ words[3] ^ k1, even & _MASK]
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return words


def exact_log(x: float) -> float:
    """The logarithm of gumbel_noise.h: Python's floats round each operation by itself."""
    mantissa, e = math.frexp(x)
    m, e = 2.0 * mantissa, e - 1
    if m > math.sqrt(2.0):
        m, e = m * 0.5, e + 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    z2 = z * z
    z4 = z2 * z2
    z8 = z4 * z4
    a = (1.0 + z * (1.0 / 3.0)) + z2 * (1.0 / 5.0 + z * (1.0 / 7.0))
    b = (1.0 / 9.0 + z * (1.0 / 11.0)) + z2 * (1.0 / 13.0 + z * (1.0 / 15.0))
    c = (1.0 / 17.0 + z * (1.0 / 19.0)) + z2 * (1.0 / 21.0)
    p = (a + z4 * b) + z8 * c
    high = e * float.fromhex("0x1.62e42p-1")
    low = e * float.fromhex("0x1.fdf473de6af28p-22")
    return high + (((2.0 * s) * p) + low)


def reference_noise(seed: int, position: int, token: int, draw: int = 0) -> float:
    word = philox((token // 4, position, draw, 0), (seed, _KEY))[token % 4]
    return -exact_log(-exact_log((word + 0.5) * 2.0**-32))


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    opened = Model(ModelOptions(path=shipped_pair().model))
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((_MASK,) * 4, (_MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_reference_generator_gives_the_published_vectors(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert tuple(philox(counter, key)) == words


@pytest.mark.parametrize(("seed", "position", "draw"), [(0, 0, 0), (1, 1, 0), (_MASK - 1, 262_143, 0), (77, 5000, 1)])
def test_the_noise_has_the_bits_of_the_reference(seed: int, position: int, draw: int) -> None:
    found = gumbel_noise(seed, position, 2000, draw=draw)
    wanted = [reference_noise(seed, position, token, draw) for token in range(2000)]
    assert struct.pack("<2000d", *found) == struct.pack("<2000d", *wanted)


def test_the_noise_has_the_bits_it_always_had() -> None:
    assert [value.hex() for value in gumbel_noise(1234, 56, 5)] == GOLDEN


def test_the_logarithm_is_that_of_the_library_to_the_last_digits() -> None:
    for word in (0, 1, 2, 3, 12345, 2**31 - 1, 2**31, 2**32 - 3, 2**32 - 2, 2**32 - 1):
        x = (word + 0.5) * 2.0**-32
        assert exact_log(x) == pytest.approx(math.log(x), rel=4e-16)


def test_the_noise_is_standard_gumbel() -> None:
    values = np.sort(np.concatenate([gumbel_noise(3, position, 4000) for position in range(50)]))
    cdf = np.exp(-np.exp(-values))
    n = len(values)
    steps = np.arange(n + 1) / n
    distance = max(float(np.max(steps[1:] - cdf)), float(np.max(cdf - steps[:-1])))
    assert distance * math.sqrt(n) < 1.95  # Kolmogorov: exceeded once in a thousand times


def chi_square_bound(n_free: int) -> float:
    """A bound that chi-square with so many degrees of freedom exceeds once in ten thousand times (Wilson, Hilferty)."""
    part = 2.0 / (9.0 * n_free)
    return n_free * (1.0 - part + 3.719 * math.sqrt(part)) ** 3


@pytest.mark.parametrize("shift", ["position", "seed", "token", "draw", "far position", "far seed"])
def test_the_noise_at_one_place_tells_nothing_of_that_at_another(shift: str) -> None:
    """Joint counts of 8 x 8 equally likely classes, over 40,000 pairs of neighbours in one direction."""
    n = 4000
    first, second = [], []
    for i in range(10):
        here = gumbel_noise(9, 100 + 2 * i, n)
        there = {
            "position": (9, 101 + 2 * i, 0),
            "seed": (10, 100 + 2 * i, 0),
            "token": (9, 100 + 2 * i, 0),
            "draw": (9, 100 + 2 * i, 1),
            "far position": (9, 100 + 2 * i + 2**17, 0),
            "far seed": (9 + 2**31, 100 + 2 * i, 0),
        }[shift]
        seed, position, draw = there
        other = gumbel_noise(seed, position, n, draw=draw)
        first.append(here)
        second.append(other[1:] + other[:1] if shift == "token" else other)
    classes = [
        np.minimum(7, np.floor(8 * np.exp(-np.exp(-np.concatenate(values)))).astype(int)) for values in (first, second)
    ]
    joint = np.zeros((8, 8))
    np.add.at(joint, tuple(classes), 1)
    expected = joint.sum() / 64
    assert float(((joint - expected) ** 2 / expected).sum()) < chi_square_bound(63)


SETTINGS = {
    "card": {"temperature": 1.0, "top_k": 20, "top_p": 0.95, "min_p": 0.0},
    "cool": {"temperature": 0.3, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "hot": {"temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "min-p": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.1},
    "sigma": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "top_n_sigma": 1.5},
    "typical": {"temperature": 1.0, "top_k": 30, "top_p": 1.0, "min_p": 0.0, "typical_p": 0.9},
    "xtc": {"temperature": 1.0, "top_k": 12, "top_p": 1.0, "min_p": 0.0, "xtc_probability": 0.5, "xtc_threshold": 0.1},
}
N_DRAWS = 12_000


def fixed_logits(n_vocab: int) -> Any:
    logits = np.random.default_rng(4).normal(-4.0, 1.0, n_vocab).astype(np.float32)
    logits[:40] = np.linspace(4.0, 0.0, 40)[np.random.default_rng(5).permutation(40)]
    return logits


def draws(model: Model, rng: str, seed: int, n: int, logits: Any, **settings: Any) -> list[int]:
    return NativeSampler(model, SamplingParams(seed=seed, sampler_rng=rng, **settings)).draw(logits, n)


@pytest.mark.parametrize("name", SETTINGS)
def test_draws_have_the_distribution_of_the_stock_sampler(model: Model, name: str) -> None:
    """Two-sample chi-square over tokens, and Kolmogorov-Smirnov over their cumulated shares."""
    logits = fixed_logits(model.info.n_vocab)
    counts = np.array(
        [
            np.bincount(draws(model, rng, seed, N_DRAWS, logits, **SETTINGS[name]), minlength=len(logits))
            for rng, seed in (("gumbel", 1), ("mt19937", 2))
        ],
        dtype=float,
    )
    order = np.argsort(-logits, kind="stable")
    counts = counts[:, order]
    distance = float(np.max(np.abs(np.diff(np.cumsum(counts, axis=1), axis=0)))) / N_DRAWS
    assert distance * math.sqrt(N_DRAWS / 2) < 1.95
    common = counts.sum(axis=0) >= 20
    table = np.column_stack([counts[:, common], counts[:, ~common].sum(axis=1)])
    table = table[:, table.sum(axis=0) > 0]
    assert len(table[0]) > 1
    statistic = float((np.diff(table, axis=0) ** 2 / table.sum(axis=0)).sum())
    assert statistic < chi_square_bound(len(table[0]) - 1)


def test_draws_have_the_distribution_of_the_softmax(model: Model) -> None:
    logits = fixed_logits(model.info.n_vocab)
    found = np.bincount(draws(model, "gumbel", 7, N_DRAWS, logits, **SETTINGS["hot"]), minlength=len(logits))
    wanted = np.exp(logits.astype(float) / 1.3)
    wanted *= N_DRAWS / wanted.sum()
    common = wanted >= 10
    found_rest, wanted_rest = found[~common].sum(), wanted[~common].sum()
    statistic = float(((found[common] - wanted[common]) ** 2 / wanted[common]).sum())
    statistic += float((found_rest - wanted_rest) ** 2 / wanted_rest)
    assert statistic < chi_square_bound(int(common.sum()))


def test_a_draw_is_the_token_with_the_highest_sum_of_logit_and_noise(model: Model) -> None:
    logits = fixed_logits(model.info.n_vocab)
    found = draws(model, "gumbel", 21, 50, logits, **SETTINGS["hot"])
    scaled = (logits / np.float32(1.3)).astype(float)
    wanted = [int(np.argmax(scaled + gumbel_noise(21, position, len(logits)))) for position in range(50)]
    assert found == wanted


def hard_logits(kind: str, n: int) -> Vector:
    """Logits that a search which makes noise for few tokens only could go wrong on."""
    random = np.random.default_rng(11)
    logits = random.normal(0.0, 2.5, n)
    if kind == "flat":
        logits = random.normal(0.0, 1e-3, n)
    elif kind == "ties":
        logits = random.integers(-2, 3, n).astype(float)
    elif kind == "one value":
        logits[:] = -3.0
    elif kind == "holes":
        logits[random.random(n) < 0.9] = -np.inf
    elif kind == "peaks of all blocks":
        logits[::128] += 20.0
    elif kind == "rising":
        logits = np.linspace(-12.0, 12.0, n)
    elif kind == "falling":
        logits = np.linspace(12.0, -12.0, n)
    elif kind == "barely in reach":
        logits[:] = -22.5
        logits[n // 2] = 0.0
    elif kind == "noise is lost in rounding":
        logits = random.choice([1e30, 1e30, 9.999e29, -3e38], n)
    elif kind == "far apart":
        logits = 10.0 ** random.uniform(-30, 30, n) * random.choice([-1, 1], n)
    return logits.astype(np.float32)


HARD = (
    "usual",
    "flat",
    "ties",
    "one value",
    "holes",
    "peaks of all blocks",
    "rising",
    "falling",
    "barely in reach",
    "noise is lost in rounding",
    "far apart",
)


@pytest.mark.parametrize("n_kept", ["all", "some, sorted"])
@pytest.mark.parametrize("kind", HARD)
def test_a_draw_is_that_of_the_plain_rule_whatever_the_logits(model: Model, kind: str, n_kept: str) -> None:
    logits = hard_logits(kind, model.info.n_vocab)
    top_k = 0 if n_kept == "all" else 1500
    found = draws(model, "gumbel", 31, 60, logits, temperature=1.0, top_k=top_k, top_p=1.0, min_p=0.0)
    scores = logits.astype(float)
    if top_k:
        scores[scores < np.sort(scores)[-top_k]] = -np.inf
    wanted = [int(np.argmax(scores + gumbel_noise(31, position, len(logits)))) for position in range(60)]
    # which of equal ones top-k keeps is its own affair, and its sort knows only one class of logits above 10
    if top_k and (np.count_nonzero(scores > -np.inf) > top_k or kind == "far apart"):
        assert all(logits[token] > -np.inf for token in found)
    else:
        assert found == wanted


@pytest.mark.parametrize("n_kept", [1, 2, 7, 8, 9, 31, 32, 33, 127, 128, 129])
def test_a_draw_is_that_of_the_plain_rule_from_few_tokens(model: Model, n_kept: int) -> None:
    """In one run that begins anywhere, and in any order."""
    n_vocab = model.info.n_vocab
    for first in (0, 1, 2, 3, 1021):
        logits = np.full(n_vocab, -np.inf, dtype=np.float32)
        logits[first : first + n_kept] = np.random.default_rng(first).normal(0.0, 2.0, n_kept)
        wanted = [int(np.argmax(logits + np.array(gumbel_noise(8, position, n_vocab)))) for position in range(40)]
        assert draws(model, "gumbel", 8, 40, logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) == wanted
        assert draws(model, "gumbel", 8, 40, logits, temperature=1.0, top_k=n_kept, top_p=1.0, min_p=0.0) == wanted


def test_a_draw_depends_on_its_position_and_not_on_the_draws_before(model: Model) -> None:
    logits = fixed_logits(model.info.n_vocab)
    sampler = NativeSampler(model, SamplingParams(seed=3, sampler_rng="gumbel"))
    sampler.draw(np.ascontiguousarray(logits[::-1]), 10)
    assert sampler.draw(logits, 10) == draws(model, "gumbel", 3, 20, logits)[10:]


def test_equal_logits_are_drawn_equally_often(model: Model) -> None:
    """Ties of logits are common (suppressed and padded tokens); they must not favour low or high ids."""
    logits = np.full(model.info.n_vocab, -np.inf, dtype=np.float32)
    logits[100:116] = 1.0
    found = np.bincount(draws(model, "gumbel", 5, 8000, logits, temperature=1.0), minlength=len(logits))[100:116]
    assert found.sum() == 8000
    assert float(((found - 500.0) ** 2 / 500.0).sum()) < chi_square_bound(15)


def test_the_generator_is_chosen_by_name_and_by_default(model: Model) -> None:
    assert NativeSampler(model, SamplingParams(seed=1)).rng == "gumbel"
    assert NativeSampler(model, SamplingParams(seed=1, sampler_rng="mt19937")).rng == "mt19937"
    assert NativeSampler(model, SamplingParams(seed=1, mirostat=2)).rng == "mt19937"
    assert NativeSampler(model, SamplingParams(seed=1, samplers=("top_k", "adaptive_p"))).rng == "mt19937"
    assert NativeSampler(model, SamplingParams(seed=1)).describe().endswith("gumbel ")


def test_logits_that_are_too_few_are_refused(model: Model) -> None:
    with pytest.raises(InvalidArgumentError, match="vocabulary has"):
        NativeSampler(model, SamplingParams(seed=1)).draw(np.zeros(3, dtype=np.float32), 1)


GOLDEN = [
    "0x1.59313420c5b75p+0",
    "-0x1.3dc4d572b4b5ap-1",
    "-0x1.9b4a44cd516ddp-1",
    "0x1.26130e0fa54f4p+0",
    "0x1.c9df48255ffe5p+0",
]
