"""Changing the series on its base: new, edit, refresh, abort."""

from __future__ import annotations

from pathlib import Path

import pytest
from patch_fakes import THREE, UPSTREAM, WITH_THREE, Checkout, Prepared, diff, edits, mail, replaced


@pytest.fixture
def three(prepared: Prepared) -> Checkout:
    """Give a checkout with three patches, exported and applied."""

    def prepare(checkout: Checkout) -> None:
        checkout.set_exported(THREE)
        assert checkout.content() == WITH_THREE

    return prepared("three", prepare)


def _order(checkout: Checkout) -> list[str]:
    lines = (checkout.patches / "series").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def _fill_in(path: Path) -> None:
    """Replace what a new patch leaves to its author."""
    text = path.read_text(encoding="utf-8")
    assert text.count("TODO") == 3
    text = text.replace("TODO: why, for a reader who knows llama.cpp.", "Because.")
    text = text.replace("Test: TODO", "Test: tests/test_it.py").replace("Drop-When: TODO", "Drop-When: never")
    path.write_text(text, encoding="utf-8")


def _assert_sound(checkout: Checkout) -> None:
    """Assert that tree and series are in step and in their form."""
    assert checkout.ok("status").data["state"] == "applied"
    checkout.ok("export", "--check")
    checkout.ok("apply", "--strict", "--force-clean")


def test_a_new_patch_from_start_to_lint(three: Checkout) -> None:
    tree_before = three.stamp()["tree"]
    assert three.ok("new", "c-seven", "--subject", "c: seven", "--class", "fix").data["patch"] == "c-seven.patch"
    assert three.run("status").data["state"] == "editing"
    three.edit_file("src/deep/c.h", ("c 7\n", "c seven\n"))
    (three.tree / "src/own.cpp").write_bytes(b"ours\n")
    outcome = three.ok("refresh")
    assert "c-seven.patch" in outcome.data["written"]
    assert _order(three) == [*THREE, "c-seven.patch"]
    assert three.stamp()["tree"] != tree_before
    assert three.run("lint").code == 1
    _fill_in(three.patches / "c-seven.patch")
    three.ok("export")
    assert three.ok("lint").data["findings"] == []
    _assert_sound(three)
    assert three.content() == WITH_THREE | {
        "src/deep/c.h": replaced("src/deep/c.h", ("c 7\n", "c seven\n")), "src/own.cpp": b"ours\n"
    }
    assert b"\nSubject: c: seven\n" in (three.patches / "c-seven.patch").read_bytes()


def test_the_first_patch_of_an_empty_series(checkout: Checkout) -> None:
    checkout.ok("export")
    checkout.ok("new", "first", "--subject", "a: five")
    checkout.edit_file("src/a.cpp", ("a 5\n", "a five\n"))
    checkout.ok("refresh")
    assert _order(checkout) == ["first.patch"]
    _assert_sound(checkout)


def test_changes_made_before_new_become_part_of_it(three: Checkout) -> None:
    three.edit_file("src/b.cpp", ("b 2\n", "b two\n"))
    three.ok("new", "two", "--subject", "b: two")
    three.edit_file("src/b.cpp", ("b 3\n", "b three\n"))
    three.ok("refresh")
    text = (three.patches / "two.patch").read_bytes()
    assert b"\n+b two\n" in text
    assert b"\n+b three\n" in text
    _assert_sound(three)


def test_a_new_patch_in_the_middle_carries_the_later_ones(three: Checkout) -> None:
    later = (three.patches / "larger.patch").read_bytes()
    three.ok("new", "two", "--subject", "a: two lines for one", "--after", "five")
    assert three.content()["src/a.cpp"] == replaced("src/a.cpp", ("a 5\n", "a five\n"))
    three.edit_file("src/a.cpp", ("a 9\n", "a nine\na and a half\n"))
    three.ok("refresh")
    assert _order(three) == ["five.patch", "two.patch", "ten.patch", "larger.patch"]
    assert three.content()["src/a.cpp"] == replaced(
        "src/a.cpp", ("a 9\n", "a nine\na and a half\n"), base=WITH_THREE["src/a.cpp"]
    )
    assert b"@@ -12,7 +12,7 @@" in later
    assert b"@@ -13,7 +13,7 @@" in (three.patches / "larger.patch").read_bytes()
    _assert_sound(three)


def test_new_in_the_middle_of_a_dirty_tree_is_refused(three: Checkout) -> None:
    three.edit_file("src/b.cpp", ("b 2\n", "b two\n"))
    before = three.everything()
    assert three.run("new", "two", "--subject", "b: two", "--after", "five").code in (2, 5)
    assert three.everything() == before
    assert three.run("status").data["session"] is None


