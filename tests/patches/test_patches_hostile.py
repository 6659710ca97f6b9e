"""What people and machines do to a checkout between two commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from patch_fakes import (
    THREE,
    UPSTREAM,
    WITH_THREE,
    Checkout,
    Prepared,
    diff,
    edits,
    mail,
    make_repository,
    plain_git,
    replaced,
)

LATIN = "a gr\u00fcn\n".encode("latin-1") + UPSTREAM["src/a.cpp"]


@pytest.fixture
def three(prepared: Prepared) -> Checkout:
    """Give a checkout with three patches, exported and applied."""
    return prepared("hostile-three", lambda checkout: checkout.set_exported(THREE))


def test_the_checkout_may_lie_anywhere(three: Checkout) -> None:
    odd = three.copy('a "b" \\ $x é')
    odd.fetch(UPSTREAM | {"src/b.cpp": replaced("src/b.cpp", ("b 1\n", "b 0\nb 1\n"))})
    odd.ok("edit", "five")
    odd.edit_file("src/a.cpp", ("a 8\n", "a eight\n"))
    (odd.tree / 'odd "name" é.txt').write_bytes(b"x\n")
    odd.ok("refresh")
    odd.ok("rebase-onto", "b2")
    odd.ok("rebase-onto", "--finish")
    odd.ok("export", "--check")
    assert odd.ok("apply", "--strict", "--force-clean").code == 0
    assert odd.content()['odd "name" é.txt'] == b"x\n"
    assert "eight" in (odd.tree / "src/a.cpp").read_text("utf-8")


def test_a_patch_as_git_writes_it_keeps_author_date_and_subject(checkout: Checkout, tmp_path: Path) -> None:
    """With the line for mailboxes in front, the list of files behind the message, and the version at the end."""
    work = tmp_path / "work"
    make_repository(work, UPSTREAM)
    (work / "src/a.cpp").write_bytes(replaced("src/a.cpp", ("a 5\n", "a five\n")))
    fields = "".join(f"{key}: x\n" for key in ("Class", "Origin"))
    message = f"a: write a five\n\nWhy it is done.\n\n{fields}".encode()
    plain_git("commit", "--quiet", "-a", "-F", "-", "--author=B Person <b@example.org>", "--date=2026-01-02T03:04:05Z",
              cwd=work, stdin=message)
    text = plain_git("format-patch", "-1", "--stdout", "--keep-subject", "--stat", cwd=work) + "\n"
    assert text.startswith("From ")
    assert " 1 file changed" in text
    checkout.set_series({"five.patch": text.encode()})
    checkout.ok("export")
    head, _, body = (checkout.patches / "five.patch").read_text("utf-8").partition("---\n")
    assert head == (
        "From: B Person <b@example.org>\nDate: Fri, 2 Jan 2026 03:04:05 +0000\nSubject: a: write a five\n\n"
        "Why it is done.\n\nClass: x\nOrigin: x\n"
    )
    assert body.startswith("diff --git ")
    checkout.ok("export", "--check")


def test_a_tree_that_was_removed_is_not_taken_for_a_change(three: Checkout) -> None:
    before = three.everything()
    three.ok("edit", "ten")
    shutil.rmtree(three.tree)
    if three.run("refresh").code:
        three.ok("abort")
    assert three.everything() == before


def test_a_series_that_changed_under_an_open_edit_is_not_overwritten(three: Checkout) -> None:
    """Somebody pulls while an edit is open: neither what was pulled nor the edit may be lost."""
    three.ok("edit", "ten")
    three.edit_file("src/b.cpp", ("b ten\n", "b TEN\n"))
    pulled = (three.patches / "five.patch").read_bytes().replace(b"+a five\n", b"+a V\n")
    (three.patches / "five.patch").write_bytes(pulled)
    later = three.patches / "larger.patch"
    later.write_bytes(later.read_bytes().replace(b"-a five\n", b"-a V\n"))
    (three.patches / "EXPECTED").unlink()
    outcome = three.run("refresh")
    if outcome.code == 0:
        assert b"+a V\n" in (three.patches / "five.patch").read_bytes()
    else:
        assert outcome.code == 2
        assert (three.patches / "five.patch").read_bytes() == pulled
        outcome = three.ok("abort")
        assert b"+b TEN\n" in (three.root / outcome.data["saved"]).read_bytes()
        three.ok("apply")
        assert three.content() == WITH_THREE
    three.ok("export")
    assert three.ok("status").data["state"] == "applied"


@pytest.mark.parametrize("last", ["--continue", "--finish"])
def test_a_series_that_changed_under_an_open_rebase_is_not_overwritten(three: Checkout, last: str) -> None:
    three.fetch(UPSTREAM | {"src/deep/c.h": b"another\n"})
    three.ok("rebase-onto", "b2")
    (three.patches / "more.patch").write_bytes(edits("b: eleven", "src/b.cpp", ("b 18\n", "b x\n")))
    with (three.patches / "series").open("a", encoding="utf-8") as series:
        series.write("more.patch\n")
    (three.patches / "EXPECTED").unlink()
    files = three.series_files()
    assert three.run("rebase-onto", last).code == 2
    assert three.series_files() == files
    three.ok("abort")
    three.ok("export")
    assert three.ok("status").data["num_patches"] == 4
    assert b"b x\n" in three.content()["src/b.cpp"]


def test_the_cache_may_be_deleted_while_nothing_is_open(three: Checkout) -> None:
    before = three.everything()
    shutil.rmtree(three.cache)
    assert three.ok("status").data["source_at_hand"] is False
    assert three.ok("apply").data["changed"] is False
    assert three.run("export", "--check").code == 7
    three.ok("fetch", "--archive", str(three.archive))
    three.ok("export", "--check")
    assert three.everything() == before


@pytest.mark.parametrize("what", ["object", "ref", "packed"])
def test_a_damaged_store_is_named_and_made_again(three: Checkout, what: str) -> None:
    store = three.cache / "store.git"
    before = three.everything()
    if what == "object":
        for path in (store / "objects").rglob("*"):
            if path.is_file():
                path.chmod(0o644)
                path.write_bytes(b"")
    elif what == "ref":
        for path in (store / "refs").rglob("*"):
            if path.is_file():
                path.write_bytes(b"\n")
    else:
        (store / "HEAD").write_bytes(b"")
    outcome = three.run("export", "--check")
    if outcome.code:
        assert outcome.code in (1, 7), outcome.text
        assert "store.git" in outcome.text or "fetch" in outcome.text
        shutil.rmtree(store)
        three.ok("fetch")
        three.ok("export", "--check")
    assert three.everything() == before


def test_text_that_is_not_utf8_passes_through(checkout: Checkout) -> None:
    checkout.pin_upstream(UPSTREAM | {"src/a.cpp": LATIN}, build="b10")
    checkout.ok("fetch", "--archive", str(checkout.archive))
    ours = LATIN.replace(b"a 2\n", "a zw\u00f6i\n".encode("latin-1"))
    checkout.set_exported({"two.patch": mail("a: two", diff("src/a.cpp", LATIN, ours))})
    assert "+a zw\u00f6i\n".encode("latin-1") in (checkout.patches / "two.patch").read_bytes()
    theirs = LATIN.replace("gr\u00fcn".encode("latin-1"), "gr\u00fcner".encode("latin-1"))
    checkout.fetch(UPSTREAM | {"src/a.cpp": theirs.replace(b"a 2\n", b"a II\n")})
    assert checkout.run("rebase-onto", "b2").code == 4
    (checkout.tree / "src/a.cpp").write_bytes(ours)
    data = checkout.ok("rebase-onto", "--continue").data
    assert data["lost_hunks"]
    for name in data["missing"]:
        checkout.ok("rebase-onto", "--ack", f"{name}=on purpose")
    checkout.ok("rebase-onto", "--finish")
    assert checkout.content()["src/a.cpp"] == ours
    assert (checkout.root / "docs/rebase/b10-b2.md").is_file()
    checkout.ok("export", "--check")


def test_both_sides_add_a_file_or_remove_one(checkout: Checkout) -> None:
    gone = mail("c: gone, b: ten", diff("src/deep/c.h", UPSTREAM["src/deep/c.h"], b""))
    ten = edits("b: ten", "src/b.cpp", ("b 10\n", "b ten\n")).partition(b"---\n")[2]
    mode = b"diff --git a/run.sh b/run.sh\nold mode 100755\nnew mode 100644\n--- a/run.sh\n+++ b/run.sh\n"
    checkout.set_exported({
        "add.patch": mail("n: add", diff("src/new.cpp", b"", b"ours\n")),
        "both.patch": gone + ten,
        "mode.patch": mail("run: not a script", mode + b"@@ -1 +1,2 @@\n #!/bin/sh\n+true\n"),
    })
    checkout.fetch(UPSTREAM | {
        "src/new.cpp": b"theirs\n",
        "src/b.cpp": replaced("src/b.cpp", ("b 12\n", "b twelve\n")),
        "run.sh": b"#!/bin/bash\n",
    })
    outcome = checkout.run("rebase-onto", "b2")
    assert outcome.code == 4
    assert outcome.data["error"]["files"] == ["src/new.cpp"]
    (checkout.tree / "src/new.cpp").write_bytes(b"theirs\nours\n")
    outcome = checkout.run("rebase-onto", "--continue")
    assert outcome.code == 4
    assert outcome.data["error"]["files"] == ["run.sh"]
    (checkout.tree / "run.sh").write_bytes(b"#!/bin/bash\ntrue\n")
    data = checkout.ok("rebase-onto", "--continue").data
    assert [done["outcome"] for done in data["patches"]] == ["resolved by hand", "three-way", "resolved by hand"]
    for name in data["missing"]:
        checkout.ok("rebase-onto", "--ack", f"{name}=both are there")
    checkout.ok("rebase-onto", "--finish")
    assert "src/deep/c.h" not in checkout.content()
    assert checkout.content()["src/b.cpp"] == replaced("src/b.cpp", ("b 10\n", "b ten\n"), ("b 12\n", "b twelve\n"))
    assert (checkout.tree / "run.sh").stat().st_mode & 0o777 == 0o644


def test_a_file_that_upstream_made_binary_is_a_conflict(three: Checkout) -> None:
    three.fetch(UPSTREAM | {"src/b.cpp": b"\0\1"})
    outcome = three.run("canary", "2.0.0", "--archive", str(three.root.parent / "other-2.0.0.tar.gz"))
    assert [row["conflicts"] for row in outcome.data["patches"]] == [[], ["src/b.cpp"], []]
    outcome = three.run("rebase-onto", "b2")
    assert outcome.code == 4
    assert outcome.data["error"]["files"] == ["src/b.cpp"]


def test_a_reason_that_looks_like_a_diff_or_a_header_stays(checkout: Checkout) -> None:
    reason = "Why: it is done.\n\n    diff --git a/x b/x\n    --- a/x\n    +++ b/x\n\nFrom: nobody\nSubject: nothing"
    patch = mail("a: five", edits("a: five", "src/a.cpp", ("a 5\n", "a five\n")), reason)
    checkout.set_exported({"five.patch": patch})
    assert f"\n\n{reason}\n\nClass: fix\n" in (checkout.patches / "five.patch").read_text("utf-8")
    checkout.ok("lint")


def test_files_left_by_an_editor_are_named_before_they_become_part_of_a_patch(three: Checkout) -> None:
    (three.tree / "src/b.cpp.orig").write_bytes(b"left over\n")
    three.edit_file("src/b.cpp", ("b 11\n", "b eleven\n"))
    outcome = three.run("refresh", "ten")
    assert "src/b.cpp.orig" in outcome.text


def test_a_record_of_a_written_change_that_is_damaged_is_reported(three: Checkout) -> None:
    (three.cache / "journal.json").write_text("{", encoding="utf-8")
    outcome = three.run("apply")
    assert outcome.code in (2, 7)
    assert "journal.json" in outcome.text
