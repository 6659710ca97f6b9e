"""Policies that answer the events of a server."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from pylucebox import InvalidArgumentError
from pylucebox.serve import _native
from pylucebox.serve.policy import AT_ONCE, PolicyHost, answer_events
from pylucebox.width import AdaptiveWidth, CycleContext, CycleObservation, CyclePlan, FixedWidth


class Log:
    """What a policy was told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Any]] = []
        self.made = 0

    def policy(self) -> Noting:
        self.made += 1
        return Noting(self)


class Noting(FixedWidth):
    def __init__(self, log: Log) -> None:
        super().__init__(4)
        self.log = log

    def note(self, what: str, value: Any) -> None:
        self.log.lines.append((what, value))

    def begin(self, n_seq: int, max_width: int) -> None:
        self.note("begin", (n_seq, max_width))

    def choose(self, seq: int, context: CycleContext) -> int:
        self.note("choose", context)
        return super().choose(seq, context)

    def observe(self, seq: int, observation: CycleObservation) -> None:  # noqa: ARG002
        self.note("observe", observation)


class Deep(Noting):
    def plan(self, seq: int, context: CycleContext) -> CyclePlan:  # noqa: ARG002
        return CyclePlan(3, 5, ask=True)

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:  # noqa: ARG002
        self.note("decide", list(probs))
        return 2, 1

    def worth_drafting(self, prompt_tokens: int, max_tokens: int) -> str | None:
        self.note("worth", (prompt_tokens, max_tokens))
        return "too short" if max_tokens < 10 else None

    def telemetry(self) -> Any:
        return None


def event(kind: int, *slots: dict[str, Any], **values: Any) -> Any:
    made = _native.Event(kind=kind, n_slots=len(slots), **values)
    for entry, fields in zip(made.slots, slots, strict=False):
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(entry, name)[: len(value)] = value
            else:
                setattr(entry, name, value)
    return made


def loaded(n_slots: int) -> Any:
    made = event(_native.LOADED, n_draft_max=7)
    made.n_slots = n_slots
    return made


BEGIN = {"slot": 1, "n_past": 10, "n_left": 100, "max_width": 8}


def test_slots_are_sequences_of_one_policy() -> None:
    log = Log()
    host = PolicyHost(log.policy)
    host.handle(loaded(3))
    assert log.made == 1
    begin = event(_native.BEGIN, BEGIN, n_active=1)
    host.handle(begin)
    assert log.lines == [("begin", (3, 8)), ("choose", CycleContext(1, 10, 100, 8, 1))]
    assert (begin.slots[0].next_width, begin.slots[0].next_n_draft, begin.slots[0].next_ask) == (4, 3, 0)
    log.lines.clear()
    host.handle(event(_native.BEGIN, {**BEGIN, "slot": 2}, n_active=2))
    assert log.lines == [("choose", CycleContext(2, 10, 100, 8, 2))]  # another reply is underway


def test_all_slots_of_a_pass_are_observed_before_the_next_is_planned() -> None:
    log = Log()
    host = PolicyHost(log.policy)
    host.handle(loaded(2))
    both = [{**BEGIN, "slot": slot, "width": 1, "n_tokens": 1} for slot in (0, 1)]
    host.handle(event(_native.REPORT, *both, n_active=2))
    assert [what for what, _ in log.lines] == ["observe", "observe", "choose", "choose"]


def test_report_is_an_observation_and_asks_for_the_next_pass() -> None:
    log = Log()
    host = PolicyHost(log.policy)
    host.handle(loaded(2))
    entry = {
        **BEGIN,
        "width": 4,
        "n_drafted": 3,
        "n_accepted": 1,
        "n_tokens": 2,
        "n_past": 12,
        "n_left": 2,
        "max_width": 2,
        "drafts": [7, 8, 9],
        "probs": [0.5, 0.25, 0.125],
        "tokens": [7, 5],
    }
    times = {"draft_us": 20, "verify_us": 30, "n_rows": 6, "n_active": 2, "graph_built": 1, "with_prompt": 1}
    report = event(_native.REPORT, entry, **times)
    host.handle(report)
    (_, seen), (_, context) = log.lines
    assert seen == CycleObservation(
        seq=1,
        width=4,
        n_drafted=3,
        n_accepted=1,
        draft_probs=(0.5, 0.25, 0.125),
        draft_us=20,
        verify_us=30,
        rollback_us=0,
        n_rows=6,
        graph_built=True,
        draft_tokens=(7, 8, 9),
        tokens=(7, 5),
        n_active=2,
        shared_prefill=True,
    )
    assert context == CycleContext(1, 12, 2, 2, 2)
    assert report.slots[0].next_width == 2  # no more is left


