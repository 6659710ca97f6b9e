"""Writing the series in its one form: applying and exporting is the identity."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from patch_fakes import UPSTREAM, Checkout, diff, edits, mail, make_repository, plain_git, replaced

FIRST = mail("a: write a ten", diff("src/a.cpp", UPSTREAM["src/a.cpp"], replaced("src/a.cpp", ("a 10\n", "a ten\n"))))
TEN = replaced("src/a.cpp", ("a 10\n", "a ten\n"))
TEN_AGAIN = replaced("src/a.cpp", ("a ten\n", "a TEN\n"), base=TEN)
STACKED = mail("a: write it larger", diff("src/a.cpp", TEN, TEN_AGAIN))
MODE = mail("run: no longer a script", b"diff --git a/run.sh b/run.sh\nold mode 100755\nnew mode 100644\n")
NEW = mail("new: a file", diff("src/new file.cpp", b"", "grün\n".encode()))
DELETED = mail("c: not needed", diff("src/deep/c.h", UPSTREAM["src/deep/c.h"], b""))
NO_NEWLINE = mail(
    "b: end without a line end",
    b"diff --git a/src/b.cpp b/src/b.cpp\n--- a/src/b.cpp\n+++ b/src/b.cpp\n"
    b"@@ -18,3 +18,3 @@\n b 18\n b 19\n-b 20\n+b 20\n\\ No newline at end of file\n",
)
CRLF = mail(
    "d: a file with CRLF",
    diff("tools/crlf.txt", UPSTREAM["tools/crlf.txt"], replaced("tools/crlf.txt", ("d 3\r\n", "three\r\n"))),
)
ALL_KINDS = {
    "first.patch": FIRST,
    "mode.patch": MODE,
    "new.patch": NEW,
    "deleted.patch": DELETED,
    "no-newline.patch": NO_NEWLINE,
    "crlf.patch": CRLF,
    "stacked.patch": STACKED,
}
PATCHED = {path: content for path, content in UPSTREAM.items() if path != "src/deep/c.h"} | {
    "src/a.cpp": TEN_AGAIN,
    "src/new file.cpp": "grün\n".encode(),
    "src/b.cpp": UPSTREAM["src/b.cpp"][:-1],
    "tools/crlf.txt": replaced("tools/crlf.txt", ("d 3\r\n", "three\r\n")),
}


def test_applying_and_exporting_is_the_identity(checkout: Checkout) -> None:
    checkout.set_exported(ALL_KINDS)
    assert checkout.content() == PATCHED
    before = checkout.everything()
    for _ in range(2):
        assert checkout.ok("apply").data["offsets"] == []
        assert checkout.ok("export").data["written"] == []
        assert checkout.ok("export", "--check").code == 0
    assert checkout.everything() == before
    # A tree made from nothing gives the same as well.
    again = checkout.copy("again")
    shutil.rmtree(again.tree)
    shutil.rmtree(again.cache / "store.git")
    again.ok("apply")
    again.ok("export", "--check")
    assert again.everything() == before


def test_every_patch_stands_in_one_form(checkout: Checkout) -> None:
    scrambled = FIRST.replace(b"Class: fix\nOrigin: own\n", b"Origin: own  \nX-Note: ours\nClass: fix\n")
    checkout.set_exported({"first.patch": scrambled.replace(b"\n", b"\r\n", 6)})
    text = (checkout.patches / "first.patch").read_bytes()
    head, _, body = text.partition(b"---\n")
    assert head.decode() == (
        "From: A Person <a@example.org>\nDate: Fri, 02 Jan 2026 03:04:05 +0000\nSubject: a: write a ten\n\n"
        "Why it is done.\n\nClass: fix\nOrigin: own\nForwarded: no\nTest: tests/test_it.py\nChanges-Output: no\n"
        "Drop-When: upstream does it\nLast-Update: 2026-01-02\nX-Note: ours\n"
    )
    ids = [plain_git("hash-object", "--stdin", cwd=checkout.root, stdin=side) for side in (UPSTREAM["src/a.cpp"], TEN)]
    assert body.startswith(f"diff --git a/src/a.cpp b/src/a.cpp\nindex {ids[0]}..{ids[1]} 100644\n--- a/src".encode())


def test_a_rename_stands_as_a_removed_and_a_new_file(checkout: Checkout) -> None:
    rename = b"diff --git a/src/b.cpp b/src/e.cpp\nsimilarity index 100%\nrename from src/b.cpp\nrename to src/e.cpp\n"
    checkout.set_exported({"rename.patch": mail("b: another name", rename)})
    text = (checkout.patches / "rename.patch").read_bytes()
    assert b"rename" not in text.partition(b"---\n")[2]
    assert b"deleted file mode 100644\n" in text
    assert b"new file mode 100644\n" in text
    assert checkout.content()["src/e.cpp"] == UPSTREAM["src/b.cpp"]
    assert "src/b.cpp" not in checkout.content()


def test_names_outside_ascii_stay(checkout: Checkout) -> None:
    author = "From: Jürgen Åström 山田 <j@example.org>\n".encode()
    patch = FIRST.replace(b"From: A Person <a@example.org>\n", author).replace(b"Why it", "Gründe: es".encode())
    checkout.set_exported({"first.patch": patch})
    assert author in (checkout.patches / "first.patch").read_bytes()
    assert checkout.run("lint").code == 0


HOSTILE = """
[core]
	autocrlf = true
	eol = crlf
	hooksPath = {hooks}
	attributesFile = {attributes}
	quotePath = true
	abbrev = 4
	fileMode = false
