"""Every outcome of a verify step, at every place where taking drafts back could go wrong.

A *case* runs one or two cycles in which a chosen number of drafts holds, in every sequence. A grammar that spells the
wanted tokens is the sampler, so the outcome does not hang on what the model likes: the drafts are the MTP block's own,
the sampler takes the first ones and then something else.

After each cycle the whole state of the trunk must have the bytes of a session that has no MTP block and decoded the
same tokens one by one: keys and values, index and pooled keys, delta nets, convolutions. At the end the whole state of
the session, the MTP block's cache included, must have the bytes of one whose MTP block only read along, and the next
step must give the same logits, so nothing that a state does not hold is left behind either.

`CASES` is made by the rules below it; nothing is left out or repeated.
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

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


_OPTIONS = SessionOptions(n_ctx=N_CTX, n_seq=1, n_ubatch=128, max_width=8)
SETUPS = {
    "f32": Setup(TinySpec(), _OPTIONS),
    "no flash attention": Setup(TinySpec(), replace(_OPTIONS, flash_attn=False)),
    "q8_0 cache": Setup(TinySpec(), replace(_OPTIONS, cache_type_k="q8_0", cache_type_v="q8_0")),
    "q4_K": Setup(replace(K_QUANT_SPEC, weight_type="q4_K"), _OPTIONS),
    "sidecar": Setup(TinySpec(mtp="sidecar"), _OPTIONS),
}

# struct state_header of state.cpp: magic, version, n_past, last, use_mtp, n_waiting, n_embd_out, n_vocab, two sizes,
# checksum
_HEADER = struct.Struct("<IIiiIIIIQQQ")


def trunk_state(state: bytes) -> bytes:
    """Return the part of a saved state that does not belong to the MTP block."""
    *_, n_waiting, n_embd_out, _, trunk_bytes, _, _ = _HEADER.unpack_from(state)
    begin = _HEADER.size + n_waiting * (8 + 4 * n_embd_out)
    return state[begin : begin + trunk_bytes]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def spelled(tokens: tuple[int, ...], banned: Iterable[int] = ()) -> SamplingParams:
    """Return a sampler that can only draw these tokens; ids are bytes. Of the end tokens it never draws the banned."""
    text = bytes(token for token in tokens if token != END)
    if tokens[-1:] != (END,):
        text = completed(text) + b"~" * 2 * MAX_ROWS
    literal = "".join(f"\\U{ord(character):08x}" for character in text.decode())
    bias = dict.fromkeys(banned, -math.inf)
    return SamplingParams(temperature=0, seed=0, grammar=f'root ::= "{literal}"', logit_bias=bias)


def can_begin(text: bytes) -> bool:
    """Tell whether some text in UTF-8 begins with these bytes."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)
    except UnicodeDecodeError:
        return False
    return True


def completed(text: bytes) -> bytes:
    """Finish the character that the bytes break off in."""
    for tail in (b"", b"\xa0", b"\xa0\xa0", b"\xa0\xa0\xa0"):
        try:
            (text + tail).decode()
        except UnicodeDecodeError:
            continue
        return text + tail
    raise AssertionError(text)


