"""A process that ends at any step: the same command, or ``--continue``, gives what an undisturbed run gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from patch_fakes import UPSTREAM, Checkout, Outcome, Prepared, edits, killed_at, replaced

SMALL = {
    "one.patch": edits("a: five", "src/a.cpp", ("a 5\n", "a five\n")),
    "two.patch": edits("a: seven", "src/a.cpp", ("a 7\n", "a seven\n"), base=replaced("src/a.cpp", ("a 5\n", "a five\n"))),
}


@pytest.fixture
def small(prepared: Prepared) -> Checkout:
    """Give a checkout with two patches of one file, of which each needs the other's lines."""
    return prepared("small", lambda checkout: checkout.set_exported(SMALL))


def _good(outcome: Outcome) -> bool:
    """Return whether it went well; what was cut off while it was being written is finished by any command."""
    return outcome.code == 0 or (outcome.code == 2 and "cut off" in outcome.text)


def _go_on(checkout: Checkout, command: list[str]) -> Outcome:
    """Do what a person would do who finds an interrupted run: ask for the state, and go on."""
    session = checkout.run("status").data["session"]
    if session is not None and session["kind"] == "refresh":
        return checkout.run("refresh", "--continue")
    if session is not None and session["kind"] == "rebase" and "--finish" not in command:
        return checkout.run("rebase-onto", "--continue")
    return checkout.run(*command)


def _disturbed(checkout: Checkout, command: list[str], code: int, check: Callable[[Checkout, Checkout, str], None]) -> None:
    """Run a command with an interruption at each of its steps and compare with an undisturbed run."""
    undisturbed = checkout.copy("undisturbed")
    assert undisturbed.run(*command).code == code
    for step in itertools.count(1):
        disturbed = checkout.copy(f"step{step}")
        with killed_at(step) as steps:
            disturbed.run(*command)
        if steps() < step:  # it came to its end before
            assert step > 3
            return
        check(disturbed, undisturbed, f"step {step}")


