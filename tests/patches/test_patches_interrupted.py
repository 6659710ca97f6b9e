"""A process that ends at any step: the same command, or ``--continue``, gives what an undisturbed run gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from patch_fakes import UPSTREAM, Checkout, Outcome, Prepared, edits, replaced, snapshots

_FIVE = replaced("src/a.cpp", ("a 5\n", "a five\n"))
SMALL = {
    "one.patch": edits("a: five", "src/a.cpp", ("a 5\n", "a five\n")),
    "two.patch": edits("a: seven", "src/a.cpp", ("a 7\n", "a seven\n"), base=_FIVE),
}


@pytest.fixture
def small(prepared: Prepared) -> Checkout:
    """Give a checkout with two patches of one file, of which each needs the other's lines."""
    return prepared("small", lambda checkout: checkout.set_exported(SMALL))


def _go_on(checkout: Checkout, command: list[str]) -> Outcome:
    """Do what a person would do who finds an interrupted run: ask for the state, and go on."""
    session = checkout.run("status").data["session"]
    if session is not None and session["kind"] == "refresh":
        return checkout.run("refresh", "--continue")
    if session is not None and session["kind"] == "rebase" and "--finish" not in command:
        return checkout.run("rebase-onto", "--continue")
    return checkout.run(*command)


def _each_step(
    checkout: Checkout, command: list[str], code: int, check: Callable[[Checkout, Checkout, str], None]
) -> None:
    """Run a command, and check what becomes of each state that a kill would have left of it."""
    with snapshots(checkout) as killed:
        outcome = checkout.run(*command)
    assert outcome.code == code, outcome.text
    assert len(killed) > 2
    for number, one in enumerate(killed, start=1):
        check(one, checkout, f"step {number} of {len(killed)}")


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

    _each_step(small, ["apply"], 0, check)


def test_export(small: Checkout) -> None:
    small.set_series({name: content.replace(b"Class: fix", b"Class: hook") for name, content in SMALL.items()})

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        disturbed.ok("export")
        _same(disturbed, undisturbed, step)

    _each_step(small, ["export"], 0, check)


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

    _each_step(small, ["edit", "one"], 0, check)


def test_abort(small: Checkout) -> None:
    before = small.everything()
    small.ok("edit", "one")
    small.edit_file("src/b.cpp", ("b 2\n", "b two\n"))

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        if disturbed.run("status").data["session"] is not None:
            disturbed.ok("abort")
        _same(disturbed, undisturbed, step)
        assert disturbed.everything() == before, step
        assert b"\n+b two\n" in (disturbed.cache / "aborted-1.diff").read_bytes(), step

    _each_step(small, ["abort"], 0, check)


def _opened(small: Checkout) -> Checkout:
    """Open an edit of the first patch after whose refresh the second has other context and other lines."""
    small.ok("edit", "one")
    small.edit_file("src/a.cpp", ("a five\n", "a V\na V and a half\n"), ("a 9\n", "a nine\n"))
    return small


def test_refresh(small: Checkout) -> None:
    """It goes on, or is given up: then all is as before, or the run was so far that it is finished instead."""
    before = small.everything()

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        if disturbed.run("status").data["session"] is not None:
            back = disturbed.copy(f"{disturbed.root.name}-back")
            given_up = back.run("abort")
            if given_up.code == 0:
                assert back.everything() == before, step
                assert b"\n+a nine\n" in (back.cache / "aborted-1.diff").read_bytes(), step
            else:
                assert given_up.code == 2, f"{step}: {given_up.text}"
                assert "cut off while it was written is complete now" in given_up.text
                _same(back, undisturbed, step)
        outcome = _go_on(disturbed, ["refresh"]) if disturbed.run("status").data["session"] else disturbed.run("apply")
        assert outcome.code == 0, f"{step}: {outcome.text}"
        _same(disturbed, undisturbed, step)

    _each_step(_opened(small), ["refresh"], 0, check)


def test_a_refresh_that_stops_in_conflict(small: Checkout) -> None:
    """A run that was cut off between noting the conflict and showing it must not take the old text for its answer."""
    small.ok("edit", "one")
    small.edit_file("src/a.cpp", ("a five\n", "a V\n"), ("a 7\n", "a VII\n"))

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        outcome = _go_on(disturbed, ["refresh"])
        assert outcome.code == 4, f"{step}: {outcome.text}"
        _same(disturbed, undisturbed, step)

    _each_step(small, ["refresh"], 4, check)


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

    _each_step(target, ["rebase-onto", "b2"], 0, check)


def test_rebase_onto_that_stops_in_conflict(small: Checkout) -> None:
    small.fetch(UPSTREAM | {"src/a.cpp": replaced("src/a.cpp", ("a 7\n", "a VII\n"))})

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        outcome = _go_on(disturbed, ["rebase-onto", "b2"])
        assert outcome.code == 4, f"{step}: {outcome.text}"
        _same(disturbed, undisturbed, step)

    _each_step(small, ["rebase-onto", "b2"], 4, check)


def test_rebase_onto_finish(target: Checkout) -> None:
    target.ok("rebase-onto", "b2")
    command = ["rebase-onto", "--finish"]

    def check(disturbed: Checkout, undisturbed: Checkout, step: str) -> None:
        open_still = disturbed.run("status").data["session"] is not None
        outcome = disturbed.run(*command) if open_still else disturbed.run("apply")
        assert outcome.code == 0, f"{step}: {outcome.text}"
        here, there = ({path: data for path, data in one.everything().items() if not path.startswith("docs/")}
                       for one in (disturbed, undisturbed))
        assert here == there, step

    _each_step(target, command, 0, check)


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

    _each_step(small, ["drop-upstreamed"], 0, check)