@pytest.mark.parametrize(
    ("name", "subject"),
    [("ten", "b: ten"), ("Ten", "b: ten"), ("0/ten", "b: ten"), ("-", "b: ten"), ("two", ""), ("two", "x" * 73)],
)
def test_names_and_subjects_that_cannot_be_are_refused(three: Checkout, name: str, subject: str) -> None:
    before = three.everything()
    assert three.run("new", "--subject", subject, "--", name).code == 2
    assert three.everything() == before
    assert three.run("status").data["state"] == "applied"


def test_an_edit_in_the_middle_carries_the_later_ones(three: Checkout) -> None:
    outcome = three.ok("edit", "five")
    assert outcome.data["later"] == ["ten.patch", "larger.patch"]
    assert three.content() == UPSTREAM | {"src/a.cpp": replaced("src/a.cpp", ("a 5\n", "a five\n"))}
    others = {name: content for name, content in three.series_files().items() if name in ("ten.patch", "series")}
    assert three.ok("apply").data["changed"] is False
    three.edit_file("src/a.cpp", ("a 12\n", "a twelve\nand more\n"))
    three.edit_file("tools/crlf.txt", ("d 3\r\n", "three\r\n"))
    (three.tree / "run.sh").chmod(0o644)
    (three.tree / "src/deep/c.h").unlink()
    outcome = three.ok("refresh")
    expected = WITH_THREE | {
        "src/a.cpp": replaced("src/a.cpp", ("a 12\n", "a twelve\nand more\n"), base=WITH_THREE["src/a.cpp"]),
        "tools/crlf.txt": replaced("tools/crlf.txt", ("d 3\r\n", "three\r\n")),
    }
    del expected["src/deep/c.h"]
    assert three.content() == expected
    assert (three.tree / "run.sh").stat().st_mode & 0o777 == 0o644
    assert {name: content for name, content in three.series_files().items() if name in others} == others
    text = (three.patches / "five.patch").read_bytes()
    assert b"Last-Update: 2026-01-02\n" not in text
    assert text.startswith(b"From: A Person <a@example.org>\nDate: Fri, 02 Jan 2026 03:04:05 +0000\nSubject: a: five\n")
    _assert_sound(three)


def test_an_edit_without_a_change_changes_nothing(three: Checkout) -> None:
    before = three.everything()
    three.ok("edit", "five.patch")
    assert three.ok("refresh").data["written"] == []
    assert three.everything() == before


def test_a_change_of_the_whole_tree_goes_into_a_named_patch(three: Checkout) -> None:
    three.edit_file("src/a.cpp", ("a 10\n", "a ten\n"))
    three.edit_file("src/deep/c.h", ("c 3\n", "c three\n"))
    expected = three.content()
    three.ok("refresh", "five")
    assert three.content() == expected
    text = (three.patches / "five.patch").read_bytes()
    assert b"\n+a ten\n" in text
    assert b"\n+c three\n" in text
    assert b"\n+a FIVE\n" not in text
    _assert_sound(three)


def test_a_change_without_a_name_goes_into_the_last_patch(three: Checkout) -> None:
    three.edit_file("src/b.cpp", ("b 11\n", "b eleven\n"))
    three.ok("refresh")
    assert b"\n+b eleven\n" in (three.patches / "larger.patch").read_bytes()
    assert b"\n-b 11\n" in (three.patches / "larger.patch").read_bytes()
    _assert_sound(three)


def test_a_change_of_lines_that_a_later_patch_wrote_does_not_go_into_an_earlier_one(three: Checkout) -> None:
    three.edit_file("src/a.cpp", ("a FIVE\n", "a V\n"))
    before = three.everything()
    outcome = three.run("refresh", "five")
    assert outcome.code == 2
    assert "src/a.cpp" in outcome.text
    assert three.everything() == before
    assert three.run("status").data["session"] is None
    three.ok("refresh", "larger")
    assert b"\n+a V\n" in (three.patches / "larger.patch").read_bytes()


@pytest.fixture
def conflict(prepared: Prepared) -> Checkout:
    """Give a checkout in which a refresh of the first patch has stopped at the last one."""

    def prepare(checkout: Checkout) -> None:
        checkout.set_exported(THREE)
        checkout.ok("edit", "five")
        checkout.edit_file("src/a.cpp", ("a five\n", "a V\n"))
        before = checkout.series_files()
        outcome = checkout.run("refresh")
        assert outcome.code == 4
        error = outcome.data["error"]
        assert (error["type"], error["patch"], error["files"]) == ("PendingError", "larger.patch", ["src/a.cpp"])
        assert "Because of a: larger." in outcome.text
        assert "refresh --continue" in outcome.text
        assert checkout.series_files() == before

    return prepared("conflict", prepare)


