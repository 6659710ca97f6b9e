"""Every outcome of a verify step, at every place where taking drafts back could go wrong.

A *case* runs one or two cycles in which a chosen number of drafts holds, in every sequence. A grammar that spells the
wanted tokens is the sampler, so the outcome does not hang on what the model likes: the drafts are the MTP block's own,
the sampler takes the first ones and then something else.

After each cycle the whole state of the trunk must have the bytes of a session that has no MTP block and decoded the
same tokens one by one: keys and values, index and pooled keys, delta nets, convolutions. At the end the whole state of
the session, the MTP block's cache included, must have the bytes of one whose MTP block only read along, and the next
step must give the same logits, so nothing that a state does not hold is left behind either.

`make_cases` makes them by the rules above it, and counts what each rule gives.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from pylucebox import LibraryNotFoundError
from pylucebox._build import find_native_dir
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox._session import FINISH_CONTEXT, FINISH_EOG, FINISH_NONE, Ask, SeqCycle
from pylucebox.testing import K_QUANT_SPEC, TinySpec, write_tiny_model


def _is_built() -> bool:
    try:
        find_native_dir()
    except LibraryNotFoundError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _is_built(), reason="the native library is not built")

WIDTHS = range(2, 9)
MAX_ROWS = 8  # of a cycle, over all sequences
BLOCK = 4  # tokens per pooled key
PADDING = 256  # cells by which the attended part of a cache grows
N_CTX = 512
END = -1  # in place of a token: the end token

TEXT = "One, two, three; the quick brown fox jumps over 13 lazy dogs. (Pack my box: 5 dozen jugs!) " * 6


# ---- the cases ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Cycles with chosen outcomes.

    Attributes
    ----------
    setup
        Key of `SETUPS`.
    starts
        Tokens in the context before the first cycle, for each sequence.
    widths
        Rows each sequence asks for; 0 leaves it out.
    held
        For each cycle how many drafts hold in each sequence that takes part. A sequence that has less room makes do.
    ends
        Whether the end token comes in place of the last cycle's first token that is no draft.
    """

    setup: str
    starts: tuple[int, ...]
    widths: tuple[int, ...]
    held: tuple[tuple[int, ...], ...]
    ends: bool = False

    def __str__(self) -> str:
        def joined(numbers: tuple[int, ...]) -> str:
            return "+".join(map(str, numbers))

        end = ", end" if self.ends else ""
        return (
            f"{self.setup}, at {joined(self.starts)}, width {joined(self.widths)},"
            f" held {' then '.join(map(joined, self.held))}{end}"
        )


def granted(widths: tuple[int, ...]) -> tuple[int, ...]:
    """Cut widths, widest and first first, until a cycle has no more rows than it may have."""
    cut = list(widths)
    while sum(cut) > MAX_ROWS:
        cut[cut.index(max(cut))] -= 1
    return tuple(cut)


def every_outcome_twice(setup: str, start: int) -> Iterator[Case]:
    """Every pair of depths at every width, in two cycles in a row."""
    for width in WIDTHS:
        for first, second in itertools.product(range(width), repeat=2):
            yield Case(setup, (start,), (width,), ((first,), (second,)))


def same_outcome_twice(setup: str, start: int) -> Iterator[Case]:
    """Every depth at every width, the same in two cycles in a row."""
    for width in WIDTHS:
        for depth in range(width):
            yield Case(setup, (start,), (width,), ((depth,), (depth,)))


def ended(setup: str, start: int) -> Iterator[Case]:
    """The end token in place of every draft, and after all of them."""
    for width in WIDTHS:
        for depth in range(width):
            yield Case(setup, (start,), (width,), ((depth,),), ends=True)


def last_cells(setup: str) -> Iterator[Case]:
    """Every number of cells left, every width: cut to the cells left, or just filling them."""
    for n_left in range(1, 9):
        for width in WIDTHS:
            for depth in range(min(width, n_left)):
                yield Case(setup, (N_CTX - n_left,), (width,), ((depth,), (depth,)))


def together(setup: str, starts: tuple[int, ...], widths: tuple[int, ...]) -> Iterator[Case]:
    """Every combination of depths over the sequences that take part, in two cycles in a row."""
    for depths in itertools.product(*(range(max(1, width)) for width in granted(widths))):
        yield Case(setup, starts, widths, (depths, depths))


