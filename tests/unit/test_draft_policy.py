"""How an engine follows a policy that plans drafts and looks at them, on a scripted session."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from _fake_session import FakeSession, token_bytes

from pylucebox._batch import run_many
from pylucebox._errors import InvalidArgumentError
from pylucebox._generate import Run
from pylucebox._request import Request, RequestRules
from pylucebox._session import Ask, MoreDrafts
from pylucebox._spec import SpecReason, spec_active
from pylucebox.width import CycleContext, CycleObservation, CyclePlan, DraftPolicy, WidthPolicy

REPLY = b"The quick brown fox jumps over the lazy dog, " * 2
RULES = RequestRules(n_ctx=1024, verify_width=0, max_width=8, spec=spec_active("test"))


def make_request(prompt: bytes = b"hello", max_tokens: int = 500, verify_width: int | None = None) -> Request:
    return RULES.request(
        prompt, max_tokens=max_tokens, stop=(), sampling=None, logprobs=None, verify_width=verify_width
    )


class Planner:
    """Follows a plan and a list of decisions, and remembers all it is told."""

    def __init__(self, plan: Any = None, decisions: Sequence[Any] = (), against: str | None = None) -> None:
        self.the_plan = CyclePlan(1, 0) if plan is None else plan
        self.decisions = decisions
        self.against = against
        self.contexts: list[CycleContext] = []
        self.shown: list[tuple[int, int]] = []
        self.observations: list[CycleObservation] = []
        self.asked_before: list[tuple[int, int]] = []

    def begin(self, n_seq: int, max_width: int) -> None:
        """Nothing to prepare."""

    def choose(self, seq: int, context: CycleContext) -> int:  # noqa: ARG002 - not to be called
        raise AssertionError("a policy with plans is asked for those")

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:
        assert seq == context.seq
        self.contexts.append(context)
        self._left = list(self.decisions)
        return self.the_plan(context) if callable(self.the_plan) else self.the_plan

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:  # noqa: ARG002
        self.shown.append((seq, len(probs)))
        decision: tuple[int, int] = self._left.pop(0)
        return decision

    def observe(self, seq: int, observation: CycleObservation) -> None:
        assert seq == observation.seq
        self.observations.append(observation)

    def worth_drafting(self, prompt_tokens: int, max_tokens: int) -> str | None:
        self.asked_before.append((prompt_tokens, max_tokens))
        return self.against

    def telemetry(self) -> Any:
        return SimpleNamespace(cycles=len(self.observations))


def run(session: FakeSession, policy: WidthPolicy, request: Request | None = None) -> Run:
    one = Run(request or make_request(), session, 0, token_bytes, policy)
    one.drive()
    assert one.completion().text == REPLY.decode()[: one.completion().stats.completion_tokens]
    return one


def test_planner_is_a_policy_with_drafts() -> None:
    assert isinstance(Planner(), DraftPolicy)


def test_plan_without_question_and_shadows_is_one_native_call() -> None:
    session = FakeSession(REPLY)
    run(session, Planner(lambda context: CyclePlan(min(4, context.max_width), min(4, context.max_width) - 1)))
    assert session.proposed == []
    assert session.asked[0] == (Ask(0, 4, 499),)


def test_shadow_drafts_are_made_first_and_reported() -> None:
    session, policy = FakeSession(REPLY, holds=lambda n: n != 7), Planner(CyclePlan(2, 5))
    run(session, policy)
    assert session.proposed[0] == (MoreDrafts(0, 5),)
    assert session.asked[0] == (Ask(0, 2, 499),)
    first = policy.observations[0]
    assert (first.width, first.n_verified, first.n_drafted, first.n_accepted) == (2, 1, 5, 1)
    assert first.draft_tokens == tuple(REPLY[1:6])
    assert first.tokens == tuple(REPLY[1:3])
    assert len(first.draft_probs) == 5
    assert policy.shown == []


def test_question_is_repeated_until_no_more_drafts_are_wanted() -> None:
    session = FakeSession(REPLY)
    policy = Planner(CyclePlan(1, 1, ask=True), decisions=[(2, 1), (3, 3), (4, 0)])
    one = Run(make_request(max_tokens=5), session, 0, token_bytes, policy)
    one.drive()
    assert session.proposed == [(MoreDrafts(0, 1),), (MoreDrafts(0, 1),), (MoreDrafts(0, 3),)]
    assert policy.shown == [(0, 1), (0, 2), (0, 5)]
    assert session.asked == [(Ask(0, 4, 4),)]
    assert (policy.observations[0].n_drafted, policy.observations[0].n_verified) == (5, 3)


def test_decision_may_verify_more_than_was_drafted() -> None:
    session = FakeSession(REPLY)
    policy = Planner(CyclePlan(1, 2, ask=True), decisions=[(6, 0)])
    one = Run(make_request(max_tokens=7), session, 0, token_bytes, policy)
    one.drive()
    assert (policy.observations[0].n_drafted, policy.observations[0].n_verified) == (5, 5)


def test_who_always_wants_more_is_not_asked_for_ever() -> None:
    policy = Planner(CyclePlan(1, 1, ask=True), decisions=[(8, 7)] * 9)
    session = FakeSession(REPLY)
    one = Run(make_request(max_tokens=9), session, 0, token_bytes, policy)
    one.drive()
    assert policy.shown == [(0, 1), (0, 7)]
    assert session.asked == [(Ask(0, 8, 8),)]


def test_drafts_end_with_the_context_and_so_do_questions() -> None:
    session = FakeSession(REPLY, n_ctx=20)
    policy = Planner(CyclePlan(1, 7, ask=True), decisions=[(1, 7)] * 9)
    one = Run(make_request(b"p" * 15), session, 0, token_bytes, policy)
    one.drive()
    assert one.finish_reason == "context"
    assert [context.max_width for context in policy.contexts] == [5, 4, 3, 2, 1]
    assert policy.shown == [(0, 5), (0, 4), (0, 3), (0, 2), (0, 1)]


def test_several_sequences_draft_together_and_are_asked_by_themselves() -> None:
    plans = {0: CyclePlan(2, 3, ask=True), 1: CyclePlan(3, 2), 2: CyclePlan(1, 2)}
    session = FakeSession(REPLY, n_seq=3)
    policy = Planner(lambda context: plans[context.seq], decisions=[(2, 1), (3, 0)])
    runs = run_many(
        session, [make_request(max_tokens=4)] * 3, lambda one, seq: Run(one, session, seq, token_bytes, policy)
    )
    assert [one.completion().text for one in runs] == [REPLY[:4].decode()] * 3
    assert session.proposed[:2] == [(MoreDrafts(0, 3), MoreDrafts(2, 2)), (MoreDrafts(0, 1),)]
    assert session.asked[0] == (Ask(0, 3, 3), Ask(1, 3, 3), Ask(2, 1, 3))
    assert policy.shown[:2] == [(0, 3), (0, 4)]
    assert [seen.n_active for seen in policy.observations[:3]] == [3, 3, 3]
    assert [context.n_active for context in policy.contexts[:3]] == [3, 3, 3]
    assert policy.observations[0].n_rows == 7


@pytest.mark.parametrize(
    ("plan", "decisions", "value"),
    [
        (CyclePlan(0, 3), (), 0),
        (CyclePlan(9, 7), (), 9),
        (CyclePlan(3, 1), (), 1),
        (CyclePlan(1, 8), (), 8),
        ((1, 2.0, False), (), 2.0),
        ((1, True, False), (), True),
        (CyclePlan(1, 1, ask=True), [(0, 0)], 0),
        (CyclePlan(1, 1, ask=True), [(1, -1)], -1),
        (CyclePlan(1, 1, ask=True), [(1, 8)], 8),
    ],
)
def test_impossible_plans_and_decisions_are_named(plan: Any, decisions: Sequence[Any], value: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        run(FakeSession(REPLY), Planner(plan, decisions))
    assert caught.value.argument == "width_policy"
    assert caught.value.value == value


def test_numpy_numbers_are_numbers() -> None:
    session = FakeSession(REPLY)
    policy = Planner(CyclePlan(np.int64(2), np.int32(3), ask=True), decisions=[(np.int64(3), np.int8(0))])  # type: ignore[arg-type]
    one = Run(make_request(max_tokens=4), session, 0, token_bytes, policy)
    one.drive()
    assert type(session.proposed[0][0].n_more) is int
    assert session.asked[0] == (Ask(0, 3, 3),)


def test_request_that_is_not_worth_it_runs_without_mtp_and_says_why() -> None:
    session = FakeSession(REPLY)
    policy = Planner(against="too short")
    one = run(session, policy)
    completion = one.completion()
    assert policy.asked_before == [(5, 500)]
    assert policy.contexts == policy.observations == []
    assert (completion.spec.effective, completion.spec.reason_code) == (False, SpecReason.NOT_WORTH_IT)
    assert completion.spec.reason == "too short"
    assert completion.stats.num_drafts == 0
    assert all(ask.width == 1 for asks in session.asked for ask in asks)


def test_worth_is_asked_once_for_each_request() -> None:
    session = FakeSession(REPLY, n_seq=2)
    policy = Planner(CyclePlan(1, 0))
    requests = [make_request(b"a" * n, max_tokens=n) for n in (3, 4, 5)]
    run_many(session, requests, lambda one, seq: Run(one, session, seq, token_bytes, policy))
    assert policy.asked_before == [(3, 3), (4, 4), (5, 5)]


def test_abort_while_drafting_cancels() -> None:
    session = FakeSession(REPLY)
    policy = Planner(CyclePlan(1, 2, ask=True), decisions=[(3, 1), (4, 0)])
    session._on_call = lambda name: session.abort() if name == "propose" and len(session.proposed) == 3 else None
    one = Run(make_request(), session, 0, token_bytes, policy)
    one.drive()
    completion = one.completion()
    assert completion.finish_reason == "cancelled"
    assert completion.text == REPLY[: len(completion.token_ids)].decode() != ""


@pytest.mark.parametrize("holds", [lambda _n: True, lambda _n: False, lambda n: n % 3 != 0])
def test_text_is_the_same_whatever_is_planned_and_decided(holds: Callable[[int], bool]) -> None:
    rng = random.Random(0)

    class Wild(Planner):
        def plan(self, seq: int, context: CycleContext) -> CyclePlan:  # noqa: ARG002 - wild
            width = rng.randint(1, context.max_width)
            self.widest = context.max_width
            return CyclePlan(width, rng.randint(width - 1, 7), ask=rng.random() < 0.7)

        def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:  # noqa: ARG002 - wild
            return rng.randint(1, self.widest), rng.choice((0, 0, 1, 7))

    for _ in range(30):
        session, policy = FakeSession(REPLY, holds=holds), Wild()
        completion = run(session, policy).completion()
        assert completion.token_ids == tuple(REPLY)
        stats = completion.stats
        assert stats.num_draft_tokens == sum(seen.n_verified for seen in policy.observations)


def test_completion_carries_what_the_policy_tells_at_its_end() -> None:
    session, policy = FakeSession(REPLY), Planner(CyclePlan(2, 4))
    first = run(session, policy, make_request(max_tokens=9))
    session.clear(0)
    run(session, policy, make_request(max_tokens=9))
    telemetry: Any = first.completion().telemetry
    assert telemetry.cycles == 4 < len(policy.observations)


def test_shadow_drafts_are_counted_apart() -> None:
    policy = Planner(CyclePlan(2, 5))
    stats = run(FakeSession(REPLY), policy, make_request(max_tokens=9)).completion().stats
    assert stats.num_draft_tokens == sum(seen.n_verified for seen in policy.observations) == 4
    assert stats.num_shadow_draft_tokens == 4 * 4
    assert stats.verified_histogram == (0, 4, 0, 0, 0, 0, 0, 0)
    assert stats.drafted_histogram == (0, 0, 0, 0, 0, 4, 0, 0)
    assert stats.acceptance_rate == 1.0
