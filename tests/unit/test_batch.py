"""Many requests over few sequences, on a scripted session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from _fake_session import NO_TOKEN, STUCK, FakeSession, token_bytes

from pylucebox._batch import run_many
from pylucebox._errors import ClosedError, SamplingError
from pylucebox._generate import Run
from pylucebox._request import Request, RequestRules
from pylucebox._result import Completion
from pylucebox._spec import spec_active

RULES = RequestRules(n_ctx=1024, verify_width=0, max_width=8, spec=spec_active("test"))
PROMPTS = [b"a", b"bb", b"ccc", b"d" * 9, b"", b"e" * 4, b"f" * 30]


def reply(prompt: Sequence[int]) -> bytes:
    """Replies of very different lengths, some empty."""
    return bytes(prompt) * (len(prompt) % 5)


def request(prompt: bytes, width: int) -> Request:
    return RULES.request(b">" + prompt, max_tokens=60, stop=(), sampling=None, logprobs=2, verify_width=width)


def run_all(session: FakeSession, prompts: Sequence[bytes], width: int = 3) -> list[Completion]:
    def make(one: Request, seq: int) -> Run:
        return Run(one, session, seq, token_bytes)

    return [run.completion() for run in run_many(session, [request(prompt, width) for prompt in prompts], make)]


def one_by_one(prompts: Sequence[bytes]) -> list[Completion]:
    out = []
    for prompt in prompts:
        session = FakeSession(reply)
        run = Run(request(prompt, 1), session, 0, token_bytes)
        run.drive()
        out.append(run.completion())
    return out


@pytest.mark.parametrize("holds", [lambda _n: True, lambda _n: False, lambda n: n % 4 != 1])
@pytest.mark.parametrize("n_seq", [1, 2, 3, 8])
def test_results_equal_single_runs_and_keep_the_order(n_seq: int, holds: Callable[[int], bool]) -> None:
    together = run_all(FakeSession(reply, n_seq=n_seq, holds=holds), PROMPTS)
    for got, wanted in zip(together, one_by_one(PROMPTS), strict=True):
        assert (got.text, got.token_ids, got.finish_reason) == (wanted.text, wanted.token_ids, wanted.finish_reason)
        assert got.logprobs == wanted.logprobs
        assert got.prompt_tokens == wanted.prompt_tokens


def test_free_sequence_takes_the_next_prompt_before_the_next_cycle() -> None:
    lengths = {b"x": 1, b"y": 20}
    session = FakeSession(lambda prompt: b"r" * lengths[bytes(prompt[1:])], n_seq=2)
    run_all(session, [b"y", b"x", b"x", b"y", b"y"])
    busy = [len(asks) for asks in session.asked]
    # Two sequences run until the last prompt has started; only its tail runs alone.
    assert busy == sorted(busy, reverse=True)
    assert busy[0] == 2


def test_no_more_sequences_than_prompts_are_used() -> None:
    session = FakeSession(reply, n_seq=8)
    run_all(session, [b"bb", b"ccc"])
    assert {ask.seq for asks in session.asked for ask in asks} == {0, 1}


def test_all_sequences_are_clear_afterwards() -> None:
    session = FakeSession(reply, n_seq=3)
    run_all(session, PROMPTS)
    assert session.busy == []


def test_abort_ends_running_and_waiting_requests_and_keeps_finished_ones() -> None:
    calls = 0

    def count(name: str) -> None:
        nonlocal calls
        calls += name == "cycle"
        if calls == 4:
            session.abort()

    lengths = {b"x": 4, b"y": 50}
    session = FakeSession(lambda prompt: b"r" * lengths[bytes(prompt[1:])], n_seq=2, on_call=count)
    done = run_all(session, [b"x", b"y", b"y", b"y"])
    assert [completion.finish_reason for completion in done] == ["stop", "cancelled", "cancelled", "cancelled"]
    assert done[0].text == "rrrr"
    assert 0 < len(done[1].token_ids) < 50
    assert done[3].token_ids == ()


def test_close_during_a_batch_raises() -> None:
    session = FakeSession(reply, n_seq=2, on_call=lambda name: session.close() if name == "cycle" else None)
    with pytest.raises(ClosedError):
        run_all(session, PROMPTS)


@pytest.mark.parametrize("holds", [lambda _n: True, lambda _n: False])
@pytest.mark.parametrize("n_seq", [1, 2, 3, 8])
@pytest.mark.parametrize("n_before", [0, 1, 2, 5])
def test_sampler_that_fails_ends_its_own_request_only(n_before: int, n_seq: int, holds: Callable[[int], bool]) -> None:
    prompts = [b"a", b"bb", b"stuck", b"d" * 9, b"stuck", b"e" * 4]

    def one_gets_stuck(prompt: Sequence[int]) -> bytes:
        return b"r" * n_before + bytes([STUCK]) if bytes(prompt[1:]) == b"stuck" else reply(prompt)

    session = FakeSession(one_gets_stuck, n_seq=n_seq, holds=holds)
    together = run_all(session, prompts)
    assert session.busy == []
    for got, wanted, prompt in zip(together, one_by_one(prompts), prompts, strict=True):
        if prompt == b"stuck":
            assert (got.finish_reason, got.text) == ("error", "r" * n_before)
            assert isinstance(got.error, SamplingError)
            assert got.error.seen == NO_TOKEN
            assert len(got.logprobs or ()) == n_before
        else:
            assert (got.token_ids, got.finish_reason) == (wanted.token_ids, wanted.finish_reason)
            assert got.error is None


def test_no_requests_give_no_results() -> None:
    assert run_all(FakeSession(reply), []) == []