def other_than(tokens: tuple[int, ...], draft: int | None) -> int:
    """Return a token that may follow `tokens` and is not the draft."""
    return next(byte for byte in (*b"ab", *range(0x80, 0xC0)) if byte != draft and can_begin(bytes((*tokens, byte))))


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
    """One setup: its model, a session that drafts, and two that never do."""

    def __init__(self, setup: Setup, path: Path) -> None:
        files = write_tiny_model(path, setup.spec)
        in_file = files.sidecar is None
        self.model = Model(ModelOptions(path=files.model, mtp_path=files.sidecar, mtp_in_file=in_file))
        self._options = setup.options
        self._plain = NativeSession(self.model, replace(setup.options, max_width=1))
        self._reading = NativeSession(self.model, setup.options)
        self._drafting: dict[int, NativeSession] = {}
        self._ids = self.model.tokenize(TEXT, add_special=False, parse_special=False)
        ends = [token for token in range(256, self.model.info.n_vocab) if self.model.is_eog(token)]
        self._end, *self._other_ends = ends
        self._starts: dict[tuple[bool, int], bytes] = {}
        self._nodes: dict[tuple[int, tuple[int, ...], bool], Node] = {}

    def drafting(self, n_seq: int) -> NativeSession:
        if n_seq not in self._drafting:
            self._drafting[n_seq] = NativeSession(self.model, replace(self._options, n_seq=n_seq))
        return self._drafting[n_seq]

    def begin(self, session: NativeSession, seq: int, start: int, tokens: tuple[int, ...]) -> None:
        """Bring a sequence to `start` tokens; `tokens` are what it will draw, beginning with the last of these.

        The last one is decoded, since after a state was loaded the next step pools all keys anew.
        """
        use_mtp = session is not self._plain
        state = self._starts.get((use_mtp, start))
        if state is None:
            fresh = session.open_sampler(SamplingParams(temperature=0, seed=0), None)
            session.clear(seq)
            session.prefill(seq, self._ids[: start - 1], fresh, use_mtp=use_mtp)
            state = self._starts[use_mtp, start] = session.state_save(seq)
        session.clear(seq)
        session.state_load(seq, state, session.open_sampler(spelled(tokens, self._other_ends), None))
        (result,), _ = session.cycle([Ask(seq, 1, 100)])
        assert (result.tokens, session.n_past(seq)) == (tokens[:1], start)

    def node(self, start: int, held: tuple[int, ...], *, ends: bool = False) -> Node:
        """Return what is to be found after cycles in which so many drafts held."""
        key = (start, held, ends)
        if key not in self._nodes:
            tokens: tuple[int, ...] = (ord("a"),)
            if held:
                before = self.node(start, held[:-1])
                kept, missed = before.drafts[: held[-1]], (*before.drafts, None)[held[-1]]
                tokens = (*before.tokens, *kept)
                tokens += (END if ends else other_than(tokens, missed),)
            self._nodes[key] = self._walk(start, tokens)
        return self._nodes[key]

    def _walk(self, start: int, tokens: tuple[int, ...]) -> Node:
        plain, reading = self._plain, self._reading
        wanted = tuple(self._end if token == END else token for token in tokens)
        for session in (plain, reading):
            self.begin(session, 0, start, tokens)
            for token in wanted[1:]:
                if session is reading and session.n_past(0) < N_CTX:
                    session.draft(0, 1)  # the block reads what the trunk has just done, pair by pair
                (result,), _ = session.cycle([Ask(0, 1, 100)])
                assert result.tokens == (token,)
        state = plain.state_save(0)
        assert trunk_state(reading.state_save(0)) == trunk_state(state)
        n_left = N_CTX - plain.n_past(0)
        drafts = reading.draft(0, min(7, n_left))[0] if n_left else []
        whole = digest(reading.state_save(0)) if n_left else None
        next_logits = None
        if n_left and tokens[-1] != END:
            plain.cycle([Ask(0, 1, 1)])
            next_logits = digest(plain.logits(0, 0).tobytes())
        return Node(tokens, tuple(drafts), digest(trunk_state(state)), whole, next_logits)

    def close(self) -> None:
        for session in (self._plain, self._reading, *self._drafting.values()):
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
        self.start = case.starts[seq]
        self.width = granted(case.widths)[seq]
        self.held: tuple[int, ...] = ()
        node = bench.node(self.start, ())
        for depths in case.held if self.width else ():
            n_left = N_CTX - self.start - len(node.tokens) + 1
            if n_left == 0:
                break
            self.held += (min(depths[seq], n_left - 1),)
            node = bench.node(self.start, self.held, ends=self._ends(len(self.held)))
        self.script = node.tokens

    def _ends(self, n_cycles: int) -> bool:
        return self._case.ends and n_cycles == len(self._case.held)

    def node(self, n_cycles: int) -> Node:
        return self._bench.node(self.start, self.held[:n_cycles], ends=self._ends(n_cycles))

    def check(self, session: NativeSession, n_cycles: int, result: SeqCycle) -> None:
        """Compare a cycle and the trunk's state after it."""
        before, after = self.node(n_cycles - 1), self.node(n_cycles)
        n_past = self.start + len(before.tokens) - 1
        assert result.n_drafted == min(self.width, N_CTX - n_past) - 1
        assert result.n_accepted == self.held[n_cycles - 1]
        assert session.n_past(self.seq) == self.start + len(after.tokens) - 1
        full = session.n_past(self.seq) == N_CTX
        assert result.finish == (FINISH_EOG if after.tokens[-1] == END else FINISH_CONTEXT if full else FINISH_NONE)
        assert digest(trunk_state(session.state_save(self.seq))) == after.trunk

    def check_rest(self, session: NativeSession) -> None:
        """Compare the whole state, and what the next step gives."""
        after = self.node(len(self.held))
        if after.whole is not None:
            session.draft(self.seq, 1)
            assert digest(session.state_save(self.seq)) == after.whole
        if after.next_logits is not None:
            session.cycle([Ask(self.seq, 1, 1)])
            assert digest(session.logits(self.seq, 0).tobytes()) == after.next_logits


@pytest.mark.parametrize("case", make_cases(), ids=str)
def test_nothing_is_left_of_drafts_that_were_taken_back(bench: Callable[[str], Bench], case: Case) -> None:
    model = bench(case.setup)
    session = model.drafting(len(case.starts))
    lanes = [Lane(model, case, seq) for seq in range(len(case.starts))]
    for lane in lanes:
        model.begin(session, lane.seq, lane.start, lane.script)
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
