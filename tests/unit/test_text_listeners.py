"""Policies that are told how probable the trunk held what it writes, on a scripted session."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from _fake_session import LOGPROB, FakeSession, token_bytes

from pylucebox._batch import run_many
from pylucebox._generate import Run
from pylucebox._request import RequestRules
from pylucebox._spec import spec_active
from pylucebox.width import CycleContext, CycleObservation, CyclePlan, TextListener

from .test_draft_policy import Planner

REPLY = b"The quick brown fox jumps over the lazy dog, " * 2
RULES = RequestRules(n_ctx=1024, verify_width=0, max_width=8, spec=spec_active("test"))


class Listener(Planner):
    """Rests as long as it is told to, and remembers what it hears."""

    def __init__(self, *, rest: int = 0, against: str | None = None, drafts: bool = True, refused: bool = True) -> None:
        super().__init__(plan=lambda context: CyclePlan(self.width if context.n_active == 1 else 1, self.width - 1))
        self.width = 1
        self.rest = rest
        self.against = against
        self.wants = {True: drafts, False: refused}
        self.overheard: list[tuple[Sequence[float], int]] = []

    def wants_logprobs(self, *, drafts: bool) -> bool:
        return self.wants[drafts]

    def rests(self, seq: int) -> int:
        assert seq in (0, 1)
        return self.rest

    def overhear(self, logprobs: Sequence[float], n_tokens: int) -> None:
        self.overheard.append((logprobs, n_tokens))


def drive(policy: Planner, session: FakeSession | None = None, max_tokens: int = 500) -> FakeSession:
    session = session or FakeSession(REPLY)
    request = RULES.request(b"hello", max_tokens=max_tokens, stop=(), sampling=None, logprobs=None, verify_width=None)
    run = Run(request, session, 0, token_bytes, policy)
    run.drive()
    assert run.completion().text == REPLY.decode()[:max_tokens]
    return session


def tokens_of(observations: Sequence[CycleObservation]) -> list[int]:
    return [token for observation in observations for token in observation.tokens]


def test_listener_is_told_of_each_token() -> None:
    policy = Listener()
    assert isinstance(policy, TextListener)
    policy.width = 4
    drive(policy)
    assert all(context.logprobs for context in policy.contexts)
    assert all(seen.logprobs == (LOGPROB,) * len(seen.tokens) for seen in policy.observations)


@pytest.mark.parametrize("policy", [Planner(), Listener(drafts=False)])
def test_others_are_told_nothing(policy: Planner) -> None:
    session = drive(policy)
    assert not any(context.logprobs for context in policy.contexts)
    assert not any(seen.logprobs for seen in policy.observations)
    assert not any(ask.logprobs for asks in session.asked for ask in asks)


def test_policy_that_rests_is_asked_and_told_once_for_many_cycles() -> None:
    policy = Listener(rest=5)
    session = drive(policy, max_tokens=21)
    assert len(session.asked) == 20
    assert policy.contexts == [], "the next rest begins behind the last"
    assert [len(seen.tokens) for seen in policy.observations] == [5, 5, 5, 5]
    assert bytes(tokens_of(policy.observations)) == REPLY[1:21]
    assert all(seen.width == 1 and len(seen.logprobs) == 5 for seen in policy.observations)


def test_rest_that_the_text_ends_in_is_told_too() -> None:
    policy = Listener(rest=16)
    drive(policy, max_tokens=31)
    assert [len(seen.tokens) for seen in policy.observations] == [16, 14]


def test_rest_ends_when_another_sequence_joins() -> None:
    class Asked(Listener):
        def plan(self, seq: int, context: CycleContext) -> CyclePlan:
            assert context.n_active == 2
            return super().plan(seq, context)

    session = FakeSession(REPLY, n_seq=2)
    policy = Asked(rest=50)
    requests = [
        RULES.request(b"hello", max_tokens=9, stop=(), sampling=None, logprobs=None, verify_width=None)
        for _ in range(2)
    ]
    run_many(session, requests, lambda request, seq: Run(request, session, seq, token_bytes, policy))
    assert len(policy.contexts) == 16, "each of both before each cycle"


def test_policy_hears_parts_of_a_text_that_it_refused() -> None:
    policy = Listener(against="too short")
    session = drive(policy, max_tokens=41)
    assert policy.contexts == policy.observations == []
    assert policy.overheard == [([LOGPROB] * 10, 40)]
    assert all(ask.width == 1 for asks in session.asked for ask in asks)


def test_policy_need_not_hear_of_what_it_refused() -> None:
    policy = Listener(against="too short", refused=False)
    session = drive(policy)
    assert policy.overheard == []
    assert not any(ask.logprobs for asks in session.asked for ask in asks)
