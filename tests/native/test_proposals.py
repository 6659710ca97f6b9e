"""Drafts that are proposed before a cycle: they change its speed, never its tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from _models import WriteModel

from pylucebox import CancelledError, InvalidArgumentError, SamplingParams, SequenceStateError
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._session import FINISH_CONTEXT, FINISH_NONE, Ask, MoreDrafts
from pylucebox.testing import TinySpec

N_CTX = 256
OPTIONS = SessionOptions(n_ctx=N_CTX, n_seq=3, n_ubatch=64, max_width=8)
PROMPT = list(b"abcabcabcabd")
GREEDY = SamplingParams(temperature=0.0, seed=0, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.2, seed=5, ignore_eos=True)


@pytest.fixture(scope="module", params=["mixed", "agree"])
def model(request: pytest.FixtureRequest, write_model: WriteModel) -> Iterator[Model]:
    opened = Model(ModelOptions(path=write_model(TinySpec(kind=request.param)).model, mtp_in_file=True))
    yield opened
    opened.close()


@pytest.fixture
def session(model: Model) -> Iterator[NativeSession]:
    opened = NativeSession(model, OPTIONS)
    yield opened
    opened.close()


def start(session: NativeSession, seq: int = 0, *, use_mtp: bool = True, params: SamplingParams = GREEDY) -> int:
    """Prefill; the sequences have different prompts."""
    tokens = [*PROMPT, *range(seq)]
    token, _ = session.prefill(seq, tokens, session.open_sampler(params, None), use_mtp=use_mtp)
    return token


def go_on(session: NativeSession, n_tokens: int, width: int, seq: int = 0) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < n_tokens:
        (result,), _ = session.cycle([Ask(seq, width, n_tokens - len(tokens))])
        tokens += result.tokens
    return tokens


def plain(session: NativeSession, n_tokens: int, seq: int = 0, params: SamplingParams = GREEDY) -> list[int]:
    """Tokens without drafts; leaves the sequence clear."""
    start(session, seq, use_mtp=False, params=params)
    tokens = go_on(session, n_tokens, 1, seq)
    session.clear(seq)
    return tokens


@dataclass
class Counts:
    """What a run has really exercised."""

    n_shadows: int = 0
    n_extended: int = 0
    n_completed: int = 0
    n_held: int = 0
    n_rejected: int = 0


def cycle_at_random(
    session: NativeSession, rng: random.Random, asks: list[Ask], counts: Counts
) -> dict[int, tuple[int, ...]]:
    """Propose a few times, then run a cycle, and check what it says about the drafts."""
    waiting: dict[int, tuple[tuple[int, ...], tuple[float, ...]]] = {ask.seq: ((), ()) for ask in asks}
    for _ in range(rng.randrange(4)):
        chosen = [MoreDrafts(ask.seq, rng.choice((0, 1, 1, 2, 3, 7))) for ask in asks if rng.random() < 0.7]
        proposals, draft_us = session.propose(chosen)
        assert draft_us >= 0
        for more, proposal in zip(chosen, proposals, strict=True):
            tokens, probs = waiting[more.seq]
            assert proposal.seq == more.seq
            assert proposal.tokens[: len(tokens)] == tokens  # what waits stays
            assert proposal.probs[: len(probs)] == probs
            assert len(proposal.tokens) == len(proposal.probs) == min(len(tokens) + more.n_more, 7)
            counts.n_extended += 0 < len(tokens) < len(proposal.tokens)
            waiting[more.seq] = (proposal.tokens, proposal.probs)
    results, times = session.cycle(asks)
    assert times.n_rows == sum(1 + result.n_verified for result in results) <= 8
    assert bool(times.n_draft_steps) == any(result.n_drafted for result in results)
    for ask, result in zip(asks, results, strict=True):
        tokens, probs = waiting[ask.seq]
        assert result.n_verified <= max(other.width for other in asks) - 1  # drafts of all are even
        assert result.n_drafted == max(len(tokens), result.n_verified)
        assert result.draft_tokens[: len(tokens)] == tokens
        assert result.draft_probs[: len(probs)] == probs
        assert len(result.draft_tokens) == len(result.draft_probs) == result.n_drafted
        assert result.tokens[: result.n_accepted] == result.draft_tokens[: result.n_accepted]
        counts.n_shadows += result.n_drafted > result.n_verified
        counts.n_completed += len(tokens) < result.n_verified
        counts.n_held += result.n_accepted
        counts.n_rejected += result.n_verified - result.n_accepted
    return {result.seq: result.tokens for result in results}


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_whatever_is_proposed_the_tokens_are_those_without_drafts(
    session: NativeSession, params: SamplingParams
) -> None:
    n_tokens, counts, rng = 90, Counts(), random.Random(1)
    wanted = plain(session, n_tokens, params=params)
    for _ in range(3):
        start(session, params=params)
        tokens: list[int] = []
        while len(tokens) < n_tokens:
            ask = Ask(0, rng.randint(1, 8), n_tokens - len(tokens))
            tokens += cycle_at_random(session, rng, [ask], counts)[0]
        assert tokens == wanted
        session.clear(0)
    assert min(counts.n_shadows, counts.n_extended, counts.n_completed) > 5
    assert max(counts.n_held, counts.n_rejected) > 5


def test_proposals_of_sequences_that_run_together_stay_apart(session: NativeSession) -> None:
    n_tokens, counts, rng = 60, Counts(), random.Random(2)
    settings = [GREEDY, DRAWN, GREEDY]
    wanted = [plain(session, n_tokens, seq, settings[seq]) for seq in range(3)]
    for seq in range(3):
        start(session, seq, params=settings[seq])
    tokens: list[list[int]] = [[], [], []]
    while any(len(found) < n_tokens for found in tokens):
        unfinished = [seq for seq in range(3) if len(tokens[seq]) < n_tokens]
        taking_part = [seq for seq in unfinished if rng.random() < 0.8] or unfinished
        asks = [Ask(seq, rng.randint(1, 8), n_tokens - len(tokens[seq])) for seq in taking_part]
        for seq, found in cycle_at_random(session, rng, asks, counts).items():
            tokens[seq] += found
    assert tokens == wanted
    assert counts.n_shadows > 5
    assert counts.n_extended > 5


def test_a_proposal_waits_while_others_have_their_cycles(session: NativeSession) -> None:
    start(session, 0)
    start(session, 1)
    (waiting,), _ = session.propose([MoreDrafts(0, 4)])
    go_on(session, 9, 4, seq=1)
    (found,), _ = session.propose([MoreDrafts(0, 0)])
    assert found == waiting
    (result,), _ = session.cycle([Ask(0, 5, 5)])
    assert result.draft_tokens == waiting.tokens


def test_drafts_made_piecemeal_are_those_made_at_once(session: NativeSession) -> None:
    start(session)
    go_on(session, 5, 1)  # pairs that wait go with the first draft
    at_once, at_once_probs = session.draft(0, 7)
    pieces = [session.propose([MoreDrafts(0, n)])[0][0] for n in (2, 0, 1, 4, 7)]
    assert [len(piece.tokens) for piece in pieces] == [2, 2, 3, 7, 7]
    assert list(pieces[-1].tokens) == at_once
    assert list(pieces[-1].probs) == at_once_probs


def test_drafts_that_were_not_verified_leave_the_next_ones_as_they_are_without_them(session: NativeSession) -> None:
    start(session)
    go_on(session, 1, 1)
    wanted = session.draft(0, 7)
    session.clear(0)
    start(session)
    session.propose([MoreDrafts(0, 7)])
    (result,), _ = session.cycle([Ask(0, 1, 1)])
    assert (result.n_drafted, result.n_verified, result.n_accepted) == (7, 0, 0)
    assert session.draft(0, 7) == wanted


def test_cycle_reports_the_time_and_steps_of_what_was_proposed_for_it(session: NativeSession) -> None:
    start(session)
    _, first_us = session.propose([MoreDrafts(0, 3)])
    _, second_us = session.propose([MoreDrafts(0, 2)])
    _, times = session.cycle([Ask(0, 4, 8)])
    assert 2 <= times.n_draft_steps <= 5 <= times.n_draft_rows
    assert times.draft_us >= first_us + second_us
    _, times = session.cycle([Ask(0, 1, 8)])
    assert times.n_draft_steps == times.n_draft_rows == 0


@pytest.mark.parametrize("how", ["force", "draft", "state_save", "clear", "state_load"])
def test_calls_that_change_a_sequence_drop_what_waits(session: NativeSession, how: str) -> None:
    token = start(session)
    session.draft(0, 1)  # computes pairs that wait, which would make the states differ
    state = session.state_save(0)
    session.propose([MoreDrafts(0, 4)])
    if how == "force":
        session.force(0, token)
    elif how == "draft":
        session.draft(0, 2)
    elif how == "state_save":
        assert session.state_save(0) == state  # as if nothing had been drafted
    elif how == "clear":
        session.clear(0)
        start(session)
    else:
        session.state_load(0, state, session.open_sampler(GREEDY, None))
    (found,), _ = session.propose([MoreDrafts(0, 0)])
    assert found.tokens == found.probs == ()
    tokens = go_on(session, 20, 4)
    session.clear(0)
    assert tokens == plain(session, 20)


def test_forced_token_takes_the_drafts_of_the_other_along(session: NativeSession) -> None:
    token = start(session)
    other = next(one for one in b"xyz" if one != token)
    session.force(0, other)
    wanted, _ = session.draft(0, 5)
    session.force(0, token)
    session.propose([MoreDrafts(0, 5)])
    session.force(0, other)
    (found,), _ = session.propose([MoreDrafts(0, 5)])
    assert list(found.tokens) == wanted


def test_proposals_end_with_the_context(session: NativeSession) -> None:
    tokens = [PROMPT[i % len(PROMPT)] for i in range(N_CTX - 4)]
    session.prefill(0, tokens, session.open_sampler(GREEDY, None), use_mtp=True)
    finish, n_past = FINISH_NONE, N_CTX - 4
    while finish == FINISH_NONE:
        (found,), _ = session.propose([MoreDrafts(0, 7)])
        assert len(found.tokens) == N_CTX - n_past
        (result,), _ = session.cycle([Ask(0, 2, 100)])
        n_past += len(result.tokens)
        finish = result.finish
    assert finish == FINISH_CONTEXT
    assert n_past == session.n_past(0) == N_CTX
    (found,), _ = session.propose([MoreDrafts(0, 7)])
    assert found.tokens == ()


def test_widths_are_cut_to_the_tokens_wanted_and_the_rest_are_shadows(session: NativeSession) -> None:
    start(session)
    session.propose([MoreDrafts(0, 7)])
    (result,), _ = session.cycle([Ask(0, 8, 3)])
    assert (result.n_drafted, result.n_verified) == (7, 2)
    assert len(result.tokens) <= 3


def test_sequence_prefilled_without_mtp_has_no_drafts(session: NativeSession) -> None:
    start(session, use_mtp=False)
    (found,), _ = session.propose([MoreDrafts(0, 3)])
    assert found.tokens == ()


def test_session_without_mtp_has_no_drafts(model: Model) -> None:
    session = NativeSession(model, SessionOptions(n_ctx=N_CTX, max_width=1))
    start(session, use_mtp=False)
    assert session.propose([MoreDrafts(0, 3)])[0][0].tokens == ()
    session.close()


@pytest.mark.parametrize("n_more", [-1, 8])
def test_numbers_out_of_range_are_refused_and_cost_nothing(session: NativeSession, n_more: int) -> None:
    start(session)
    with pytest.raises(InvalidArgumentError) as caught:
        session.propose([MoreDrafts(0, n_more)])
    assert caught.value.argument == "n_more"
    tokens = go_on(session, 10, 4)
    session.clear(0)
    assert tokens == plain(session, 10)


def test_sequence_without_prompt_can_propose_nothing(session: NativeSession) -> None:
    with pytest.raises(SequenceStateError):
        session.propose([MoreDrafts(1, 2)])


def test_aborted_proposal_leaves_a_sequence_that_can_be_cleared(session: NativeSession) -> None:
    start(session, 0)
    start(session, 1)
    session.propose([MoreDrafts(0, 2)])
    session.abort()
    with pytest.raises(CancelledError):
        session.propose([MoreDrafts(0, 2)])
    session.abort_reset()
    with pytest.raises(SequenceStateError):
        session.cycle([Ask(0, 1, 1)])
    session.clear(0)
    assert plain(session, 20) == _with_drafts(session, 20)
    assert len(go_on(session, 4, 2, seq=1)) == 4  # it was to draft nothing


def _with_drafts(session: NativeSession, n_tokens: int) -> list[int]:
    start(session)
    return go_on(session, n_tokens, 4)
