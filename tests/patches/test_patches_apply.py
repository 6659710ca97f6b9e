"""Applying the series: exactly, completely, or not at all."""

from __future__ import annotations

import shutil

import pytest
from lucebox_patches.tree import STAMP_NAME
from patch_fakes import UPSTREAM, Checkout, change, diff, lines, tree_id

FIRST = change("src/a.cpp", "a 10\n", "a ten\n")
SECOND = change("src/b.cpp", "b 10\n", "b ten\n")


def test_an_empty_series_gives_the_base(checkout: Checkout) -> None:
    outcome = checkout.run("apply")
    assert outcome.code == 0
    assert outcome.data["num_patches"] == 0
    assert checkout.content() == UPSTREAM


def test_patches_apply_in_the_order_of_the_series(checkout: Checkout) -> None:
    after_first = UPSTREAM["src/a.cpp"].replace(b"a 10\n", b"a ten\n")
    on_top = change("src/a.cpp", "a ten\n", "a TEN\n", base=after_first)
    checkout.set_series({"0002-base.patch": FIRST, "0001-on-top.patch": on_top})
    assert checkout.run("apply").code == 0
    assert checkout.content() == UPSTREAM | {"src/a.cpp": UPSTREAM["src/a.cpp"].replace(b"a 10\n", b"a TEN\n")}


def test_files_are_created_and_deleted(checkout: Checkout) -> None:
    added = diff("src/new/file.cpp", b"", b"new\n")
    removed = diff("src/deep/c.h", UPSTREAM["src/deep/c.h"], b"")
    checkout.set_series({"add.patch": added, "remove.patch": removed})
    assert checkout.run("apply").code == 0
    expected = UPSTREAM | {"src/new/file.cpp": b"new\n"}
    del expected["src/deep/c.h"]
    assert checkout.content() == expected
    assert not (checkout.tree / "src/deep").exists()
    checkout.set_series({})
    assert checkout.run("apply").code == 0
    assert checkout.content() == UPSTREAM
    assert not (checkout.tree / "src/new").exists()


def test_an_execute_bit_is_taken_over(checkout: Checkout) -> None:
    mode_only = b"diff --git a/src/a.cpp b/src/a.cpp\nold mode 100644\nnew mode 100755\n"
    checkout.set_series({"mode.patch": mode_only})
    assert checkout.run("apply").code == 0
    assert (checkout.tree / "src/a.cpp").stat().st_mode & 0o777 == 0o755
    assert checkout.run("status").code == 0


def test_line_ends_of_a_crlf_file_survive(checkout: Checkout) -> None:
    checkout.set_series({"crlf.patch": change("tools/crlf.txt", "d 3\r\n", "three\r\n")})
    assert checkout.run("apply").code == 0
    assert checkout.content()["tools/crlf.txt"] == UPSTREAM["tools/crlf.txt"].replace(b"d 3\r\n", b"three\r\n")


def test_a_failing_second_patch_leaves_the_tree_as_it_was(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST})
    checkout.run("apply")
    stamp = (checkout.tree / STAMP_NAME).read_bytes()
    content = checkout.content()
    checkout.age_files()
    two_hunks = UPSTREAM["src/b.cpp"].replace(b"b 2\n", b"b two\n").replace(b"b 18\n", b"b x\n")
    bad = diff("src/b.cpp", UPSTREAM["src/b.cpp"], two_hunks).replace(b"-b 18\n", b"-b eighteen\n")
    checkout.set_series({"first.patch": FIRST, "good.patch": change("src/deep/c.h", "c 5\n", "c\n"), "bad.patch": bad})
    outcome = checkout.run("apply")
    assert outcome.code == 6
    assert outcome.data["error"]["type"] == "ConflictError"
    assert "patch 3 of the series, bad.patch" in outcome.text
    assert outcome.data["error"]["files"] == ["src/b.cpp"]
    assert "src/b.cpp:15" in outcome.text
    assert "b eighteen" in outcome.text
    assert checkout.content() == content
    assert (checkout.tree / STAMP_NAME).read_bytes() == stamp
    assert checkout.young_files() == set()


def test_without_a_tree_a_failing_patch_makes_none(checkout: Checkout) -> None:
    shutil.rmtree(checkout.tree)
    checkout.set_series({"bad.patch": FIRST.replace(b"a 9\n", b"a nine\n")})
    assert checkout.run("apply").code == 6
    assert not checkout.tree.exists()
    assert not (checkout.cache / "work").exists()


@pytest.mark.parametrize("context", [b" a 7\n", b" a 9\n", b" a 11\n", b" a 13\n"])
def test_one_changed_context_line_anywhere_in_a_hunk_fails(checkout: Checkout, context: bytes) -> None:
    drifted = FIRST.replace(context, b" drifted\n")
    assert drifted != FIRST
    checkout.set_series({"fuzz.patch": drifted})
    outcome = checkout.run("apply")
    assert outcome.code == 6
    assert "src/a.cpp" in outcome.text


