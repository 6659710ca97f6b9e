"""Decode sequences of a cell in one way or another, and keep every bit that came out."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from _cells import Cell

from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask
from pylucebox.testing import K_QUANT_SPEC

GREEDY = SamplingParams(temperature=0, seed=0, ignore_eos=True)
N_TOKENS = 25
"""New tokens of a sequence: with the eighth of a width rejected now and then, three full cycles of the widest."""

SPEC = replace(K_QUANT_SPEC, kind="agree")
"""Nearly all drafts hold, so that nearly every row of every width is one whose logits can be compared."""

TEXT = "Counting: 1, 2, 3. It was a bright day, and {the clocks} were striking thirteen; "

# struct state_header of state.cpp: magic, version, n_past, last, use_mtp, n_waiting, n_embd_out, n_vocab, two sizes,
# checksum
_HEADER = struct.Struct("<IIiiIIIIQQQ")


@dataclass
class Trace:
    """What a sequence gave.

    Attributes
    ----------
    rows
        Each token with a digest of the logits that it was sampled from.
    state
        Attention, index and pooled keys, gated delta net, convolutions: all state of the trunk after the last token.
    n_held
        Of each cycle: the rows of the batch, and how many drafts held.
    """

    rows: list[tuple[int, str]] = field(default_factory=list)
    state: bytes = b""
    n_held: set[tuple[int, int]] = field(default_factory=set, compare=False)


@contextmanager
def open_session(
    cell: Cell, path: Path, *, max_width: int = 8, n_ctx: int | None = None, n_threads_batch: int | None = None
) -> Iterator[tuple[Model, NativeSession]]:
    """Open a cell's session on a model that has its draft block inside.

    `n_ctx` None gives room for a few tokens more than are decoded; `n_threads_batch` None is the cell's number.
    """
    model = Model(ModelOptions(path=path, mtp_in_file=max_width > 1, repack=cell.repack))
    try:
        options = SessionOptions(
            even_drafts=False,
            n_ctx=n_ctx or cell.n_prompt + N_TOKENS + 15,
            n_seq=cell.n_seq,
            n_threads=cell.n_threads,
            n_threads_batch=n_threads_batch or cell.n_threads,
            max_width=max_width,
            flash_attn=cell.flash_attn,
            cache_type_k=cell.cache_type,
            cache_type_v=cell.cache_type_v,
        )
        session = NativeSession(model, options)
        try:
            yield model, session
        finally:
            session.close()
    finally:
        model.close()


def prefill(cell: Cell, model: Model, session: NativeSession, seq: int) -> tuple[int, str]:
    """Run the prompt of a sequence; return its first token and the digest of the logits."""
    ids = model.tokenize(TEXT * (cell.n_prompt // len(TEXT) + 2), add_special=False, parse_special=False)
    ids = ids[seq : cell.n_prompt]
    token, _ = session.prefill(seq, ids, session.open_sampler(GREEDY, None), use_mtp=session.max_width > 1)
    return token, _digest(session, seq, 0)


def decode(session: NativeSession, widths: Sequence[int]) -> list[Trace]:
    """Decode all sequences together, each at its width; a width of 0 leaves a sequence out."""
    traces = [Trace() for _ in widths]
    while True:
        asks = [
            Ask(seq, width, N_TOKENS - len(trace.rows))
            for seq, (width, trace) in enumerate(zip(widths, traces, strict=True))
            if width and len(trace.rows) < N_TOKENS
        ]
        if not asks:
            break
        results, _ = session.cycle(asks)
        for result in results:
            trace = traces[result.seq]
            trace.rows += [(token, _digest(session, result.seq, row)) for row, token in enumerate(result.tokens)]
            trace.n_held.add((1 + result.n_verified, result.n_accepted))
    for seq, (width, trace) in enumerate(zip(widths, traces, strict=True)):
        if width:
            trace.state = trunk_state(session.state_save(seq))
    return traces


def decode_from(session: NativeSession, states: Sequence[bytes], widths: Sequence[int]) -> list[Trace]:
    """Put all sequences back to saved states and decode from there."""
    for seq, state in enumerate(states):
        session.state_load(seq, state, session.open_sampler(GREEDY, None))
    return decode(session, widths)


def differences(found: Trace, plain: Trace) -> str:
    """Say where a trace leaves that of one-by-one decoding, or return an empty text."""
    for i, (row, expected) in enumerate(zip(found.rows, plain.rows, strict=True)):
        if row != expected:
            return f"token {i}: {'other token' if row[0] != expected[0] else 'same token from other logits'}"
    if found.state != plain.state:
        at = next((i for i, (a, b) in enumerate(zip(found.state, plain.state, strict=False)) if a != b), "end")
        return f"state differs from byte {at} of {len(plain.state)} on"
    return ""


def check(cell: Cell, path: Path, groups: Sequence[tuple[int, ...]], n_ctx: int | None = None) -> None:
    """Compare sequences decoded in groups of rows with each of them decoded alone, token by token.

    Parameters
    ----------
    cell
        The setting.
    path
        The model.
    groups
        Widths to decode with, one for each sequence; 0 leaves a sequence out.
    n_ctx
        As `open_session` has it.

    Raises
    ------
    AssertionError
        A bit differs, or some width was never accepted whole, so that its last row was not compared.
    """
    with open_session(cell, path, n_ctx=n_ctx) as (model, session):
        states = []
        for seq in range(cell.n_seq):
            prefill(cell, model, session, seq)
            states.append(session.state_save(seq))
        alone = [tuple(int(i == seq) for i in range(cell.n_seq)) for seq in range(cell.n_seq)]
        plain = [decode_from(session, states, widths)[seq] for seq, widths in enumerate(alone)]

        wrong = {}
        for widths in groups:
            found = decode_from(session, states, widths)
            for seq, width in enumerate(widths):
                if width and (text := differences(found[seq], plain[seq])):
                    wrong[widths, seq] = text
                if width > 1:
                    assert (width, width - 1) in found[seq].n_held, f"the last row of {width} was never compared"
        assert not wrong, wrong


def trunk_state(state: bytes) -> bytes:
    """Return the trunk's part of a saved state; the MTP block's caches decide drafts only, never tokens."""
    *_, n_waiting, n_embd_out, _, trunk_bytes, _, _ = _HEADER.unpack_from(state)
    begin = _HEADER.size + n_waiting * (8 + 4 * n_embd_out)
    return state[begin : begin + trunk_bytes]


def _digest(session: NativeSession, seq: int, row: int) -> str:
    return hashlib.sha256(session.logits(seq, row).tobytes()).hexdigest()
