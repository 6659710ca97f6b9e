"""The session itself: state, drafts, forcing, logits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from _models import WriteModel

from pylucebox import InvalidArgumentError, SamplingParams, SequenceStateError
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._session import Ask
from pylucebox.testing import TinySpec

OPTIONS = SessionOptions(n_ctx=256, n_seq=2, n_ubatch=64, max_width=8)
PROMPT = list(b"abcabcabcabd")
GREEDY = SamplingParams(temperature=0.0, seed=0)


@pytest.fixture(scope="module")
def model(write_model: WriteModel) -> Iterator[Model]:
    opened = Model(ModelOptions(path=write_model(TinySpec(kind="mixed")).model, mtp_in_file=True))
    yield opened
    opened.close()


@pytest.fixture
def session(model: Model) -> Iterator[NativeSession]:
    opened = NativeSession(model, OPTIONS)
    yield opened
    opened.close()


def start(session: NativeSession, seq: int = 0, *, use_mtp: bool = True, params: SamplingParams = GREEDY) -> int:
    token, _ = session.prefill(seq, PROMPT, session.open_sampler(params, None), use_mtp=use_mtp)
    return token


def go_on(session: NativeSession, n_tokens: int, width: int, seq: int = 0) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < n_tokens:
        (result,), _ = session.cycle([Ask(seq, width, n_tokens - len(tokens))])
        tokens += result.tokens
    return tokens


@pytest.mark.parametrize("width", [1, 3, 8])
def test_saved_state_continues_where_it_was_saved(session: NativeSession, width: int) -> None:
    start(session)
    go_on(session, 7, width)
    state = session.state_save(0)
    n_past = session.n_past(0)
    wanted = go_on(session, 30, width)
    session.clear(0)
    session.state_load(0, state, session.open_sampler(GREEDY, None))
    assert session.n_past(0) == n_past
    assert go_on(session, 30, width) == wanted
    assert go_on_elsewhere(session, state, width) == wanted


def go_on_elsewhere(session: NativeSession, state: bytes, width: int) -> list[int]:
    session.state_load(1, state, session.open_sampler(GREEDY, None))
    return go_on(session, 30, width, seq=1)


@pytest.mark.parametrize("damage", ["cut", "longer", "magic", "empty"])
def test_damaged_state_is_refused_and_the_session_goes_on(session: NativeSession, damage: str) -> None:
    start(session)
    state = session.state_save(0)
    bad = {"cut": state[:-1], "longer": state + b"\0", "magic": b"XXXX" + state[4:], "empty": b""}[damage]
    with pytest.raises(InvalidArgumentError) as caught:
        session.state_load(1, bad, session.open_sampler(GREEDY, None))
    assert caught.value.argument == "state"
    assert len(go_on(session, 5, 3)) == 5


def test_state_of_another_model_is_refused(session: NativeSession, write_model: WriteModel) -> None:
    start(session)
    other_model = Model(ModelOptions(path=write_model(TinySpec(n_embd=192)).model, mtp_in_file=True))
    other = NativeSession(other_model, OPTIONS)
    with pytest.raises(InvalidArgumentError):
        other.state_load(0, session.state_save(0), other.open_sampler(GREEDY, None))
    other.close()
    other_model.close()


def test_sequence_without_prompt_can_do_nothing(session: NativeSession) -> None:
    for call in (
        lambda: session.cycle([Ask(0, 1, 1)]),
        lambda: session.draft(0, 3),
        lambda: session.force(0, 5),
        lambda: session.state_save(0),
        lambda: session.logits(0, 0),
    ):
        with pytest.raises(SequenceStateError):
            call()


def test_prompt_into_a_used_sequence_is_refused_and_costs_nothing(session: NativeSession) -> None:
    start(session)
    with pytest.raises(SequenceStateError):
        start(session)
    assert len(go_on(session, 4, 2)) == 4


def test_drafts_are_forgotten_again(session: NativeSession) -> None:
    start(session)
    wanted = go_on(session, 20, 4)
    session.clear(0)
    start(session)
    first = session.draft(0, 7)
    assert session.draft(0, 7) == first
    assert len(first[0]) == len(first[1]) == 7
    assert all(0 < prob <= 1 for prob in first[1])
    assert go_on(session, 20, 4) == wanted


def test_draft_of_a_cycle_is_the_draft_asked_for_beforehand(session: NativeSession) -> None:
    start(session)
    tokens, _ = session.draft(0, 7)
    (result,), _ = session.cycle([Ask(0, 8, 8)])
    n_accepted = result.n_accepted
    assert list(result.tokens[:n_accepted]) == tokens[:n_accepted]
    if n_accepted < 7 and len(result.tokens) > n_accepted:
        assert result.tokens[n_accepted] != tokens[n_accepted]


def test_forced_token_is_what_the_model_goes_on_from(session: NativeSession) -> None:
    first = start(session)
    other = next(token for token in b"xyz" if token != first)
    session.force(0, other)
    forced = go_on(session, 12, 4)
    session.clear(0)
    session.prefill(0, [*PROMPT, other], session.open_sampler(GREEDY, None), use_mtp=True)
    assert forced[0] == int(np.argmax(session.logits(0, 0)))


def test_logits_are_a_copy_of_the_row_the_token_was_drawn_from(session: NativeSession, model: Model) -> None:
    token = start(session)
    before = session.logits(0, 0)
    assert before.shape == (model.info.n_vocab,)
    assert before.dtype == np.float32
    assert int(np.argmax(before)) == token
    kept = before.copy()
    (result,), _ = session.cycle([Ask(0, 8, 8)])
    assert np.array_equal(before, kept)
    for row, drawn in enumerate(result.tokens):
        assert int(np.argmax(session.logits(0, row))) == drawn
    with pytest.raises(SequenceStateError):
        session.logits(0, len(result.tokens))


def test_sequences_do_not_touch_each_other(session: NativeSession) -> None:
    start(session)
    wanted = go_on(session, 20, 4)
    session.clear(0)
    start(session, 0)
    start(session, 1, params=SamplingParams(seed=3))
    tokens: list[int] = []
    while len(tokens) < 20:
        results, times = session.cycle([Ask(0, 4, 20 - len(tokens)), Ask(1, 4, 100)])
        tokens += results[0].tokens
        assert [result.seq for result in results] == [0, 1]
        assert times.n_rows <= 8
    assert tokens == wanted


def test_sequence_prefilled_without_mtp_makes_no_drafts(session: NativeSession) -> None:
    start(session, use_mtp=False)
    (result,), _ = session.cycle([Ask(0, 8, 8)])
    assert (result.n_drafted, len(result.tokens)) == (0, 1)
    with pytest.raises(SequenceStateError):
        session.draft(0, 2)


def test_model_may_be_closed_before_its_session(write_model: WriteModel) -> None:
    model = Model(ModelOptions(path=write_model(TinySpec()).model, mtp_in_file=True))
    session = NativeSession(model, replace(OPTIONS, max_width=2))
    sampler = session.open_sampler(GREEDY, None)
    model.close()
    session.prefill(0, PROMPT, sampler, use_mtp=True)
    assert len(go_on(session, 5, 2)) == 5
    session.close()


def test_callback_cannot_use_the_session_that_called_it(session: NativeSession) -> None:
    def misuse(_fraction: float) -> None:
        session.clear(1)

    sampler = session.open_sampler(GREEDY, None)
    with pytest.raises(SequenceStateError):
        session.prefill(0, PROMPT, sampler, use_mtp=True, progress=misuse)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("widths", [(2, 2, 2), (2, 3, 3), (3, 2, 3), (3, 3, 2), (1, 3, 4), (4, 1, 3)])
def test_rollback_is_exact_whatever_the_order_of_prompts_and_the_widths(
    model: Model, order: tuple[int, ...], widths: tuple[int, ...]
) -> None:
    prompts = [[*PROMPT, *(PROMPT[:seq])] for seq in range(3)]
    settings = [SamplingParams(temperature=1.5, seed=seq) for seq in range(3)]
    session = NativeSession(model, replace(OPTIONS, n_seq=3))
    for seq in order:
        session.prefill(seq, prompts[seq], session.open_sampler(settings[seq], None), use_mtp=True)
    tokens: list[list[int]] = [[], [], []]
    n_rejected = [0, 0, 0]
    for _ in range(8):
        results, _times = session.cycle([Ask(seq, widths[seq], 100) for seq in range(3)])
        for result in results:
            tokens[result.seq] += result.tokens
            n_rejected[result.seq] += result.n_drafted - result.n_accepted
    session.clear(0)
    for seq in range(3):
        session.clear(0)
        session.prefill(0, prompts[seq], session.open_sampler(settings[seq], None), use_mtp=False)
        assert tokens[seq] == go_on(session, len(tokens[seq]), 1)
    session.close()
    assert sum(n_rejected) > 0


def test_probabilities_of_new_tokens_are_told_to_who_asks(session: NativeSession) -> None:
    session.prefill(0, [5, 6, 7, 8], session.open_sampler(SamplingParams(temperature=1.0, seed=3), None), use_mtp=True)
    for width in (1, 4, 8):
        (told,), _ = session.cycle([Ask(0, width, 100, logprobs=True)])
        for row, (token, logprob) in enumerate(zip(told.tokens, told.logprobs, strict=True)):
            logits = session.logits(0, row).astype(np.float64)
            expected = logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            assert logprob == pytest.approx(expected, abs=1e-4)
        (silent,), _ = session.cycle([Ask(0, width, 100)])
        assert silent.logprobs == ()


def test_drafts_behind_many_plain_steps_are_those_of_a_sequence_that_always_drafts(model: Model) -> None:
    options = replace(OPTIONS, n_ubatch=32)
    sessions = [NativeSession(model, options) for _ in range(2)]
    try:
        often, seldom = sessions
        for session in sessions:
            start(session)
        for _ in range(100):  # three times what is computed at once
            often.draft(0, 1)
            assert go_on(often, 1, 1) == go_on(seldom, 1, 1)
        assert often.draft(0, 7)[0] == seldom.draft(0, 7)[0]
        assert go_on(often, 20, 8) == go_on(seldom, 20, 8)
    finally:
        for session in sessions:
            session.close()