def _same(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
    assert disturbed.everything() == undisturbed.everything(), step
    sessions = [one.run("status").data["session"] for one in (disturbed, undisturbed)]
    assert sessions[0] == sessions[1], step


def test_apply(small: Checkout) -> None:
    small.set_series({"other.patch": edits("b: one", "src/b.cpp", ("b 1\n", "b one\n"))})
    (small.patches / "EXPECTED").unlink()

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        disturbed.ok("apply")
        _same(disturbed, undisturbed, step)

    _disturbed(small, ["apply"], 0, check)


def test_export(small: Checkout) -> None:
    small.set_series({name: content.replace(b"Class: fix", b"Class: hook") for name, content in SMALL.items()})

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        disturbed.ok("export")
        _same(disturbed, undisturbed, step)

    _disturbed(small, ["export"], 0, check)


def test_edit(small: Checkout) -> None:
    """After an interrupted edit both ways are open: back, and the edit itself."""
    before = small.everything()

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        if disturbed.run("status").data["session"] is not None:
            disturbed.ok("abort")
        else:
            disturbed.ok("apply")
        assert disturbed.everything() == before, step
        disturbed.ok("edit", "one")
        _same(disturbed, undisturbed, step)

    _disturbed(small, ["edit", "one"], 0, check)


def test_abort(small: Checkout) -> None:
    before = small.everything()
    small.ok("edit", "one")
    small.edit_file("src/b.cpp", ("b 2\n", "b two\n"))

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        if disturbed.run("status").data["session"] is not None:
            disturbed.ok("abort")
        assert disturbed.everything() == before, step
        assert b"\n+b two\n" in (disturbed.cache / "aborted.diff").read_bytes(), step

    _disturbed(small, ["abort"], 0, check)


def _opened(small: Checkout) -> Checkout:
    """Open an edit of the first patch after whose refresh the second has other context and other lines."""
    small.ok("edit", "one")
    small.edit_file("src/a.cpp", ("a five\n", "a V\na V and a half\n"), ("a 9\n", "a nine\n"))
    return small


def test_refresh_goes_on(small: Checkout) -> None:
    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        outcome = _go_on(disturbed, ["refresh"]) if disturbed.run("status").data["session"] else disturbed.run("apply")
        assert _good(outcome), f"{step}: {outcome.text}"
        _same(disturbed, undisturbed, step)

    _disturbed(_opened(small), ["refresh"], 0, check)


def test_refresh_can_be_given_up(small: Checkout) -> None:
    """Either everything is as before, or the run was so far that it is finished instead."""
    before = small.everything()

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        if disturbed.run("status").data["session"] is None:
            return
        outcome = disturbed.run("abort")
        if outcome.code == 0:
            assert disturbed.everything() == before, step
        else:
            assert _good(outcome), f"{step}: {outcome.text}"
            _same(disturbed, undisturbed, step)

    _disturbed(_opened(small), ["refresh"], 0, check)


def test_a_refresh_that_stops_in_conflict(small: Checkout) -> None:
    """A run that was cut off between noting the conflict and showing it must not take the old text for its answer."""
    small.ok("edit", "one")
    small.edit_file("src/a.cpp", ("a five\n", "a V\n"), ("a 7\n", "a VII\n"))

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        outcome = _go_on(disturbed, ["refresh"])
        assert outcome.code == 4, f"{step}: {outcome.text}"
        _same(disturbed, undisturbed, step)

    _disturbed(small, ["refresh"], 4, check)


@pytest.fixture
def target(small: Checkout) -> Checkout:
    """Give a checkout with another upstream at hand on which the old patches no longer apply as they are."""
    other = replaced("src/a.cpp", ("a 1\n", "a zero\na 1\n"), ("a 3\n", "a III\n"), ("a 9\n", "a IX\n"))
    small.fetch(UPSTREAM | {"src/a.cpp": other, "src/b.cpp": b"b\n"})
    return small


def test_rebase_onto(target: Checkout) -> None:
    before = target.everything()

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        back = disturbed.copy(f"{disturbed.root.name}-back")
        if back.run("status").data["session"] is not None:
            back.ok("abort")
        else:
            back.ok("apply")
        assert back.everything() == before, step
        assert _go_on(disturbed, ["rebase-onto", "b2"]).code == 0, step
        _same(disturbed, undisturbed, step)

    _disturbed(target, ["rebase-onto", "b2"], 0, check)


def test_rebase_onto_that_stops_in_conflict(small: Checkout) -> None:
    small.fetch(UPSTREAM | {"src/a.cpp": replaced("src/a.cpp", ("a 7\n", "a VII\n"))})

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        outcome = _go_on(disturbed, ["rebase-onto", "b2"])
        assert outcome.code == 4, f"{step}: {outcome.text}"
        _same(disturbed, undisturbed, step)

    _disturbed(small, ["rebase-onto", "b2"], 4, check)


def test_rebase_onto_finish(target: Checkout) -> None:
    target.ok("rebase-onto", "b2")
    command = ["rebase-onto", "--finish"]

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        open_still = disturbed.run("status").data["session"] is not None
        outcome = disturbed.run(*command) if open_still else disturbed.run("apply")
        assert _good(outcome), f"{step}: {outcome.text}"
        here, there = ({path: data for path, data in one.everything().items() if not path.startswith("docs/")}
                       for one in (disturbed, undisturbed))
        assert here == there, step

    _disturbed(target, command, 0, check)


def test_drop_upstreamed(small: Checkout) -> None:
    """The base is another one by the time, so that the first patch is in it."""
    small.pin_upstream(UPSTREAM | {"src/a.cpp": replaced("src/a.cpp", ("a 5\n", "a five\n"))}, build="b2")
    (small.patches / "EXPECTED").unlink()
    small.ok("fetch", "--archive", str(small.archive))

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        disturbed.ok("drop-upstreamed")
        disturbed.ok("export")
        disturbed.ok("apply")
        _same(disturbed, undisturbed, step)

    _disturbed(small, ["drop-upstreamed"], 0, check)