def test_whitespace_in_the_context_must_match(checkout: Checkout) -> None:
    checkout.set_series({"space.patch": FIRST.replace(b" a 9\n", b" a  9\n")})
    assert checkout.run("apply").code == 6


def test_a_moved_hunk_applies_and_is_reported(checkout: Checkout) -> None:
    longer = b"inserted\n" * 4 + UPSTREAM["src/a.cpp"]
    checkout.pin_upstream(UPSTREAM | {"src/a.cpp": longer})
    checkout.run("fetch", "--archive", str(checkout.archive))
    checkout.set_series({"first.patch": FIRST})
    outcome = checkout.run("apply")
    assert outcome.code == 0
    assert checkout.content()["src/a.cpp"] == longer.replace(b"a 10\n", b"a ten\n")
    assert outcome.data["offsets"] == [{"patch": "first.patch", "file": "src/a.cpp", "hunk": 1, "lines": 4}]
    assert "first.patch: src/a.cpp: hunk 1 applied +4 line(s) off" in outcome.text


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (diff("src/none.cpp", b"x\n", b"y\n"), "src/none.cpp"),
        (diff("src/a.cpp", b"", b"new\n"), "already exists"),
        (diff("../../outside.txt", b"", b"new\n"), "outside.txt"),
        (b"Subject: only words\n\nNo diff here.\n", "No valid patches"),
        (b"", "No valid patches"),
        (FIRST + SECOND[:-20], "corrupt"),
    ],
    ids=["missing file", "file in the way", "path outside", "no diff", "empty", "cut off"],
)
def test_a_patch_that_cannot_apply_is_named(checkout: Checkout, content: bytes, word: str) -> None:
    checkout.set_series({"odd.patch": content})
    outcome = checkout.run("apply")
    assert outcome.code == 6
    assert "odd.patch" in outcome.text
    assert word in outcome.text
    assert checkout.content() == UPSTREAM


def test_a_patch_that_is_already_in_the_base_fails(checkout: Checkout) -> None:
    checkout.pin_upstream(UPSTREAM | {"src/a.cpp": UPSTREAM["src/a.cpp"].replace(b"a 10\n", b"a ten\n")})
    checkout.run("fetch", "--archive", str(checkout.archive))
    checkout.set_series({"second.patch": SECOND, "first.patch": FIRST})
    outcome = checkout.run("apply")
    assert outcome.code == 1
    assert outcome.data["error"]["type"] == "EmptyPatchError"
    assert outcome.data["error"]["patches"] == ["first.patch"]
    assert "drop-upstreamed" in outcome.text
    assert checkout.content() == UPSTREAM


def test_the_stamp_records_base_series_and_result(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST, "second.patch": SECOND})
    outcome = checkout.run("apply")
    stamp = checkout.stamp()
    assert stamp["schema"] == 1
    assert stamp["state"] == "complete"
    assert stamp["upstream"]["build"] == "b1"
    assert stamp["series_hash"] == outcome.data["series_hash"]
    assert [(patch["name"], patch["files"]) for patch in stamp["series"]] == [
        ("first.patch", ["src/a.cpp"]),
        ("second.patch", ["src/b.cpp"]),
    ]
    assert stamp["tree"] == outcome.data["tree"] == tree_id(checkout.content())
    assert str(checkout.root) not in (checkout.tree / STAMP_NAME).read_text(encoding="utf-8")


def test_the_same_series_gives_the_same_stamp_by_any_route(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST, "second.patch": SECOND})
    checkout.run("apply")
    at_once = (checkout.tree / STAMP_NAME).read_bytes()
    checkout.set_series({"first.patch": FIRST})
    checkout.run("apply")
    checkout.set_series({"first.patch": FIRST, "second.patch": SECOND})
    checkout.run("apply")
    assert (checkout.tree / STAMP_NAME).read_bytes() == at_once


def test_a_new_pin_replaces_the_base(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST})
    checkout.run("apply")
    newer = {**UPSTREAM, "src/b.cpp": lines("newer").encode(), "src/d.cpp": b"d\n"}
    del newer["src/deep/c.h"]
    checkout.pin_upstream(newer, build="b2")
    assert checkout.run("status").data["state"] == "stale"
    assert checkout.run("apply").code == 7
    checkout.run("fetch", "--archive", str(checkout.archive))
    outcome = checkout.run("apply")
    assert outcome.code == 0
    assert outcome.data["written"] == ["src/b.cpp", "src/d.cpp"]
    assert outcome.data["removed"] == ["src/deep/c.h"]
    assert checkout.content() == newer | {"src/a.cpp": UPSTREAM["src/a.cpp"].replace(b"a 10\n", b"a ten\n")}