def test_policy_that_looks_at_the_drafts() -> None:
    log = Log()
    host = PolicyHost(lambda: Deep(log))
    host.handle(loaded(2))
    begin = event(_native.BEGIN, BEGIN)
    host.handle(begin)
    assert (begin.slots[0].next_width, begin.slots[0].next_n_draft, begin.slots[0].next_ask) == (3, 5, 1)
    ask = event(_native.ASK, {"slot": 1, "max_width": 8, "n_drafted": 2, "next_width": 3, "probs": [0.5, 0.25]})
    host.handle(ask)
    assert ("decide", [0.5, 0.25]) in log.lines
    assert (ask.slots[0].next_width, ask.slots[0].next_n_draft) == (2, 1)


def test_reply_that_is_not_worth_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    host = PolicyHost(lambda: Deep(log))
    host.handle(loaded(2))
    asked = {"slot": 1, "n_tokens": 6}
    for n_left, refused in ((5, 1), (50, 0), (-1, 0)):
        question = event(_native.WORTH, {**asked, "n_left": n_left})
        host.handle(question)
        assert question.slots[0].refused == refused
        assert bool(capsys.readouterr().err) == refused
    assert [value for what, value in log.lines if what == "worth"] == [(6, 5), (6, 50), (6, 2**31 - 1)]
    assert not any(what in ("begin", "observe") for what, _ in log.lines)


def test_slots_that_decide_for_themselves_are_observed_and_not_planned() -> None:
    log = Log()
    host = PolicyHost(log.policy)
    host.handle(loaded(2))
    both = [{**BEGIN, "slot": slot, "width": 1, "n_tokens": 1} for slot in (0, 1)]
    both[0]["max_width"] = 0
    host.handle(event(_native.REPORT, *both, n_active=2))
    assert [(what, getattr(value, "seq", None)) for what, value in log.lines] == [
        ("observe", 0),
        ("observe", 1),
        ("choose", 1),
    ]


@pytest.mark.parametrize(
    ("make", "known", "at_once"),
    [
        (AdaptiveWidth, AT_ONCE, True),
        (lambda: FixedWidth(3), AT_ONCE, True),
        (lambda: Noting(Log()), AT_ONCE, False),  # derived from one that is
        (lambda: Noting(Log()), (Noting,), True),
    ],
)
def test_policies_that_answer_at_once(make: Any, known: tuple[type, ...], at_once: bool) -> None:
    host = PolicyHost(make, at_once=known)
    host.handle(loaded(1))
    assert host.answers_at_once is at_once


@pytest.mark.parametrize("width", [0, 9, "wide", True, 4.0], ids=str)
def test_choice_that_is_no_width(width: Any) -> None:
    class Wrong(FixedWidth):
        def choose(self, seq: int, context: CycleContext) -> int:  # noqa: ARG002
            return width  # type: ignore[no-any-return]

    host = PolicyHost(lambda: Wrong(4))
    host.handle(loaded(2))
    with pytest.raises(InvalidArgumentError):
        host.handle(event(_native.BEGIN, BEGIN))


def test_what_is_no_policy() -> None:
    with pytest.raises(InvalidArgumentError):
        PolicyHost(object).handle(loaded(1))  # type: ignore[arg-type]


class Library:
    """A native library whose events are given."""

    def __init__(self, *coming: Any) -> None:
        self.coming = list(coming)
        self.said: list[Any] = []
        self.call: Any = None

    def policy_next(self, here: Any) -> None:
        source = self.coming.pop(0) if self.coming else event(_native.CLOSED)
        for name, _ in _native.Event._fields_:
            setattr(here._obj, name, getattr(source, name))

    def policy_answer(self, here: Any) -> None:
        self.said.append(here._obj.kind)

    def policy_call(self, here: Any, answer: Any) -> None:
        self.call = here._obj, answer

    def policy_give_up(self, reason: bytes) -> None:
        self.said.append(reason)


class Broken(FixedWidth):
    def choose(self, seq: int, context: CycleContext) -> int:  # noqa: ARG002
        raise KeyError("x")


def test_failure_is_told_and_ends_the_answers(capsys: pytest.CaptureFixture[str]) -> None:
    lib = Library(loaded(1), event(_native.BEGIN, {**BEGIN, "slot": 0}))
    answer_events(lib, PolicyHost(lambda: Broken(2)))  # type: ignore[arg-type]
    assert lib.said == [_native.LOADED, b"KeyError: 'x'"]
    assert "KeyError" in capsys.readouterr().err


def test_call_answers_in_place_or_gives_up() -> None:
    for policy, said in ((FixedWidth(4), []), (Broken(4), [b"KeyError: 'x'"])):
        lib = Library(loaded(2))
        answer_events(lib, PolicyHost(lambda policy=policy: policy, at_once=(type(policy),)), lambda _: True)  # type: ignore[arg-type, misc]
        here, answer = lib.call
        ctypes.pointer(here)[0] = event(_native.BEGIN, BEGIN, n_active=1)
        assert answer() == (not said)
        assert lib.said == [_native.LOADED, *said]
        assert said or here.slots[0].next_width == 4


def test_nobody_is_called_where_others_run_python_too() -> None:
    lib = Library(loaded(2))
    answer_events(lib, PolicyHost(AdaptiveWidth), lambda thread: thread != threading.get_ident())  # type: ignore[arg-type]
    assert lib.call is None
