"""The same bits where the paths of one row and of several are likeliest to part.

Around the cache's padding and its last cell, with any number of rows per expert, with any number of threads, and
against a session that never had a draft block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from _cells import Cell
from _decoding import N_TOKENS, SPEC, check, decode_from, differences, open_session, prefill

from pylucebox.testing import TinySpec

ModelFile = Callable[[TinySpec], Path]

EVERY_WIDTH = [(width,) for width in range(2, 9)]


# 256: caches are read in multiples of it, and flash attention takes pieces of it; the tokens cross the bound
@pytest.mark.parametrize("flash_attn", [True, False], ids=["fa", "nofa"])
@pytest.mark.parametrize("n_prompt", [256 - 12, 512 - 13, 1024 - 11])
def test_across_the_padding_of_the_cache(model_file: ModelFile, n_prompt: int, flash_attn: bool) -> None:
    cell = Cell(weight_type="f16", flash_attn=flash_attn, n_prompt=n_prompt)
    check(cell, model_file(replace(SPEC, weight_type=cell.weight_type)), EVERY_WIDTH)


# more than 16 pieces of 256 cells: pieces grow from 256 to 512 cells between two rows of a batch
def test_where_the_pieces_of_flash_attention_grow(model_file: ModelFile) -> None:
    cell = Cell(weight_type="f32", n_prompt=16 * 256 - 12)
    check(cell, model_file(replace(SPEC, n_ctx_train=8192)), [(3,), (8,)])


@pytest.mark.parametrize("n_seq", [1, 4])
def test_on_the_last_cells_of_a_full_context(model_file: ModelFile, n_seq: int) -> None:
    # 512 is a multiple of 256, so no cell is spare; the last token is sampled but not in the cache
    cell = Cell(weight_type="q4_0", n_seq=n_seq, n_prompt=512 - N_TOKENS)
    widths = EVERY_WIDTH if n_seq == 1 else [(2, 2, 2, 2), (5, 1, 1, 1)]
    check(cell, model_file(replace(SPEC, weight_type=cell.weight_type)), widths, n_ctx=512)


# every row to every expert; one expert a row; experts with one, few and no rows
@pytest.mark.parametrize(("n_expert", "n_expert_used"), [(2, 2), (8, 1), (16, 4)])
@pytest.mark.parametrize("weight_type", ["f32", "q4_0", "q4_K", "iq4_xs"])
def test_with_any_number_of_rows_per_expert(
    model_file: ModelFile, weight_type: str, n_expert: int, n_expert_used: int
) -> None:
    spec = replace(SPEC, weight_type=weight_type, n_expert=n_expert, n_expert_used=n_expert_used)
    check(Cell(weight_type=weight_type), model_file(spec), EVERY_WIDTH)


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "f32"])
def test_decoding_has_the_same_bits_with_another_number_of_threads(model_file: ModelFile, cache_type: str) -> None:
    """Only decoding is compared: prefill, whose kernels may share work out by threads, has one in all sessions."""
    path = model_file(replace(SPEC, weight_type="q8_0"))
    cell = Cell(weight_type="q8_0", cache_type=cache_type, n_prompt=800)
    found = {}
    for n_threads in (1, 2):
        with open_session(replace(cell, n_threads=n_threads), path, n_threads_batch=1) as (model, session):
            prefill(cell, model, session, 0)
            state = session.state_save(0)
            found[n_threads] = [decode_from(session, [state], (width,))[0] for width in (1, 2)]
    for trace, plain in zip(found[2], found[1], strict=True):
        assert not differences(trace, plain)


@pytest.mark.parametrize("n_prompt", [16, 2200])
@pytest.mark.parametrize("weight_type", ["f32", "q4_K"])
def test_a_session_without_draft_block_has_the_same_bits(
    model_file: ModelFile, weight_type: str, n_prompt: int
) -> None:
    """Prefill is wide in both, and stays the same with drafts on and off."""
    path = model_file(replace(SPEC, weight_type=weight_type))
    cell = Cell(weight_type=weight_type, n_prompt=n_prompt)
    found = []
    for max_width in (1, 8):
        with open_session(cell, path, max_width=max_width) as (model, session):
            first = prefill(cell, model, session, 0)
            (trace,) = decode_from(session, [session.state_save(0)], (max_width,))
            trace.rows.insert(0, first)
            found.append(trace)
    assert not differences(found[1], found[0])


def test_the_comparison_sees_one_bit(model_file: ModelFile) -> None:
    cell = Cell(weight_type="f32")
    with open_session(cell, model_file(SPEC)) as (model, session):
        prefill(cell, model, session, 0)
        (trace,) = decode_from(session, [session.state_save(0)], (1,))
    state = bytearray(trace.state)
    state[len(state) // 2] ^= 1
    assert differences(replace(trace, state=bytes(state)), trace)
    token, digest = trace.rows[-1]
    assert differences(replace(trace, rows=[*trace.rows[:-1], (token, digest[:-1] + "?")]), trace)
