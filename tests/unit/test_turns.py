"""One generation at a time, and a clean session for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from _fake_session import FakeSession

from pylucebox._errors import ClosedError, SequenceStateError
from pylucebox._sampling import SamplingParams
from pylucebox._turns import Turns


def occupy(session: FakeSession) -> None:
    session.prefill(0, b"x", session.open_sampler(SamplingParams(), None), use_mtp=False)


def test_sequences_are_clear_before_and_after() -> None:
    session = FakeSession(b"abc", n_seq=2)
    occupy(session)
    with Turns(session).hold():
        assert session.busy == []
        occupy(session)
    assert session.busy == []


def test_abort_that_came_when_nothing_ran_is_taken_back() -> None:
    session = FakeSession(b"abc")
    session.abort()
    with Turns(session).hold():
        occupy(session)
    session.abort()
    with Turns(session).hold():
        occupy(session)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_session_is_free_again_after_any_exception(error: type[BaseException]) -> None:
    session = FakeSession(b"abc")
    turns = Turns(session)

    def fail() -> None:
        with turns.hold():
            occupy(session)
            raise error

    with pytest.raises(error):
        fail()
    assert session.busy == []
    with turns.hold():
        pass


def test_second_turn_of_the_same_thread_is_refused_instead_of_waiting_for_ever() -> None:
    turns = Turns(FakeSession(b"abc"))
    with turns.hold(), pytest.raises(SequenceStateError), turns.hold():
        pytest.fail("two turns at once")
    with turns.hold():
        pass


def test_another_thread_waits_for_its_turn() -> None:
    turns = Turns(FakeSession(b"abc"))
    order: list[str] = []
    started = threading.Event()

    def other() -> None:
        started.set()
        with turns.hold():
            order.append("second")

    thread = threading.Thread(target=other)
    with turns.hold():
        thread.start()
        started.wait()
        thread.join(0.05)
        assert thread.is_alive()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_closed_session_gives_no_turn() -> None:
    session = FakeSession(b"abc")
    session.close()
    with pytest.raises(ClosedError), Turns(session).hold():
        pytest.fail("a turn on a closed session")


def test_close_during_a_turn_does_not_hide_what_happened_in_it() -> None:
    session = FakeSession(b"abc")

    def fail() -> None:
        with Turns(session).hold():
            session.close()
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()


def stream(turns: Turns) -> Iterator[int]:
    with turns.hold():
        yield from turns.follow(range(3))


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_stream_belongs_to_the_thread_that_advanced_it_last() -> None:
    turns = Turns(FakeSession(b"abc"))
    steps = stream(turns)
    in_thread(lambda: next(steps))
    assert next(steps) == 1
    with pytest.raises(SequenceStateError), turns.hold():
        pytest.fail("two turns at once")
    steps.close()  # type: ignore[attr-defined]
    with turns.hold():
        pass


def test_thread_that_handed_its_stream_on_waits_for_its_turn() -> None:
    turns = Turns(FakeSession(b"abc"))
    steps = stream(turns)
    next(steps)
    in_thread(lambda: next(steps))
    threading.Timer(0.05, lambda: list(steps)).start()
    with turns.hold():
        assert list(steps) == []


def test_thread_with_the_number_of_one_that_ended_is_another_thread() -> None:
    turns = Turns(FakeSession(b"abc"))
    steps = stream(turns)
    numbers: list[int] = []
    outcomes: list[str] = []

    def advance() -> None:
        numbers.append(threading.get_ident())
        next(steps)

    def take_turn() -> None:
        if threading.get_ident() not in numbers:
            return
        threading.Timer(0.05, lambda: list(steps)).start()
        try:
            with turns.hold():
                outcomes.append("waited")
        except SequenceStateError:
            outcomes.append("refused")

    in_thread(advance)
    for _ in range(1000):
        in_thread(take_turn)
        if outcomes:
            assert outcomes == ["waited"]
            return
    pytest.skip("this system gives no thread number out again")
