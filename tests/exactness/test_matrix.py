"""Up to eight rows of a sequence have the bits of its tokens decoded one by one: logits and all state.

Every test run takes cells in which each two values of the matrix meet; ``-m exactness_full`` takes every cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _cells import ALL_CELLS, QUICK_CELLS, Cell
from _decoding import SPEC, check

from pylucebox import InvalidArgumentError
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox.testing import TinySpec

ModelFile = Callable[[TinySpec], Path]

WIDTHS = {
    1: [(width,) for width in range(2, 9)],
    # at most eight rows together, so that no width is cut; all sequences, and some that rest
    4: [(1, 1, 1, 1), (2, 2, 2, 2), (5, 1, 1, 1), (1, 3, 1, 2), (0, 4, 0, 4), (0, 0, 8, 0)],
}


@pytest.mark.parametrize("cell", QUICK_CELLS, ids=str)
def test_rows_have_the_bits_of_one_by_one_decoding(model_file: ModelFile, cell: Cell) -> None:
    check(cell, model_file(replace(SPEC, weight_type=cell.weight_type)), WIDTHS[cell.n_seq])


@pytest.mark.exactness_full
@pytest.mark.parametrize("cell", [cell for cell in ALL_CELLS if cell not in QUICK_CELLS], ids=str)
def test_rows_have_the_bits_of_one_by_one_decoding_in_every_cell(model_file: ModelFile, cell: Cell) -> None:
    check(cell, model_file(replace(SPEC, weight_type=cell.weight_type)), WIDTHS[cell.n_seq])


@pytest.mark.parametrize(
    ("head_dim", "options", "reason"),
    [
        (64, {"flash_attn": False, "cache_type_v": "q8_0"}, "quantized V cache requires flash_attn"),
        (48, {"flash_attn": True, "cache_type_k": "q8_0"}, "block size 32 does not divide n_embd_head_k=48"),
        (48, {"flash_attn": True, "cache_type_v": "q8_0"}, "block size 32 does not divide n_embd_head_v=48"),
    ],
)
def test_caches_that_the_architecture_does_not_allow_are_refused_with_the_reason(
    model_file: ModelFile, head_dim: int, options: dict[str, Any], reason: str
) -> None:
    model = Model(ModelOptions(path=model_file(replace(SPEC, head_dim=head_dim)), mtp_in_file=True))
    with pytest.raises(InvalidArgumentError, match=reason):
        NativeSession(model, SessionOptions(n_ctx=256, **options))