def test_a_conflict_shows_both_sides_and_what_was_before(conflict: Checkout) -> None:
    text = conflict.content()["src/a.cpp"].decode()
    sections = text.partition("<<<<<<< ")[2].partition(">>>>>>> ")[0]
    ours, _, rest = sections.partition("||||||| ")
    base, _, theirs = rest.partition("=======\n")
    assert "a V\n" in ours
    assert "a five\n" in base
    assert "a FIVE\n" in theirs
    assert "a fifteen\n" in text
    status = conflict.run("status")
    assert (status.code, status.data["state"]) == (1, "conflict")
    assert "src/a.cpp" in status.text


@pytest.mark.parametrize("command", [["apply"], ["refresh", "--continue"]])
def test_nothing_goes_on_while_sections_are_marked(conflict: Checkout, command: list[str]) -> None:
    before = conflict.everything()
    assert conflict.run(*command).code == 4
    assert conflict.everything() == before


@pytest.mark.parametrize(
    "command",
    [["export"], ["edit", "ten"], ["new", "x", "--subject", "a: x"], ["rebase-onto", "--continue"]],
    ids=" ".join,
)
def test_other_commands_are_refused_in_a_conflict(conflict: Checkout, command: list[str]) -> None:
    before = conflict.everything()
    assert conflict.run(*command).code == 2
    assert conflict.everything() == before


def test_a_resolved_conflict_goes_on(conflict: Checkout) -> None:
    path = conflict.tree / "src/a.cpp"
    text = path.read_bytes()
    start, end = text.index(b"<<<<<<<"), text.index(b"\n", text.index(b">>>>>>>")) + 1
    path.write_bytes(text[:start] + b"a VVV\n" + text[end:])
    outcome = conflict.ok("refresh", "--continue")
    assert [done["outcome"] for done in outcome.data["patches"]] == ["edited", "clean", "resolved by hand"]
    assert conflict.content()["src/a.cpp"] == replaced("src/a.cpp", ("a 5\n", "a VVV\n"), ("a 15\n", "a fifteen\n"))
    assert b"\n-a V\n+a VVV\n" in (conflict.patches / "larger.patch").read_bytes()
    _assert_sound(conflict)


def test_abort_after_a_conflict_restores_everything(three: Checkout) -> None:
    before = three.everything()
    tree = three.stamp()["tree"]
    three.ok("edit", "five")
    three.edit_file("src/a.cpp", ("a five\n", "a V\n"))
    assert three.run("refresh").code == 4
    (three.tree / "stray.txt").write_bytes(b"by hand\n")
    outcome = three.ok("abort")
    assert three.everything() == before
    assert three.stamp()["tree"] == tree
    # The work is not lost: neither what the edit had changed nor what was added in the conflict.
    saved = (three.root / outcome.data["saved"]).read_bytes()
    assert b"\n+by hand\n" in saved
    assert b"\n+a V\n" in saved
    assert three.run("abort").code == 2


def test_abort_of_an_edit_saves_what_was_changed_by_hand(three: Checkout) -> None:
    before = three.everything()
    three.ok("edit", "ten")
    three.edit_file("src/b.cpp", ("b ten\n", "b X\n"))
    outcome = three.ok("abort")
    assert b"\n-b ten\n+b X\n" in (three.root / outcome.data["saved"]).read_bytes()
    assert three.everything() == before


def test_abort_of_an_edit_without_a_change_saves_nothing(three: Checkout) -> None:
    before = three.everything()
    three.ok("edit", "five")
    assert three.ok("abort").data["saved"] is None
    assert three.everything() == before


def test_abort_of_a_new_patch_leaves_the_changes_in_the_tree(three: Checkout) -> None:
    three.edit_file("src/b.cpp", ("b 2\n", "b two\n"))
    before = three.everything()
    three.ok("new", "two", "--subject", "b: two")
    three.ok("abort")
    assert {path: data for path, data in three.everything().items() if ".lucebox" not in path} == {
        path: data for path, data in before.items() if ".lucebox" not in path
    }
    assert three.run("status").data["state"] == "dirty"