@cache
def make_cases() -> tuple[Case, ...]:
    """Return all cases; the counts are those of the rules."""
    sparse = 60  # attention is sparse from 36 tokens on
    rules: list[tuple[int, Iterator[Case]]] = []
    # a block of pooled keys ends before the first row, or 1, 2 or 3 rows later; the widest step ends two blocks
    rules += [(203, every_outcome_twice("f32", sparse + offset)) for offset in range(BLOCK)]
    # dense attention; and the first and the last step in which it is
    rules += [(35, same_outcome_twice("f32", start)) for start in (9, 30, 36)]
    # the padding ends at the last row, in the middle, at the first row, right before it
    rules += [(35, same_outcome_twice("f32", PADDING - before)) for before in (8, 7, 5, 4, 2, 1, 0)]
    rules += [(196, last_cells("f32"))]
    rules += [(35, ended("f32", start)) for start in (sparse + 1, PADDING - 3)]
    # a transposed V cache; quantised caches; quantised weights; a block in a file of its own
    for setup in ("no flash attention", "q8_0 cache", "q4_K", "sidecar"):
        rules += [(35, same_outcome_twice(setup, start)) for start in (sparse + 2, PADDING - 3)]
    apart = (sparse + 1, PADDING - 2, 23)
    for n_cases, widths in (
        (8, (2, 2, 2)),
        (16, (4, 4, 0)),
        (15, (0, 3, 5)),
        (12, (6, 0, 2)),
        (18, (2, 3, 3)),
        (7, (1, 7, 0)),
        (16, (8, 8, 0)),  # 4 and 4 rows
        (18, (8, 8, 8)),  # 2, 3 and 3 rows
    ):
        rules.append((n_cases, together("f32", apart, widths)))
    cases: list[Case] = []
    for n_cases, made in rules:
        found = list(made)
        assert len(found) == n_cases, found[0]
        cases += found
    return tuple(cases)


def test_there_are_as_many_cases_as_promised_and_none_is_repeated() -> None:
    cases = make_cases()
    assert len(cases) == len(set(cases)) == 1_818
    alone = {(case.widths[0], case.held[0][0]) for case in cases if len(case.widths) == 1}
    assert alone == {(width, depth) for width in WIDTHS for depth in range(width)}


# ---- sessions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """A model and how a session on it is opened."""

    spec: TinySpec
    options: SessionOptions


_OPTIONS = SessionOptions(n_ctx=N_CTX, n_seq=1, n_ubatch=128, max_width=8, even_drafts=False)
SETUPS = {
    "f32": Setup(TinySpec(), _OPTIONS),
    "no flash attention": Setup(TinySpec(), replace(_OPTIONS, flash_attn=False)),
    "q8_0 cache": Setup(TinySpec(), replace(_OPTIONS, cache_type_k="q8_0", cache_type_v="q8_0")),
    # "agree", since a grammar can spell no control token and other drafts are at times one
    "q4_K": Setup(replace(K_QUANT_SPEC, weight_type="q4_K", kind="agree"), _OPTIONS),
    "sidecar": Setup(TinySpec(mtp="sidecar"), _OPTIONS),
}

# struct state_header of state.cpp: magic, version, n_past, last, use_mtp, n_waiting, n_embd_out, n_vocab, two sizes;
# the checksum of everything follows
_HEADER = struct.Struct("<IIiiIIIIQQ")
_HEADER_BYTES = _HEADER.size + 8

# A row of the index: a key and a pooled key, f16.
_INDEX_ROW_BYTES = 2 * 2 * TinySpec().indexer_head_dim


class Place(NamedTuple):
    """A sequence of a session with `n_seq` of them, and the tokens in its context before the first cycle."""

    n_seq: int
    seq: int
    start: int


def trunk_state(state: bytes, place: Place) -> bytes:
    """Return the part of a saved state that does not belong to the MTP block."""
    return _parts(state, place)[1]


def whole_state(state: bytes, place: Place) -> bytes:
    """Return a saved state without its checksum."""
    return b"".join(_parts(state, place))


def _parts(state: bytes, place: Place) -> tuple[bytes, bytes, bytes]:
    """Split a saved state into what is about the sequence, what is the trunk's, and what is the MTP block's."""
    _, _, n_past, _, _, n_waiting, n_embd_out, _, trunk_bytes, mtp_bytes = _HEADER.unpack_from(state)
    trunk_at = _HEADER_BYTES + n_waiting * (8 + 4 * n_embd_out)
    mtp_at = trunk_at + trunk_bytes
    assert len(state) == mtp_at + mtp_bytes
    head = state[: _HEADER.size] + state[_HEADER_BYTES:trunk_at]
    trunk = _without_unused_slots(state[trunk_at:mtp_at], place, n_past)
    mtp = _without_unused_slots(state[mtp_at:], place, n_past - n_waiting) if mtp_bytes else b""
    return head, trunk, mtp


