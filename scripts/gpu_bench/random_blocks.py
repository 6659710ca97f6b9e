"""Random weights as stored: blocks of random bits whose scales are set, in any of the types that are measured.

What a kernel takes does not depend on the weights, so nothing has to be quantised: a model of gigabytes is written as
fast as the disk takes it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

__all__ = ["BLOCKS", "random_rows"]

N_PATTERN_BYTES: Final = 1 << 22
"""Random bytes made for a tensor, which are then repeated: far more than a row, and quick to make."""


@dataclass(frozen=True)
class Block:
    """A stored block: its values and bytes, where its half-precision scales are, and the value of each.

    Scales are for weights of deviation 1. Those of q4_K are chosen so that the mean is zero.
    """

    n_values: int
    n_bytes: int
    scales: tuple[tuple[int, float], ...]


BLOCKS: Final = {
    "f16": Block(1, 2, ()),
    "q8_0": Block(32, 34, ((0, 1 / 74),)),
    "q4_K": Block(256, 144, ((0, 1 / 257), (2, 7.5 / 257))),
    "q6_K": Block(256, 210, ((208, 1 / 1370),)),
    "iq4_xs": Block(256, 136, ((0, 1 / 1300),)),
    "iq3_s": Block(256, 110, ((0, 1 / 160),)),
}
"""By type; offsets are those of the structs in ggml-common.h."""


@cache
def random_rows(name: str, type_name: str, n_per_row: int, deviation: float) -> Callable[[int, int], bytes]:
    """Return a function that gives the stored bytes of rows ``first`` to ``first + count``.

    Parameters
    ----------
    name
        Seed of the random bits; tensors that share it share them.
    type_name
        A key of `BLOCKS`.
    n_per_row
        Values of a row, a whole number of blocks.
    deviation
        Of the weights.
    """
    block = BLOCKS[type_name]
    row_bytes = n_per_row // block.n_values * block.n_bytes
    n_rows = max(1, N_PATTERN_BYTES // row_bytes)
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if type_name == "f16":
        values = random.standard_normal(n_rows * n_per_row, np.float32) * deviation
        pattern = values.astype("<f2").tobytes()
    else:
        blocks = random.integers(0, 256, (n_rows * row_bytes // block.n_bytes, block.n_bytes), np.uint8)
        for offset, scale in block.scales:
            blocks[:, offset : offset + 2] = np.frombuffer(np.float16(scale * deviation).tobytes(), np.uint8)
        pattern = blocks.tobytes()

    def rows(first: int, count: int) -> bytes:
        begin = first % n_rows
        n_repeats = -(-(begin + count) // n_rows)
        return (pattern * n_repeats)[begin * row_bytes : (begin + count) * row_bytes]

    return rows