def test_a_later_patch_that_became_empty_is_named_and_nothing_is_lost(three: Checkout) -> None:
    before = three.everything()
    three.ok("edit", "five")
    three.edit_file("src/a.cpp", ("a five\n", "a FIVE\n"), ("a 15\n", "a fifteen\n"))
    outcome = three.run("refresh")
    assert outcome.code == 1
    assert outcome.data["error"]["type"] == "EmptyPatchError"
    assert outcome.data["error"]["patches"] == ["larger.patch"]
    assert three.series_files() == {
        name.removeprefix("patches/"): data for name, (_, data) in before.items() if name.startswith("patches/")
    }
    again = three.copy("again")
    again.ok("abort")
    assert again.everything() == before
    assert three.run("drop-upstreamed", "--dry-run").data["dropped"].keys() == {"larger.patch"}
    three.ok("drop-upstreamed")
    three.ok("refresh", "--continue")
    assert _order(three) == ["five.patch", "ten.patch"]
    assert not (three.patches / "larger.patch").exists()
    assert three.content() == WITH_THREE
    assert "larger.patch" in (three.patches / "DROPPED.md").read_text(encoding="utf-8")
    _assert_sound(three)


def test_a_patch_that_undoes_itself_is_named(three: Checkout) -> None:
    before = three.everything()
    three.ok("edit", "ten")
    three.edit_file("src/b.cpp", ("b ten\n", "b 10\n"))
    outcome = three.run("refresh")
    assert outcome.code == 1
    assert outcome.data["error"]["patches"] == ["ten.patch"]
    three.ok("abort")
    assert three.everything() == before


def test_a_file_that_one_side_removed_is_a_conflict_without_marks(checkout: Checkout) -> None:
    checkout.set_exported({
        "b.patch": edits("b: ten", "src/b.cpp", ("b 10\n", "b ten\n")),
        "gone.patch": mail("b: gone", diff("src/b.cpp", replaced("src/b.cpp", ("b 10\n", "b ten\n")), b"")),
    })
    checkout.ok("edit", "b")
    checkout.edit_file("src/b.cpp", ("b ten\n", "b X\n"))
    outcome = checkout.run("refresh")
    assert outcome.code == 4
    assert outcome.data["error"]["files"] == ["src/b.cpp"]
    (checkout.tree / "src/b.cpp").unlink()
    checkout.ok("refresh", "--continue")
    assert "src/b.cpp" not in checkout.content()
    _assert_sound(checkout)


@pytest.mark.parametrize(
    "command",
    [["abort"], ["refresh", "--continue"], ["rebase-onto", "--continue"], ["rebase-onto", "--finish"], ["rebase-onto"],
     ["edit", "none"], ["new", "x", "--subject", "a: x", "--after", "none"], ["refresh", "none"]],
    ids=" ".join,
)
def test_commands_that_do_not_fit_say_so(three: Checkout, command: list[str]) -> None:
    before = three.everything()
    outcome = three.run(*command)
    assert outcome.code == 2
    assert "What to do" in outcome.text
    assert three.everything() == before


def test_one_thing_at_a_time(three: Checkout) -> None:
    three.ok("edit", "five")
    before = three.everything()
    for command in (["edit", "ten"], ["new", "x", "--subject", "a: x"], ["rebase-onto", "b1"]):
        assert three.run(*command).code == 2
    assert three.everything() == before


def test_a_dirty_tree_is_not_opened_for_an_edit(three: Checkout) -> None:
    three.edit_file("src/b.cpp", ("b 2\n", "b two\n"))
    before = three.everything()
    assert three.run("edit", "five").code in (2, 5)
    assert three.everything() == before


def test_a_new_patch_needs_a_change(three: Checkout) -> None:
    three.ok("new", "x", "--subject", "a: x")
    assert three.run("refresh").code == 2
    three.ok("abort")
    _assert_sound(three)


def test_an_empty_series_has_nothing_to_refresh(checkout: Checkout) -> None:
    checkout.edit_file("src/a.cpp", ("a 5\n", "a five\n"))
    before = checkout.everything()
    outcome = checkout.run("refresh")
    assert outcome.code == 2
    assert "new" in outcome.text
    assert checkout.everything() == before


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"kind": "edit"}', "\0"])
def test_a_damaged_session_file_is_reported(three: Checkout, text: str) -> None:
    three.ok("edit", "five")
    (three.cache / "session.json").write_text(text, encoding="utf-8")
    before = three.everything()
    for command in (["status"], ["apply"], ["refresh"], ["abort"]):
        outcome = three.run(*command)
        assert outcome.code in (2, 7), command
        assert "session.json" in outcome.text
        assert three.everything() == before


def test_a_link_in_the_tree_is_taken_as_a_link(three: Checkout) -> None:
    """A compile_commands.json is often one."""
    (three.tree / "compile_commands.json").symlink_to("src/a.cpp")
    three.edit_file("src/b.cpp", ("b 11\n", "b eleven\n"))
    outcome = three.run("refresh", "ten")
    assert outcome.code in (0, 2)
    in_patch = b"compile_commands" in (three.patches / "ten.patch").read_bytes()
    assert "compile_commands.json" in outcome.text or not in_patch
    assert (three.tree / "compile_commands.json").is_symlink()
