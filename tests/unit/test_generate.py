"""Steps and completions of one request, on a scripted session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from _fake_session import EOG, FakeSession, token_bytes

from pylucebox._errors import ClosedError, InvalidArgumentError
from pylucebox._generate import Run
from pylucebox._request import Request, RequestRules
from pylucebox._result import Completion, Step
from pylucebox._sampling import SamplingParams
from pylucebox._spec import SpecReason, spec_active, spec_inactive
from pylucebox._stats import RequestStats
from pylucebox.width import CycleContext, CycleObservation, WidthPolicy

REPLY = b"The quick brown fox jumps over the lazy dog, " * 2
WIDTHS = range(1, 9)
PATTERNS: dict[str, Callable[[int], bool]] = {
    "all drafts hold": lambda _n: True,
    "no draft holds": lambda _n: False,
    "two of three hold": lambda n: n % 3 != 0,
}


def make_request(**changes: Any) -> Request:
    options = {"max_tokens": 500, "stop": (), "sampling": None, "logprobs": None, "verify_width": None}
    rules = RequestRules(n_ctx=1024, verify_width=4, max_width=8, spec=spec_active("test"))
    return rules.request(changes.pop("prompt", b"hello"), **{**options, **changes})


def run(session: FakeSession, request: Request, policy: WidthPolicy | None = None) -> tuple[list[Step], Completion]:
    """Stream a request, and make sure that it gives the same without steps."""
    session.clear(0)
    one = Run(request, session, 0, token_bytes, policy)
    steps = list(one.steps())
    completion = one.completion()
    if policy is None and completion.finish_reason != "cancelled":
        session.clear(0)
        quiet = Run(request, session, 0, token_bytes)
        quiet.drive()
        assert untimed(quiet.completion()) == untimed(completion)
    return steps, completion


def untimed(completion: Completion) -> Completion:
    return replace(completion, stats=RequestStats())


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_gives_the_reply_up_to_its_end_token(width: int, pattern: str) -> None:
    steps, completion = run(FakeSession(REPLY, holds=PATTERNS[pattern]), make_request(verify_width=width))
    assert completion.text == REPLY.decode()
    assert completion.token_ids == tuple(REPLY)
    assert completion.finish_reason == "stop"
    assert completion.stop_sequence is None
    assert "".join(step.text for step in steps) == completion.text
    assert [step.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)


@pytest.mark.parametrize("width", WIDTHS)
def test_stop_string_inside_accepted_drafts_ends_text_and_tokens(width: int) -> None:
    steps, completion = run(FakeSession(REPLY), make_request(stop="fox", verify_width=width))
    assert completion.text == "The quick brown "
    assert bytes(completion.token_ids) == b"The quick brown fox"
    assert completion.finish_reason == "stop"
    assert completion.stop_sequence == "fox"
    assert sum(len(step.token_ids) for step in steps) == len(completion.token_ids)
    assert all("f" not in step.text for step in steps)


@pytest.mark.parametrize("limit", range(1, 12))
@pytest.mark.parametrize("width", WIDTHS)
def test_limit_inside_accepted_drafts_gives_exactly_that_many_tokens(width: int, limit: int) -> None:
    _, completion = run(FakeSession(REPLY), make_request(max_tokens=limit, verify_width=width))
    assert completion.token_ids == tuple(REPLY[:limit])
    assert completion.finish_reason == "length"
    assert completion.stats.completion_tokens == limit


@pytest.mark.parametrize("width", WIDTHS)
def test_text_held_back_for_a_stop_string_is_given_out_at_the_end(width: int) -> None:
    _, completion = run(FakeSession(b"ab END"), make_request(stop="ENDING", verify_width=width))
    assert completion.text == "ab END"
    _, completion = run(FakeSession(b"ab ENDxxxx"), make_request(stop="ENDING", max_tokens=5, verify_width=width))
    assert completion.text == "ab EN"


@pytest.mark.parametrize("width", WIDTHS)
def test_full_context_ends_with_its_own_reason(width: int) -> None:
    session = FakeSession(REPLY, n_ctx=20)
    _, completion = run(session, make_request(prompt=b"0123456789", verify_width=width))
    assert completion.finish_reason == "context"
    assert completion.token_ids == tuple(REPLY[:11])


def test_prompt_that_fills_the_context_still_gives_one_token() -> None:
    _, completion = run(FakeSession(REPLY, n_ctx=10), make_request(prompt=b"0123456789"))
    assert completion.token_ids == tuple(REPLY[:1])
    assert completion.finish_reason == "context"


def test_end_token_as_first_token_gives_an_empty_completion() -> None:
    steps, completion = run(FakeSession(b""), make_request())
    assert (completion.text, completion.token_ids, completion.finish_reason) == ("", (), "stop")
    assert len(steps) == 1


def test_end_token_is_not_among_the_tokens() -> None:
    steps, completion = run(FakeSession(b"abc"), make_request(logprobs=1))
    assert EOG not in completion.token_ids
    assert completion.logprobs is not None
    assert len(completion.logprobs) == 3
    assert steps[-1].finish_reason == "stop"


@pytest.mark.parametrize("width", WIDTHS)
def test_character_that_spans_cycles_is_not_split(width: int) -> None:
    text = "naïve 漢字 🙂 end"
    steps, completion = run(
        FakeSession(text.encode(), holds=PATTERNS["two of three hold"]), make_request(verify_width=width)
    )
    assert completion.text == text
    assert all("\ufffd" not in step.text for step in steps)


def test_unfinished_character_shows_as_replacement_only_at_the_end() -> None:
    _, completion = run(FakeSession("ab🙂".encode()), make_request(max_tokens=4))
    assert completion.text == "ab\ufffd"


def test_from_draft_marks_the_accepted_drafts() -> None:
    steps, _ = run(FakeSession(REPLY, holds=lambda n: n != 3), make_request(max_tokens=12, verify_width=4))
    assert steps[0].from_draft == (False,)
    assert steps[1].token_ids == tuple(REPLY[1:4])
    assert steps[1].from_draft == (True, True, False)
    assert steps[2].from_draft == (True, True, True, False)


@pytest.mark.parametrize("width", WIDTHS)
def test_logprobs_are_those_of_each_token_whatever_the_width(width: int) -> None:
    request = make_request(logprobs=3, max_tokens=20, verify_width=width)
    steps, completion = run(FakeSession(REPLY, holds=PATTERNS["two of three hold"]), request)
    _, plain = run(FakeSession(REPLY), replace(request, verify_width=1))
    assert completion.logprobs == plain.logprobs
    assert completion.logprobs is not None
    assert [entry.token_id for entry in completion.logprobs] == list(completion.token_ids)
    assert [len(entry.top) for entry in completion.logprobs] == [3] * 20
    joined = [entry for step in steps for entry in step.logprobs or ()]
    assert tuple(joined) == completion.logprobs


def test_no_logits_are_read_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession(REPLY)
    monkeypatch.setattr(session, "logits", lambda *_: pytest.fail("logits were read"))
    steps, completion = run(session, make_request())
    assert completion.logprobs is None
    assert all(step.logprobs is None for step in steps)


def test_cycle_data_reach_step_and_stats() -> None:
    steps, completion = run(FakeSession(REPLY, holds=lambda n: n != 3), make_request(max_tokens=8, verify_width=4))
    assert steps[0].cycle is None
    info = steps[1].cycle
    assert info is not None
    assert (info.width, info.n_drafted, info.n_accepted) == (4, 3, 2)
    assert info.draft_probs == (0.5, 0.5, 0.5)
    stats = completion.stats
    assert stats.prompt_tokens == 5
    assert stats.cycles == len(steps) - 1
    assert stats.num_accepted_tokens_per_pos[:3] == (2, 2, 1)
    assert stats.verify_ms == pytest.approx(0.1 * stats.cycles)


def test_width_one_runs_without_policy_and_without_drafts() -> None:
    session = FakeSession(REPLY)
    _, completion = run(session, make_request(verify_width=1, max_tokens=6))
    assert completion.stats.num_drafts == 0
    assert {ask.width for asks in session.asked for ask in asks} == {1}
    assert completion.spec.reason_code is SpecReason.OFF_REQUESTED


def test_spec_of_an_engine_without_mtp_is_reported_as_it_is() -> None:
    state = spec_inactive(SpecReason.NO_SIDECAR, "nothing there")
    rules = RequestRules(n_ctx=64, verify_width=0, max_width=8, spec=state)
    request = rules.request(b"x", max_tokens=3, stop=(), sampling=None, logprobs=None, verify_width=4)
    assert request.spec is state
    assert not request.use_mtp


class _Recorder:
    def __init__(self, width: int) -> None:
        self.width = width
        self.contexts: list[CycleContext] = []
        self.observations: list[CycleObservation] = []

    def begin(self, n_seq: int, max_width: int) -> None:
        """Nothing to prepare."""

    def choose(self, seq: int, context: CycleContext) -> int:
        assert seq == context.seq
        self.contexts.append(context)
        return min(self.width, context.max_width)

    def observe(self, seq: int, observation: CycleObservation) -> None:
        assert seq == observation.seq
        self.observations.append(observation)


def test_policy_sees_what_is_left_and_what_came_of_its_choice() -> None:
    policy = _Recorder(3)
    run(FakeSession(REPLY, holds=lambda n: n != 2), make_request(max_tokens=7), policy=policy)
    assert [context.max_tokens_left for context in policy.contexts] == [6, 4, 1]
    assert [context.n_past for context in policy.contexts] == [5, 7, 10]
    assert [context.max_width for context in policy.contexts] == [6, 4, 1]
    assert [(seen.n_drafted, seen.n_accepted) for seen in policy.observations] == [(2, 1), (2, 2), (0, 0)]


@pytest.mark.parametrize("width", [0, 9, -1, 1.0, "2", True, None])
def test_policy_that_chooses_an_impossible_width_is_named(width: Any) -> None:
    class Wild(_Recorder):
        def choose(self, seq: int, context: CycleContext) -> int:  # noqa: ARG002 - wild
            return self.width

    with pytest.raises(InvalidArgumentError) as caught:
        run(FakeSession(REPLY), make_request(), policy=Wild(width))
    assert caught.value.argument == "width_policy"
    assert caught.value.value == width


def test_policy_may_choose_with_numpy() -> None:
    session = FakeSession(REPLY)
    run(session, make_request(verify_width=0), policy=_Recorder(np.int64(3)))
    assert type(session.asked[0][0].width) is int
    assert session.asked[0][0].width == 3


def test_abort_between_cycles_ends_with_cancelled_and_keeps_the_text() -> None:
    session = FakeSession(REPLY)
    one = Run(make_request(stop="quirk", verify_width=4), session, 0, token_bytes)
    steps = one.steps()
    seen = [next(steps), next(steps), next(steps)]
    session.abort()
    seen += list(steps)
    completion = one.completion()
    assert completion.finish_reason == seen[-1].finish_reason == "cancelled"
    assert seen[-1].token_ids == ()
    assert completion.text == "".join(step.text for step in seen) == REPLY[: len(completion.token_ids)].decode()
    assert len(completion.token_ids) == 9


def test_abort_during_the_prompt_gives_an_empty_cancelled_completion() -> None:
    session = FakeSession(REPLY)
    session.abort()
    steps, completion = run(session, make_request(logprobs=0))
    assert (completion.text, completion.token_ids, completion.logprobs) == ("", (), ())
    assert [step.finish_reason for step in steps] == ["cancelled"]


def test_progress_that_returns_false_cancels() -> None:
    session = FakeSession(REPLY)
    one = Run(make_request(), session, 0, token_bytes)
    one.start(progress=lambda _fraction: False)
    assert one.finish_reason == "cancelled"


def test_close_while_streaming_raises_closed_error() -> None:
    session = FakeSession(REPLY)
    steps = Run(make_request(), session, 0, token_bytes).steps()
    next(steps)
    session.close()
    with pytest.raises(ClosedError) as caught:
        next(steps)
    assert caught.value.what == "engine"


def test_completion_of_a_run_that_goes_on_is_refused() -> None:
    session = FakeSession(REPLY)
    one = Run(make_request(), session, 0, token_bytes)
    one.start()
    with pytest.raises(RuntimeError):
        one.completion()


def test_seed_is_reported_only_when_it_had_a_say() -> None:
    _, greedy = run(FakeSession(REPLY), make_request(max_tokens=1))
    _, chosen = run(FakeSession(REPLY), make_request(max_tokens=1, sampling=SamplingParams(seed=7)))
    session = FakeSession(REPLY)
    _, drawn = run(session, make_request(max_tokens=1, sampling=SamplingParams()))
    assert greedy.seed is None
    assert chosen.seed == 7
    assert drawn.seed == session.samplers[0].params.seed is not None


def test_bad_grammar_is_refused_before_anything_runs() -> None:
    session = FakeSession(REPLY, on_call=lambda name: pytest.fail(f"{name} was called"))
    with pytest.raises(InvalidArgumentError):
        Run(make_request(sampling=SamplingParams(grammar="bad")), session, 0, token_bytes)