def _without_unused_slots(part: bytes, place: Place, n_cells: int) -> bytes:
    """Blank the pooled keys in rows that end no block, if several sequences run together.

    A block's pooled key lies in the row of its last cell and is read from nowhere else. The graph pools a fixed number
    of blocks, those it has too many of into other rows, lowest first; how many that are is not the same in company.
    The rows come last, but for the empty counts of the sequences behind this one.
    """
    if place.n_seq == 1:
        return part
    end = len(part) - 4 * (place.n_seq - 1 - place.seq)
    rows = np.frombuffer(part[end - n_cells * _INDEX_ROW_BYTES : end], np.uint8).reshape(n_cells, 2, -1).copy()
    rows[np.arange(n_cells) % BLOCK != BLOCK - 1, 1] = 0
    return part[: end - rows.size] + rows.tobytes() + part[end:]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def spelled(tokens: tuple[int, ...], banned: Iterable[int]) -> SamplingParams:
    """Return a sampler that can only draw these tokens. `END` is drawn as the one end token that is not banned."""
    after = 0 if tokens[-1] == END else 2 * MAX_ROWS
    listed = " ".join(f"<[{token}]>" for token in (*tokens, *[ord("~")] * after) if token != END)
    bias = dict.fromkeys(banned, -math.inf)
    return SamplingParams(temperature=0, seed=0, grammar=f"root ::= {listed}", logit_bias=bias)


@dataclass(frozen=True)
class Node:
    """Where some outcomes lead: what a session that never drafts knows there.

    Attributes
    ----------
    tokens
        Tokens drawn so far, the warm-up's included.
    drafts
        What the MTP block drafts from here.
    trunk, whole
        Digests of the trunk's state, and of all state once the MTP block has read all there is to read; None if that
        would need a cell more than there are.
    next_logits
        Digest of the logits after one more token; None if there is no cell for it.
    """

    tokens: tuple[int, ...]
    drafts: tuple[int, ...]
    trunk: str
    whole: str | None
    next_logits: str | None


class Bench:
    """One setup: its model and, for each number of sequences, a session that drafts and two that never do."""

    def __init__(self, setup: Setup, path: Path) -> None:
        files = write_tiny_model(path, setup.spec)
        self.model = Model(ModelOptions(path=files.model, mtp_path=files.sidecar, mtp_in_file=files.sidecar is None))
        self._options = setup.options
        self._sessions: dict[tuple[str, int], NativeSession] = {}
        self._ids = self.model.tokenize(TEXT, add_special=False, parse_special=False)
        self._end, *self._other_ends = filter(self.model.is_eog, range(self.model.info.n_vocab))
        self._starts: dict[tuple[NativeSession, int, int], bytes] = {}
        self._nodes: dict[tuple[Place, tuple[int, ...], bool], Node] = {}

    def session(self, role: str, n_seq: int) -> NativeSession:
        """Return the session that is "drafting", "plain" (no MTP block) or "reading" (its block only reads along)."""
        if (role, n_seq) not in self._sessions:
            max_width = 1 if role == "plain" else self._options.max_width
            options = replace(self._options, n_seq=n_seq, max_width=max_width)
            self._sessions[role, n_seq] = NativeSession(self.model, options)
        return self._sessions[role, n_seq]

    def begin(self, session: NativeSession, place: Place, tokens: tuple[int, ...]) -> None:
        """Bring a sequence to its place; `tokens` are what it will draw, and the first of them what it does draw.

        That one is decoded here, since after a state was loaded the next step pools all keys anew. And the MTP block
        reads what waits for it, so that all sequences together never have more rows for it than keep their bits.
        """
        seq = place.seq
        state = self._starts.get((session, seq, place.start))
        session.clear(seq)
        if state is None:
            fresh = session.open_sampler(SamplingParams(temperature=0, seed=0), None)
            session.prefill(seq, self._ids[: place.start - 1], fresh, use_mtp=True)
            state = self._starts[session, seq, place.start] = session.state_save(seq)
            session.clear(seq)
        session.state_load(seq, state, session.open_sampler(spelled(tokens, self._other_ends), None))
        (result,), _ = session.cycle([Ask(seq, 1, 100)])
        assert (result.tokens, session.n_past(seq)) == (tokens[:1], place.start)
        if session.max_width > 1:
            session.draft(seq, 1)

    def node(self, place: Place, held: tuple[int, ...], *, ends: bool = False) -> Node:
        """Return what is to be found after cycles in which so many drafts held."""
        key = (place, held, ends)
        if key not in self._nodes:
            tokens: tuple[int, ...] = (ord("a"),)
            if held:
                before = self.node(place, held[:-1])
                kept, missed = before.drafts[: held[-1]], (*before.drafts, None)[held[-1]]
                last = END if ends else next(token for token in b"ab" if token != missed)
                tokens = (*before.tokens, *kept, last)
            self._nodes[key] = self._walk(place, tokens)
        return self._nodes[key]

    def _walk(self, place: Place, tokens: tuple[int, ...]) -> Node:
        seq = place.seq
        plain, reading = self.session("plain", place.n_seq), self.session("reading", place.n_seq)
        for session in (plain, reading):
            self.begin(session, place, tokens)
            for token in tokens[1:]:
                (result,), _ = session.cycle([Ask(seq, 1, 100)])
                assert result.tokens == (self._end if token == END else token,)
                if session is reading and session.n_past(seq) < N_CTX:
                    session.draft(seq, 1)  # the block reads what the trunk has just done, pair by pair
        state = plain.state_save(seq)
        assert trunk_state(reading.state_save(seq), place) == trunk_state(state, place)
        n_left = N_CTX - plain.n_past(seq)
        drafts = reading.draft(seq, min(7, n_left))[0] if n_left else []
        whole = digest(whole_state(reading.state_save(seq), place)) if n_left else None
        next_logits = None
        if n_left and tokens[-1] != END:
            plain.cycle([Ask(seq, 1, 1)])
            next_logits = digest(plain.logits(seq, 0).tobytes())
        return Node(tokens, tuple(drafts), digest(trunk_state(state, place)), whole, next_logits)

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self.model.close()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Bench]]:
    """Return benches by setup, each opened once."""
    opened: dict[str, Bench] = {}

    def get(name: str) -> Bench:
        if name not in opened:
            opened[name] = Bench(SETUPS[name], tmp_path_factory.mktemp("rollback") / "m.gguf")
        return opened[name]

    yield get
    for each in opened.values():
        each.close()