[diff]
	noprefix = true
	mnemonicPrefix = true
	suppressBlankEmpty = true
	external = false
	renames = copies
	context = 7
	interHunkContext = 9
	algorithm = minimal
	orderFile = /none
	indentHeuristic = false
[format]
	from = Somebody Else <x@example.org>
	headers = "X-Spam: yes"
	cc = x@example.org
	useAutoBase = true
	signature = spam
[apply]
	whitespace = fix
	ignoreWhitespace = change
[commit]
	gpgSign = true
[color]
	ui = always
[merge]
	conflictStyle = zdiff3
[i18n]
	commitEncoding = latin1
	logOutputEncoding = latin1
[url "file:///nowhere/"]
	insteadOf = file:///
"""


def _be_hostile(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the user settings and variables that change what git writes."""
    home = tmp_path / "home"
    (home / "hooks").mkdir(parents=True)
    for hook in ("post-index-change", "reference-transaction"):
        (home / "hooks" / hook).write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        (home / "hooks" / hook).chmod(0o755)
    (home / "attributes").write_text("* text eol=crlf\n*.cpp -diff\n", encoding="utf-8")
    settings = HOSTILE.format(hooks=home / "hooks", attributes=home / "attributes")
    if kind == "home":
        (home / ".gitconfig").write_text(settings, encoding="utf-8")
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    elif kind == "variable":
        (home / "settings").write_text(settings, encoding="utf-8")
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "settings"))
        monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(home / "settings"))
        monkeypatch.delenv("GIT_CONFIG_NOSYSTEM", raising=False)
    else:
        monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'diff.noprefix'='true' 'core.autocrlf'='true'")
        monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
        monkeypatch.setenv("GIT_DIFF_OPTS", "-u9")
        monkeypatch.setenv("GIT_INDEX_FILE", str(home / "index"))
        monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(home / "objects"))
        monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
        monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")
        monkeypatch.setenv("GIT_AUTHOR_DATE", "yesterday")
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    for name in ("LC_ALL", "LANG", "LANGUAGE"):
        monkeypatch.setenv(name, "tr_TR.UTF-8")


