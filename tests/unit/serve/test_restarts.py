"""When a worker is started again."""

from __future__ import annotations

import signal

import pytest

from pylucebox.serve.restarts import Ended, Restarts, Verdict, exit_code_of


def ended(code: int, *, listened: bool = True, served_s: float | None = None, drafts: bool = False) -> Ended:
    return Ended(code=code, listened=listened, served_s=served_s, drafts=drafts)


def test_what_never_worked_is_not_tried_again() -> None:
    assert Restarts(may_do_without_drafts=True).after(ended(3, listened=False, drafts=True)) == Verdict(exit_code=3)
    assert Restarts(may_do_without_drafts=True).after(ended(-signal.SIGABRT)) == Verdict(exit_code=134)
    assert Restarts(may_do_without_drafts=True).after(ended(0, listened=False)) == Verdict(exit_code=0)


def test_model_that_does_not_load_with_drafts_is_loaded_without() -> None:
    assert Restarts(may_do_without_drafts=True).after(ended(1, drafts=True)) == Verdict(
        delay_s=0.0, without_drafts=True
    )
    assert Restarts(may_do_without_drafts=False).after(ended(1, drafts=True)) == Verdict(exit_code=1)


def test_pauses_grow_and_are_forgotten() -> None:
    restarts = Restarts(may_do_without_drafts=True)
    crash = ended(-signal.SIGSEGV, served_s=5.0)
    assert [restarts.after(crash).delay_s for _ in range(9)] == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert [restarts.after(ended(1, served_s=served_s)).delay_s for served_s in (60.0, 1.0)] == [0, 1]


def test_server_that_has_served_may_fail_to_start_for_a_while() -> None:
    restarts = Restarts(may_do_without_drafts=False)
    restarts.after(ended(-signal.SIGKILL, served_s=1.0))
    verdicts = [restarts.after(ended(7)) for _ in range(5)]
    assert [verdict.delay_s is None for verdict in verdicts] == [False, False, False, False, True]
    assert verdicts[-1].exit_code == 7


def test_server_that_ends_by_itself_is_not_started_again() -> None:
    assert Restarts(may_do_without_drafts=True).after(ended(0, served_s=1.0)) == Verdict(exit_code=0)


@pytest.mark.parametrize(
    ("code", "words"),
    [(1, "ended with exit code 1"), (-9, "was ended by SIGKILL"), (-1000, "was ended by signal 1000")],
)
def test_end_in_words(code: int, words: str) -> None:
    assert str(ended(code)) == words


def test_exit_code_as_shells_have_it() -> None:
    assert (exit_code_of(0), exit_code_of(5), exit_code_of(-9)) == (0, 5, 137)
