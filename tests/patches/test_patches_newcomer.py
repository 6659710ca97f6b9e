"""What a first user of the tool ran into."""

from __future__ import annotations

import pytest
from patch_fakes import UPSTREAM, Checkout, change, mail

FIRST = mail("a: write a ten", change("src/a.cpp", "a 10\n", "a ten\n"))
SECOND = mail("b: write b ten", change("src/b.cpp", "b 10\n", "b ten\n"))


@pytest.fixture
def two(checkout: Checkout) -> Checkout:
    """Give a checkout with two patches."""
    checkout.set_series({"first.patch": FIRST, "second.patch": SECOND})
    checkout.ok("export")
    return checkout


def test_abort_of_a_new_patch_takes_back_what_was_changed_and_keeps_a_copy(two: Checkout) -> None:
    before = two.content()
    two.ok("new", "third", "--subject", "c: change c")
    two.edit_file("src/deep/c.h", ("c 5\n", "c five\n"))
    outcome = two.ok("abort")
    assert two.content() == before
    saved = two.root / outcome.data["saved"]
    assert b"+c five" in saved.read_bytes()
    two.ok("new", "third", "--subject", "c: change c")
    two.edit_file("src/deep/c.h", ("c 5\n", "c 5!\n"))
    assert two.root / two.ok("abort").data["saved"] != saved
    assert b"+c five" in saved.read_bytes()


def test_refresh_of_another_patch_than_the_open_one_is_refused(two: Checkout) -> None:
    two.ok("edit", "first")
    two.edit_file("src/a.cpp", ("a 12\n", "a twelve\n"))
    for name in ("second", "none"):
        outcome = two.run("refresh", name)
        assert outcome.code == 2
        assert "first.patch is open" in outcome.text
    two.ok("refresh", "first.patch")


def test_the_patch_that_is_edited_is_in_the_tree(two: Checkout) -> None:
    two.ok("edit", "patches/first.patch")
    in_tree = {patch["name"]: patch["in_tree"] for patch in two.run("status").data["patches"]}
    assert in_tree == {"first.patch": True, "second.patch": False}


def test_a_rebase_onto_the_pinned_upstream_is_refused(two: Checkout) -> None:
    outcome = two.run("rebase-onto", "b1")
    assert outcome.code == 2
    assert "is the pinned upstream" in outcome.text


@pytest.mark.parametrize(
    ("name", "subject", "word"),
    [("1-x", "a: x", "name"), ("first", "a: x", "exists already"), ("x", "no area", "subject"), ("x", "", "subject")],
)
def test_each_mistake_of_a_new_patch_has_its_own_words(two: Checkout, name: str, subject: str, word: str) -> None:
    outcome = two.run("new", name, "--subject", subject)
    assert outcome.code == 2
    assert word in outcome.data["error"]["seen"]
    assert two.content() == UPSTREAM | {
        "src/a.cpp": UPSTREAM["src/a.cpp"].replace(b"a 10\n", b"a ten\n"),
        "src/b.cpp": UPSTREAM["src/b.cpp"].replace(b"b 10\n", b"b ten\n"),
    }


def test_a_version_that_is_none_is_refused_before_the_network(two: Checkout) -> None:
    outcome = two.run("fetch", "latest")
    assert outcome.code == 2
    assert "no version" in outcome.text