# ---- running them ---------------------------------------------------------------------------------------------------


class Lane:
    """A sequence of a case, and where it is expected to be."""

    def __init__(self, bench: Bench, case: Case, seq: int) -> None:
        self._bench, self._case, self.seq = bench, case, seq
        self.place = Place(len(case.starts), seq, case.starts[seq])
        self._width = granted(case.widths)[seq]
        self.held: tuple[int, ...] = ()
        self._nodes = [bench.node(self.place, ())]
        for depths in case.held if self._width else ():
            n_left = N_CTX - self._n_past(self._nodes[-1])
            if n_left == 0:
                break
            self.held += (min(depths[seq], n_left - 1),)
            ends = case.ends and len(self.held) == len(case.held)
            self._nodes.append(bench.node(self.place, self.held, ends=ends))
        self.script = self._nodes[-1].tokens

    def _n_past(self, node: Node) -> int:
        return self.place.start + len(node.tokens) - 1  # the last one is not in the context

    def check(self, session: NativeSession, n_cycles: int, result: SeqCycle) -> None:
        """Compare a cycle and the trunk's state after it."""
        before, after = self._nodes[n_cycles - 1 : n_cycles + 1]
        assert result.n_drafted == min(self._width, N_CTX - self._n_past(before)) - 1
        assert result.n_accepted == self.held[n_cycles - 1]
        assert session.n_past(self.seq) == self._n_past(after)
        full = self._n_past(after) == N_CTX
        assert result.finish == (FINISH_EOG if after.tokens[-1] == END else FINISH_CONTEXT if full else FINISH_NONE)
        assert digest(trunk_state(session.state_save(self.seq), self.place)) == after.trunk

    def check_rest(self, session: NativeSession) -> None:
        """Compare the whole state, and what the next step gives."""
        after = self._nodes[-1]
        if after.whole is not None:
            session.draft(self.seq, 1)
            assert digest(whole_state(session.state_save(self.seq), self.place)) == after.whole
        if after.next_logits is not None:
            session.cycle([Ask(self.seq, 1, 1)])
            assert digest(session.logits(self.seq, 0).tobytes()) == after.next_logits


@pytest.mark.parametrize("case", make_cases(), ids=str)
def test_nothing_is_left_of_drafts_that_were_taken_back(bench: Callable[[str], Bench], case: Case) -> None:
    model, n_seq = bench(case.setup), len(case.starts)
    session = model.session("drafting", n_seq)
    lanes = [Lane(model, case, seq) for seq in range(n_seq)]
    for lane in lanes:
        model.begin(session, lane.place, lane.script)
    for n_cycles in range(1, len(case.held) + 1):
        asks = [Ask(lane.seq, case.widths[lane.seq], 100) for lane in lanes if len(lane.held) >= n_cycles]
        if not asks:
            assert case.starts[0] >= N_CTX - MAX_ROWS  # nothing but a full context ends a case early
            break
        results, times = session.cycle(asks)
        assert times.n_rows <= MAX_ROWS
        for result in results:
            lanes[result.seq].check(session, n_cycles, result)
    for lane in lanes:
        lane.check_rest(session)