@pytest.mark.parametrize("kind", ["home", "variable", "parameters"])
def test_settings_places_and_times_change_no_byte(
    checkout: Checkout, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.set_exported(ALL_KINDS)
    before = checkout.everything()
    _be_hostile(kind, tmp_path, monkeypatch)
    checkout.ok("export", "--check")
    checkout.set_series(ALL_KINDS)
    for cached in (checkout.tree, checkout.cache / "store.git"):
        shutil.rmtree(cached)
    checkout.set_exported(ALL_KINDS)
    assert checkout.everything() == before


def test_check_writes_nothing_and_shows_the_difference(checkout: Checkout) -> None:
    checkout.set_exported({"first.patch": FIRST})
    path = checkout.patches / "first.patch"
    path.write_bytes(path.read_bytes().replace(b"Class: fix\nOrigin: own\n", b"Origin: own\nClass: fix\n"))
    before = checkout.everything()
    outcome = checkout.run("export", "--check")
    assert outcome.code == 1
    assert outcome.data["error"]["files"] == ["first.patch"]
    assert "\n-Class: fix\n" in outcome.data["error"]["diff"] or "\n+Class: fix\n" in outcome.data["error"]["diff"]
    assert "lucebox-patches export" in outcome.text
    assert checkout.everything() == before


def test_a_hunk_that_moved_is_reported_refused_when_strict_and_corrected_by_export(checkout: Checkout) -> None:
    moved = b"above\n" * 4 + UPSTREAM["src/a.cpp"]
    above = mail("a: lines above", diff("src/a.cpp", UPSTREAM["src/a.cpp"], moved))
    checkout.set_series({"above.patch": above, "first.patch": FIRST})
    outcome = checkout.run("apply", "--strict")
    assert outcome.code == 1
    assert outcome.data["offsets"] == [{"patch": "first.patch", "file": "src/a.cpp", "hunk": 1, "lines": 4}]
    assert checkout.content()["src/a.cpp"] == replaced("src/a.cpp", ("a 10\n", "a ten\n"), base=moved)
    checkout.ok("export")
    assert checkout.ok("apply", "--strict", "--force-clean").data["offsets"] == []
    assert b"@@ -11,7 +11,7 @@" in (checkout.patches / "first.patch").read_bytes()


def test_the_exported_series_is_what_git_am_takes(checkout: Checkout, tmp_path: Path) -> None:
    checkout.set_exported(ALL_KINDS)
    repository = tmp_path / "plain"
    make_repository(repository, UPSTREAM)
    names = [line for line in (checkout.patches / "series").read_text().splitlines() if not line.startswith("#")]
    plain_git("am", "--quiet", "--keep-cr", *[str(checkout.patches / name) for name in names], cwd=repository)
    expected = (checkout.patches / "EXPECTED").read_text(encoding="utf-8").strip()
    assert plain_git("rev-parse", "HEAD^{tree}", cwd=repository) == expected
    assert plain_git("log", "-1", "--format=%an|%ad|%s", "--date=iso", cwd=repository) == (
        "A Person|2026-01-02 03:04:05 +0000|a: write it larger"
    )
    assert "Drop-When: upstream does it" in plain_git("log", "-1", "--format=%b", cwd=repository)


def test_another_tree_than_recorded_is_refused_until_exported(checkout: Checkout) -> None:
    checkout.set_exported({"first.patch": FIRST})
    recorded = (checkout.patches / "EXPECTED").read_text(encoding="utf-8")
    content = checkout.content()
    checkout.set_series({"first.patch": FIRST, "new.patch": NEW})
    outcome = checkout.run("apply")
    assert outcome.code == 3
    assert outcome.data["error"]["type"] == "HashMismatchError"
    assert outcome.data["error"]["expected"] == recorded.strip()
    assert "lucebox-patches export" in outcome.text
    assert checkout.content() == content
    checkout.ok("export")
    assert checkout.ok("apply").data["tree"] == (checkout.patches / "EXPECTED").read_text("utf-8").strip() != recorded


def test_an_empty_series_records_the_base(checkout: Checkout) -> None:
    checkout.ok("export")
    pinned = checkout.ok("status").data["upstream"]["tree"]
    assert (checkout.patches / "EXPECTED").read_text(encoding="utf-8") == f"{pinned}\n"
    checkout.ok("export", "--check")
    checkout.ok("apply", "--strict")
    checkout.ok("lint")
    assert "0 patches" in checkout.ok("report").data["markdown"]


def test_the_table_of_the_readme_is_made_and_the_rest_of_it_stays(checkout: Checkout) -> None:
    checkout.set_exported({"first.patch": FIRST})
    readme = checkout.patches / "README.md"
    row = "| [first](first.patch) | fix | a: write a ten | +1 -1 | no | upstream does it |"
    assert row in readme.read_text("utf-8")
    readme.write_text("Words before.\n" + readme.read_text("utf-8") + "Words after.\n", encoding="utf-8")
    text = readme.read_text("utf-8")
    checkout.ok("export", "--check")
    readme.write_text(text.replace("| fix |", "| hook |"), encoding="utf-8")
    assert checkout.run("export", "--check").code == 1
    checkout.ok("export")
    assert readme.read_text("utf-8") == text
    readme.write_text("No place for a table.\n", encoding="utf-8")
    assert checkout.run("export").code == 2
    assert readme.read_text("utf-8") == "No place for a table.\n"


def test_the_report_for_release_notes_names_base_tree_and_patches(checkout: Checkout) -> None:
    checkout.set_exported({"first.patch": FIRST, "mode.patch": MODE})
    markdown = checkout.ok("report").data["markdown"]
    assert markdown.startswith("2 patches on llama.cpp b1 (0.0.1)")
    assert (checkout.patches / "EXPECTED").read_text("utf-8").strip() in markdown
    assert "[first](first.patch)" in markdown
    assert "[mode](mode.patch)" in markdown


def test_a_binary_change_is_refused(checkout: Checkout) -> None:
    work = checkout.root.parent / "plain"
    make_repository(work, UPSTREAM)
    (work / "src/a.cpp").write_bytes(b"\0\1\2" * 20)
    binary = plain_git("diff", "--binary", "--full-index", cwd=work).encode() + b"\n\n"
    checkout.set_series({"binary.patch": mail("a: bytes", binary)})
    outcome = checkout.run("export")
    assert outcome.code == 2
    assert "binary" in outcome.text
    assert not (checkout.patches / "EXPECTED").exists()


def test_export_waits_for_an_open_edit_to_end(checkout: Checkout) -> None:
    checkout.set_exported({"first.patch": FIRST})
    checkout.ok("edit", "first")
    before = checkout.everything()
    assert checkout.run("export").code == 2
    assert checkout.run("export", "--check").code == 2
    assert checkout.run("lint", "--fix").code == 2
    assert checkout.everything() == before


def test_two_people_adding_at_the_end_are_merged(checkout: Checkout, tmp_path: Path) -> None:
    """`patches/series` has the union merge; the table and EXPECTED are made again."""
    root = tmp_path / "shared"
    attributes = (Path(__file__).resolve().parents[2] / ".gitattributes").read_bytes()
    series = b"# The order.\nfirst.patch\n"
    make_repository(root, {".gitattributes": attributes, "patches/series": series})
    for name in ("mine", "theirs"):
        plain_git("checkout", "--quiet", "-b", name, "main", cwd=root)
        (root / "patches/series").write_bytes(series + f"{name}.patch\n".encode())
        plain_git("commit", "--quiet", "-am", name, cwd=root)
    plain_git("merge", "--quiet", "--no-edit", "mine", cwd=root)
    merged = (root / "patches/series").read_bytes()
    assert merged.startswith(series)
    assert set(merged.split()) == set(series.split()) | {b"mine.patch", b"theirs.patch"}
    mine = edits("b: mine", "src/b.cpp", ("b 5\n", "b mine\n"))
    theirs = edits("c: theirs", "src/deep/c.h", ("c 5\n", "c\n"))
    checkout.set_exported({"first.patch": FIRST, "theirs.patch": theirs})
    (checkout.patches / "mine.patch").write_bytes(mine)
    (checkout.patches / "series").write_bytes(merged)
    assert checkout.run("apply").code == 3
    checkout.ok("export")
    assert checkout.content()["src/b.cpp"] == replaced("src/b.cpp", ("b 5\n", "b mine\n"))
    assert checkout.content()["src/deep/c.h"] == replaced("src/deep/c.h", ("c 5\n", "c\n"))


def test_an_order_that_no_longer_applies_is_refused(checkout: Checkout) -> None:
    checkout.set_exported({"first.patch": FIRST, "stacked.patch": STACKED})
    content = checkout.content()
    (checkout.patches / "series").write_text("stacked.patch\nfirst.patch\n", encoding="utf-8")
    for command in (["apply"], ["export"], ["export", "--check"], ["lint"]):
        outcome = checkout.run(*command)
        assert outcome.code == 6, command
        assert outcome.data["error"]["patch"] == "stacked.patch"
    assert checkout.content() == content


def test_patches_stacked_on_one_line_are_up_to_date_when_applied_again(checkout: Checkout) -> None:
    """A reverse check of the first would say that it is not applied."""
    checkout.set_exported({"first.patch": FIRST, "stacked.patch": STACKED})
    checkout.age_files()
    outcome = checkout.ok("apply")
    assert outcome.data["changed"] is False
    assert checkout.young_files() == set()
    assert checkout.ok("status").data["state"] == "applied"


def test_a_series_with_odd_lines_exports_to_the_same_patches(checkout: Checkout) -> None:
    checkout.set_exported({"first.patch": FIRST, "mode.patch": MODE})
    content = checkout.series_files()
    (checkout.patches / "series").write_bytes(b"# words\r\n\r\n first.patch\r\nmode.patch # why\r\n")
    checkout.ok("apply")
    checkout.ok("export", "--check")
    assert {name: data for name, data in checkout.series_files().items() if name != "series"} == {
        name: data for name, data in content.items() if name != "series"
    }
