"""What an arm reports of a run, before anybody judges it, and the figures that follow from it."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pylucebox.ab.codec import Record
from pylucebox.ab.records import BLOCK_TOKENS, CycleRecord, SequenceRecord

__all__ = [
    "Outcome",
    "RawSequence",
    "decode_speeds",
    "first_difference",
    "prefix_hashes",
    "sequence_record",
    "token_hash",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSequence(Record):
    """One request as it came back.

    Attributes
    ----------
    n_prompt, n_cached, n_tokens, finish_reason, prefill_ms, decode_ms, ttft_ms
        As in `SequenceRecord`.
    token_ids
        Ids; None when not told.
    text
        Text.
    begin_ms
        When the request was sent, milliseconds after the start of the measured interval.
    arrivals
        Per delivery: tokens so far, and its time in milliseconds after sending.
    """

    n_prompt: int
    n_tokens: int
    finish_reason: str
    text: str
    ttft_ms: float
    arrivals: tuple[tuple[int, float], ...]
    begin_ms: float = 0.0
    n_cached: int | None = None
    token_ids: tuple[int, ...] | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Record):
    """A run as it came back.

    Attributes
    ----------
    sequences
        One per request, in their order.
    cycles
        Empty when they are not told.
    spec
        As in `RunRecord`.
    peak_rss_bytes
        Largest memory of the process; None when unknown.
    """

    sequences: tuple[RawSequence, ...]
    cycles: tuple[CycleRecord, ...] = ()
    spec: dict[str, Any] | None = field(default=None)
    peak_rss_bytes: int | None = None


def token_hash(token_ids: Sequence[int]) -> str:
    """SHA-256, in hex, of ids as little-endian 32-bit integers, as `pylucebox.token_digest` has it."""
    return hashlib.sha256(b"".join(token.to_bytes(4, "little", signed=True) for token in token_ids)).hexdigest()


def prefix_hashes(token_ids: Sequence[int]) -> tuple[str, ...]:
    """First 16 hex digits of the hash of the first 64, 128, ... ids."""
    running = hashlib.sha256()
    out = []
    for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = token_ids[start : start + BLOCK_TOKENS]
        running.update(b"".join(token.to_bytes(4, "little", signed=True) for token in block))
        out.append(running.hexdigest()[:16])
    return tuple(out)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token in which two outputs differ; None when they are equal.

    An output that is a prefix of the other differs at its own length.
    """
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def _time_of(arrivals: Sequence[tuple[int, float]], n_tokens: float) -> float:
    """Time at which `n_tokens` tokens were there, taking those of one delivery as evenly spread."""
    index = bisect_left(arrivals, (n_tokens, float("-inf")))
    end_n, end_ms = arrivals[index]
    if index == 0 or end_n == n_tokens:
        return end_ms
    start_n, start_ms = arrivals[index - 1]
    return start_ms + (end_ms - start_ms) * (n_tokens - start_n) / (end_n - start_n)


def _block_ms(raw: RawSequence) -> tuple[float, ...]:
    """Return the times of tokens 64, 128, ... after the first one; none where they would only be interpolated."""
    if not raw.arrivals or len(raw.arrivals) <= raw.arrivals[-1][0] // BLOCK_TOKENS:
        return ()
    first_ms, last = raw.arrivals[0][1], raw.arrivals[-1][0]
    return tuple(
        round(_time_of(raw.arrivals, count) - first_ms, 4) for count in range(BLOCK_TOKENS, last + 1, BLOCK_TOKENS)
    )


def sequence_record(raw: RawSequence) -> SequenceRecord:
    """Return what is kept of a sequence in ``runs.jsonl``."""
    ids = raw.token_ids
    last_ms = raw.arrivals[-1][1] if raw.arrivals else raw.ttft_ms
    return SequenceRecord(
        n_prompt=raw.n_prompt,
        n_cached=raw.n_cached,
        n_tokens=raw.n_tokens,
        finish_reason=raw.finish_reason,
        token_sha256=None if ids is None else token_hash(ids),
        prefix_sha256=() if ids is None else prefix_hashes(ids),
        text_sha256=hashlib.sha256(raw.text.encode("utf-8", "surrogatepass")).hexdigest(),
        prefill_ms=raw.prefill_ms,
        ttft_ms=raw.ttft_ms,
        decode_ms=raw.decode_ms,
        decode_client_ms=last_ms - raw.ttft_ms,
        block_ms=_block_ms(raw),
    )


def decode_speeds(sequences: Sequence[RawSequence]) -> tuple[float | None, float | None]:
    """Decode speed on the engine's clock and on ours, tok/s.

    One sequence: the tokens after the first over the time after the first. Several: on the engine's clock the sum of
    their own speeds; on ours the tokens that arrived while all were active over that time, or, when there was no such
    time, all tokens over the time from the first to the last.
    """
    own = [
        1000.0 * (raw.n_tokens - 1) / raw.decode_ms if raw.decode_ms and raw.n_tokens > 1 else None for raw in sequences
    ]
    engine = None if not own or None in own else sum(speed for speed in own if speed is not None)
    return engine, _client_speed(sequences)


def _client_speed(sequences: Sequence[RawSequence]) -> float | None:
    if not sequences or any(len(raw.arrivals) < 2 for raw in sequences):
        return None
    firsts = [raw.begin_ms + raw.arrivals[0][1] for raw in sequences]
    lasts = [raw.begin_ms + raw.arrivals[-1][1] for raw in sequences]
    begin, end = max(firsts), min(lasts)
    if begin >= end:
        begin, end = min(firsts), max(lasts)
    n_tokens = sum(_count_until(raw, end) - _count_until(raw, begin) for raw in sequences)
    return 1000.0 * n_tokens / (end - begin) if end > begin and n_tokens > 0 else None


def _count_until(raw: RawSequence, moment_ms: float) -> int:
    """Tokens that had arrived at a moment of the measured interval."""
    index = bisect_right(raw.arrivals, moment_ms - raw.begin_ms, key=lambda arrival: arrival[1])
    return raw.arrivals[index - 1][0] if index else 0
