"""Graphs of steps with few rows are kept: going from one width to another and back builds none and gives the same."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from _models import WriteModel

from pylucebox import InvalidArgumentError, SamplingParams
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._session import Ask
from pylucebox.testing import TinySpec

OPTIONS = SessionOptions(n_ctx=1024, n_seq=1, n_ubatch=64, max_width=8)
PROMPT = list(b"abcabcabcabd")
GREEDY = SamplingParams(temperature=0.0, seed=0, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.2, seed=5, ignore_eos=True)
WIDTHS = (1, 8, 3, 1, 5, 2, 8, 7, 4, 6, 3)


@pytest.fixture(scope="module")
def model(write_model: WriteModel) -> Iterator[Model]:
    opened = Model(ModelOptions(path=write_model(TinySpec(kind="mixed")).model, mtp_in_file=True))
    yield opened
    opened.close()


def open_session(model: Model, **options: int) -> NativeSession:
    session = NativeSession(model, replace(OPTIONS, **options))  # type: ignore[arg-type]
    for seq in range(session.n_seq):
        prefill(session, seq)
    return session


def prefill(session: NativeSession, seq: int = 0, n_tokens: int = len(PROMPT)) -> None:
    params = GREEDY if seq % 2 == 0 else DRAWN
    prompt = [PROMPT[i % len(PROMPT)] for i in range(n_tokens)]
    session.prefill(seq, prompt, session.open_sampler(params, None), use_mtp=session.max_width > 1)


def builds(session: NativeSession, widths: tuple[int, ...]) -> tuple[int, int]:
    """Run cycles of these widths; return how many built a verify graph, and how many a draft graph."""
    verify = draft = 0
    for width in widths:
        _, times = session.cycle([Ask(0, width, 100)])
        verify += times.graph_built
        draft += times.draft_graph_built
    return verify, draft


def test_alternating_widths_build_nothing_once_each_was_used(model: Model) -> None:
    session = open_session(model)
    # the prompt ended with one row that wrote for the MTP block, as a single step of one row does
    assert builds(session, WIDTHS)[0] == 7
    builds(session, WIDTHS * 3)  # after other widths, other numbers of pairs wait for the first draft
    assert builds(session, WIDTHS) == (0, 0)
    assert session.n_past(0) < 256  # no graph had to grow
    session.close()


def test_without_kept_graphs_every_change_of_width_builds(model: Model) -> None:
    session = open_session(model, n_kept_graphs=0)
    builds(session, WIDTHS)
    assert builds(session, WIDTHS)[0] == len(WIDTHS)
    assert builds(session, (3, 3, 3))[0] <= 1
    session.close()


def test_prompts_of_others_leave_kept_graphs_alone(model: Model) -> None:
    session = open_session(model, n_seq=2)
    session.clear(1)
    prefill(session, 1, n_tokens=40)
    builds(session, WIDTHS * 4)
    session.clear(1)
    prefill(session, 1, n_tokens=40)
    assert builds(session, WIDTHS) == (0, 0)
    session.close()


def test_graphs_are_built_anew_where_the_context_has_outgrown_them(model: Model) -> None:
    session = open_session(model)
    builds(session, WIDTHS * 2)
    session.clear(0)
    prefill(session, n_tokens=600)
    assert builds(session, (2, 3, 4))[0] == 3
    assert builds(session, (2, 3, 4)) == (0, 0)
    session.close()


@pytest.mark.parametrize("n_kept", [1, 2, 3, 16, 64])
def test_tokens_and_logits_are_those_without_kept_graphs(model: Model, n_kept: int) -> None:
    assert decode(model, n_kept) == decode(model, 0)


def decode(model: Model, n_kept: int) -> list[tuple[int, int, str]]:
    """Decode three sequences together in cycles of arbitrary widths, with prompts in between, past 512 cells."""
    rng = random.Random(7)
    session = open_session(model, n_seq=3, n_kept_graphs=n_kept)
    out = []
    for step in range(60):
        if step % 20 == 10:
            seq = step // 20
            session.clear(seq)
            prefill(session, seq, n_tokens=rng.choice((5, 250, 500)))
        taking_part = [seq for seq in range(3) if rng.random() < 0.7] or [0]
        results, _ = session.cycle([Ask(seq, rng.randint(1, 8), 100) for seq in taking_part])
        for result in results:
            for row, token in enumerate(result.tokens):
                digest = hashlib.sha256(session.logits(result.seq, row).tobytes()).hexdigest()
                out.append((result.seq, token, digest))
    session.close()
    return out


def test_state_is_that_without_kept_graphs(model: Model) -> None:
    states = []
    for n_kept in (0, 16):
        session = open_session(model, n_kept_graphs=n_kept)
        builds(session, WIDTHS * 3)
        states.append(session.state_save(0))
        session.close()
    assert states[0] == states[1]


def test_going_from_requests_with_mtp_to_ones_without_and_back(model: Model) -> None:
    """The trunk's graph then has no part that writes for the block."""
    texts = []
    for n_kept in (0, 16):
        session = open_session(model, n_kept_graphs=n_kept)
        tokens: list[int] = []
        for use_mtp in (True, False, True, False):
            session.clear(0)
            session.prefill(0, PROMPT, session.open_sampler(GREEDY, None), use_mtp=use_mtp)
            for width in WIDTHS:
                (result,), _ = session.cycle([Ask(0, width, 100)])
                tokens += result.tokens
        texts.append(tokens)
        session.close()
    assert texts[0] == texts[1]


def test_requests_with_mtp_and_without_keep_the_graphs_of_each_other(model: Model) -> None:
    """Nothing is reserved anew in between, which on a GPU would take longer than many prompts."""
    session = open_session(model, n_kept_graphs=16)
    built: list[list[bool]] = []
    for use_mtp in (True, False) * 3:
        session.clear(0)
        session.prefill(0, PROMPT, session.open_sampler(GREEDY, None), use_mtp=use_mtp)
        built.append([session.cycle([Ask(0, width, 100)])[1].graph_built for width in (1, 2 if use_mtp else 1)])
    session.close()
    assert not any(built[-2] + built[-1])


def test_memory_for_them_is_named_and_bounded(model: Model) -> None:
    sizes = {}
    for n_kept in (0, 8, 16):
        session = open_session(model, n_kept_graphs=n_kept)
        sizes[n_kept] = session.info.kept_graphs_bytes
        session.close()
    assert sizes[0] == 0
    assert 0 < sizes[8] * 2 == sizes[16]


@pytest.mark.parametrize("n_kept", [-1, 65])
def test_number_out_of_range(model: Model, n_kept: int) -> None:
    with pytest.raises(InvalidArgumentError):
        NativeSession(model, replace(OPTIONS, n_kept_graphs=n_kept))


def test_sequences_that_take_turns_have_graphs_of_their_own(model: Model) -> None:
    session = open_session(model, n_seq=2)
    for seq, width in itertools.product((0, 1, 0, 1), (1, 3)):
        session.cycle([Ask(seq, width, 100)])
    built = [session.cycle([Ask(seq, width, 100)])[1].graph_built for seq, width in itertools.product((0, 1), (1, 3))]
    assert built == [False] * 4
    session.close()
