"""Moving the series to another upstream: classification, report, finish, abort, canary."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from patch_fakes import (
    UPSTREAM,
    Checkout,
    Prepared,
    diff,
    lines,
    mail,
    make_archive,
    replaced,
    tree_id,
    upstream_members,
)

BASE = UPSTREAM | {f"src/{name}.cpp": lines(name).encode() for name in "defgh"} | {
    "CMakeLists.txt": b"set(LLAMA_VERSION_MAJOR 0)\nset(LLAMA_VERSION_MINOR 3)\nset(LLAMA_VERSION_PATCH 1)\n",
    "include/llama.h": b"int llama_old(int x);\nint llama_kept(void);\n\nint llama_other(void);\n",
}


def _patch(path: str, old: str, new: str) -> bytes:
    content = replaced(path, (old, new), base=BASE[path])
    return mail(f"{path}: {new.strip()[:30]}", diff(path, BASE[path], content), f"For the sake of {path}.")


CLEAN = _patch("src/d.cpp", "d 10\n", "d ten\n")
OFFSET = _patch("src/b.cpp", "b 10\n", "b ten\n")
THREE_WAY = _patch("src/a.cpp", "a 10\n", "a ten\n")
UPSTREAMED = _patch("src/e.cpp", "e 10\n", "e ten, at length\n")
UPSTREAMED_OTHERWISE = _patch("src/f.cpp", "f 10\n", "f ten, at length\n")
CONFLICT = _patch("src/g.cpp", "g 10\n", "g ten, our way\n")
PROBABLY = _patch("src/h.cpp", "h 10\n", "h ten, at length\n")
ALL = {
    "clean.patch": CLEAN,
    "offset.patch": OFFSET,
    "three-way.patch": THREE_WAY,
    "upstreamed.patch": UPSTREAMED,
    "otherwise.patch": UPSTREAMED_OTHERWISE,
    "conflict.patch": CONFLICT,
    "probably.patch": PROBABLY,
}
EASY = {name: ALL[name] for name in ("clean.patch", "offset.patch", "three-way.patch")}


def _changed(path: str, *pairs: tuple[str, str]) -> dict[str, bytes]:
    return {path: replaced(path, *pairs, base=BASE[path])}


NEXT = (
    BASE
    | _changed("src/b.cpp", ("b 1\n", "b 0\nb 0.5\nb 1\n"))
    | _changed("src/a.cpp", ("a 8\n", "a eight\n"), ("a 19\n", "a nineteen\n"))
    | _changed("src/e.cpp", ("e 10\n", "e ten, at length\n"))
    | _changed("src/f.cpp", ("f 10\n", "f ten, at length\n"), ("f 8\n", "f eight\n"))
    | _changed("src/g.cpp", ("g 10\n", "g ten, their way\n"), ("g 18\n", "g eighteen\n"))
    | _changed("src/h.cpp", ("h 9\nh 10\n", "h nine\nh ten, at length\n"))
    | {"src/deep/c.h": b"another file\n", "src/new.cpp": b"new\n"}
    | _changed("CMakeLists.txt", ("MINOR 3", "MINOR 4"))
    | _changed("include/llama.h", ("int llama_old(int x);\n", "int llama_old(int x, int y);\n"))
)


def _prepare_old(checkout: Checkout) -> None:
    checkout.pin_upstream(BASE, build="b10")
    checkout.ok("fetch", "--archive", str(checkout.archive))
    checkout.fetch(NEXT)


@pytest.fixture
def old(prepared: Prepared) -> Checkout:
    """Give a checkout on the old base, the new one at hand, and no series yet."""
    return prepared("old", _prepare_old)


@pytest.fixture
def easy(prepared: Prepared) -> Checkout:
    """Give one whose series carries over without a person."""

    def prepare(checkout: Checkout) -> None:
        _prepare_old(checkout)
        checkout.set_exported(EASY)

    return prepared("easy", prepare)


def _without_tree(checkout: Checkout) -> dict[str, tuple[int, bytes]]:
    return {path: data for path, data in checkout.everything().items() if not path.startswith("vendor/llama.cpp/")}


def _outcomes(data: dict[str, Any]) -> dict[str, str]:
    return {row["patch"].removesuffix(".patch"): row["outcome"] for row in data["patches"]}


def test_the_canary_classifies_every_patch_and_changes_nothing(old: Checkout) -> None:
    old.set_exported(ALL)
    before = old.everything()
    archive = old.root.parent / "other-2.0.0.tar.gz"
    outcome = old.run("canary", "2.0.0", "--archive", str(archive))
    assert outcome.code == 1
    assert _outcomes(outcome.data) == {
        "clean": "clean",
        "offset": "offset",
        "three-way": "three-way",
        "upstreamed": "upstreamed",
        "otherwise": "upstreamed in another form",
        "conflict": "conflict",
        "probably": "conflict, probably upstreamed",
    }
    assert outcome.data["to"]["build"] == "b2"
    assert outcome.data["to"]["llama_cpp_version"] == "0.4.1"
    assert {"file": "src/b.cpp", "hunk": 1, "lines": 2} in outcome.data["patches"][1]["offsets"]
    assert outcome.data["patches"][5]["conflicts"] == ["src/g.cpp"]
    assert old.everything() == before
    assert old.run("status").data["session"] is None


def test_the_canary_is_content_with_a_series_that_just_applies(old: Checkout) -> None:
    old.set_exported({name: EASY[name] for name in ("clean.patch", "offset.patch")})
    old.ok("canary", "2.0.0", "--archive", str(old.root.parent / "other-2.0.0.tar.gz"))


def test_all_patches_are_classified_before_anything_is_touched(old: Checkout) -> None:
    old.set_exported({"conflict.patch": CONFLICT, "clean.patch": CLEAN})
    series = _without_tree(old)
    outcome = old.run("rebase-onto", "b2")
    assert outcome.code == 4
    said = outcome.text.splitlines()
    assert "conflict.patch" in said[0]
    assert "clean.patch" in said[1]
    assert "clean" in said[1].removesuffix("clean.patch")
    assert "For the sake of src/g.cpp." in outcome.text
    assert _without_tree(old) == series
    assert b"g ten, our way\n" in old.content()["src/g.cpp"]
    assert b"g ten, their way\n" in old.content()["src/g.cpp"]
    assert b"d ten\n" not in old.content()["src/d.cpp"]
    assert old.run("status").data["state"] == "conflict"


def test_a_carried_series_is_in_the_tree_and_nowhere_else(easy: Checkout) -> None:
    series = _without_tree(easy)
    data = easy.ok("rebase-onto", "2.0.0").data
    assert [(done["name"], done["outcome"]) for done in data["patches"]] == [
        ("clean.patch", "clean"), ("offset.patch", "offset"), ("three-way.patch", "three-way")
    ]
    assert easy.content() == NEXT | {
        "src/d.cpp": replaced("src/d.cpp", ("d 10\n", "d ten\n"), base=NEXT["src/d.cpp"]),
        "src/b.cpp": replaced("src/b.cpp", ("b 10\n", "b ten\n"), base=NEXT["src/b.cpp"]),
        "src/a.cpp": replaced("src/a.cpp", ("a 10\n", "a ten\n"), base=NEXT["src/a.cpp"]),
    }
    assert _without_tree(easy) == series
    assert easy.run("status").data["state"] == "editing"


def test_before_finish_abort_leaves_no_trace(easy: Checkout) -> None:
    before = easy.everything()
    easy.ok("rebase-onto", "b2")
    easy.ok("rebase-onto", "--abort")
    assert easy.everything() == before
    assert easy.ok("status").data["state"] == "applied"
    easy.ok("rebase-onto", "b2")
    (easy.tree / "src/g.cpp").write_bytes(b"by hand\n")
    outcome = easy.ok("abort")
    assert b"\n+by hand\n" in (easy.root / outcome.data["saved"]).read_bytes()
    assert easy.everything() == before


def test_abort_of_a_conflict_leaves_no_trace(old: Checkout) -> None:
    old.set_exported(ALL)
    before = old.everything()
    assert old.run("rebase-onto", "b2").code == 4
    old.ok("rebase-onto", "--abort")
    assert old.everything() == before


def test_finish_writes_pin_patches_tree_id_and_table(easy: Checkout) -> None:
    easy.ok("rebase-onto", "b2")
    carried = easy.content()
    data = easy.ok("rebase-onto", "--finish").data
    assert easy.content() == carried
    pin = easy.pin_file.read_text(encoding="utf-8")
    assert pin.startswith("# A comment.\n")
    assert 'build = "b2"\n' in pin
    assert 'llama_cpp_version = "0.4.1"\n' in pin
    assert easy.ok("status").data["state"] == "applied"
    easy.ok("export", "--check")
    easy.ok("apply", "--strict", "--force-clean")
    assert easy.content() == carried
    assert (easy.patches / "EXPECTED").read_text("utf-8").strip() == data["result_tree"]
    assert b"@@ -9,7 +9,7 @@" in (easy.patches / "offset.patch").read_bytes()
    # A patch that is the same on both bases keeps its date, the others get today's.
    assert b"Last-Update: 2026-01-02\n" in (easy.patches / "clean.patch").read_bytes()
    assert {"docs/rebase/b10-b2.md", "docs/rebase/b10-b2.json"} <= set(data["written"])


def test_the_way_back_gives_the_patches_of_before(easy: Checkout) -> None:
    """Apart from the date of the last update."""

    def diffs() -> dict[str, bytes]:
        return {path.name: path.read_bytes().partition(b"---\n")[2] for path in easy.patches.glob("*.patch")}

    before, content = diffs(), easy.content()
    easy.ok("rebase-onto", "b2")
    easy.ok("rebase-onto", "--finish")
    assert diffs() != before
    easy.ok("rebase-onto", "b10")
    easy.ok("rebase-onto", "--finish")
    assert diffs() == before
    assert easy.content() == content


def test_the_report_says_what_a_reviewer_needs(easy: Checkout) -> None:
    native = easy.root / "pylucebox" / "native"
    native.mkdir(parents=True)
    (native / "lucebox.cpp").write_text("int f() { return llama_old(1) + llama_kept() + llama_oldish(); }\n", "utf-8")
    easy.ok("rebase-onto", "b2")
    easy.ok("rebase-onto", "--report", "--dir", "reports")
    data = json.loads((easy.root / "reports" / "b10-b2.json").read_text(encoding="utf-8"))
    assert data["from"]["build"] == "b10"
    assert data["to"]["build"] == "b2"
    assert data["outside_our_files"] == {}
    assert data["lost_hunks"] == []
    assert data["symbols"] == {"llama_old": ["lucebox.cpp"]}
    assert set(data["churn"]) == {"src/a.cpp", "src/b.cpp"}
    assert data["churn"]["src/b.cpp"].startswith("+2 ")
    assert data["patches"][1]["offsets"] == [{"file": "src/b.cpp", "hunk": 1, "lines": 2}]
    markdown = (easy.root / "reports" / "b10-b2.md").read_text(encoding="utf-8")
    words = ("b10 → b2", "three-way", "src/b.cpp #1 +2", "the same on both bases.", "llama_old", "src/a.cpp: +2")
    for word in (*words, data["result_tree"]):
        assert word in markdown, word
    # range-diff names each patch and shows the line of context that upstream has changed.
    assert "src/a.cpp: a ten" in data["range_diff"]
    assert "a eight" in data["range_diff"]
    assert not (easy.root / "docs").exists()


def test_the_commands_of_the_report_give_it_again(old: Checkout) -> None:
    old.set_exported({**EASY, "upstreamed.patch": UPSTREAMED})
    again = old.copy("again")
    old.ok("rebase-onto", "b2")
    old.ok("drop-upstreamed")
    data = old.ok("rebase-onto", "--finish").data
    assert data["commands"][0].startswith("# from the series that gives tree ")
    for line in data["commands"][1:]:
        words = shlex.split(line)
        assert words[:2] == ["python", "scripts/lucebox-patches"]
        archive = ["--archive", str(old.root.parent / "other-2.0.0.tar.gz")] if words[2] == "fetch" else []
        again.ok(*words[2:], *archive)
    assert again.everything() == old.everything()


def test_an_upstreamed_patch_is_named_dropped_on_demand_and_recorded(old: Checkout) -> None:
    old.set_exported({"clean.patch": CLEAN, "upstreamed.patch": UPSTREAMED, "otherwise.patch": UPSTREAMED_OTHERWISE})
    before = old.everything()
    outcome = old.ok("rebase-onto", "b2")
    for name in ("upstreamed.patch", "otherwise.patch"):
        assert f"{name} changes nothing any more; `drop-upstreamed`" in outcome.text
    refused = old.run("rebase-onto", "--finish")
    assert refused.code == 1
    assert refused.data["error"]["patches"] == ["upstreamed.patch", "otherwise.patch"]
    assert old.series_files() == {
        path.removeprefix("patches/"): data for path, (_, data) in before.items() if path.startswith("patches/")
    }
    outcome = old.run("drop-upstreamed", "--dry-run")
    assert outcome.code == 1
    evidence = outcome.data["dropped"]["upstreamed.patch"]
    assert "src/e.cpp:10" in evidence
    assert "e ten, at length" in evidence
    old.ok("drop-upstreamed")
    data = old.ok("rebase-onto", "--finish").data
    assert [bool(done["dropped"]) for done in data["patches"]] == [False, True, True]
    assert (old.patches / "series").read_text("utf-8").splitlines()[-1] == "clean.patch"
    assert not (old.patches / "otherwise.patch").exists()
    dropped = (old.patches / "DROPPED.md").read_text("utf-8")
    assert "upstreamed.patch, base b2" in dropped
    assert "otherwise.patch, base b2" in dropped
    assert "src/e.cpp:10" in dropped
    old.ok("export", "--check")
    old.ok("apply", "--strict", "--force-clean")


def test_dropped_patches_come_back_with_abort(old: Checkout) -> None:
    old.set_exported({"clean.patch": CLEAN, "upstreamed.patch": UPSTREAMED})
    before = old.everything()
    old.ok("rebase-onto", "b2")
    old.ok("drop-upstreamed")
    old.ok("abort")
    assert old.everything() == before


def test_a_patch_that_only_looks_upstreamed_is_never_dropped(old: Checkout) -> None:
    old.set_exported({"probably.patch": PROBABLY})
    outcome = old.run("rebase-onto", "b2")
    assert outcome.code == 4
    assert "probably upstreamed" in outcome.text
    assert old.ok("drop-upstreamed", "--dry-run").data["dropped"] == {}


def test_drop_upstreamed_on_the_pinned_base(old: Checkout) -> None:
    """Somebody moves the pin by hand: `apply` names the patch, `drop-upstreamed` takes it out."""
    old.set_series({"clean.patch": CLEAN, "upstreamed.patch": UPSTREAMED})
    old.pin_upstream(NEXT, build="b2")
    old.ok("fetch", "--archive", str(old.archive))
    assert old.run("apply").data["error"]["patches"] == ["upstreamed.patch"]
    assert old.run("drop-upstreamed", "--dry-run").code == 1
    assert old.run("apply").code == 1
    assert "src/e.cpp:10" in old.ok("drop-upstreamed").data["dropped"]["upstreamed.patch"]
    assert old.ok("apply").data["num_patches"] == 1
    assert "upstreamed.patch, base b2" in (old.patches / "DROPPED.md").read_text("utf-8")
    assert old.ok("drop-upstreamed").data["dropped"] == {}
    old.set_series({"clean.patch": CLEAN, "conflict.patch": CONFLICT})
    assert old.run("drop-upstreamed").code in (2, 6)


def _resolve(checkout: Checkout, path: str, content: bytes) -> None:
    assert b"<<<<<<< " in (checkout.tree / path).read_bytes()
    (checkout.tree / path).write_bytes(content)


def test_a_resolved_conflict_goes_on(old: Checkout) -> None:
    old.set_exported({"conflict.patch": CONFLICT, "clean.patch": CLEAN})
    assert old.run("rebase-onto", "b2").code == 4
    assert old.run("rebase-onto", "--finish").code == 4
    assert old.run("rebase-onto", "--continue").code == 4
    _resolve(old, "src/g.cpp", replaced("src/g.cpp", ("their way", "both ways"), base=NEXT["src/g.cpp"]))
    data = old.ok("rebase-onto", "--continue").data
    assert [done["outcome"] for done in data["patches"]] == ["resolved by hand", "clean"]
    # Our patch goes on writing that line, so the upstream's version of it is not in the result.
    assert len(data["missing"]) == 1
    old.ok("rebase-onto", "--ack", f"{data['missing'][0]}=the patch says it better")
    old.ok("rebase-onto", "--finish")
    assert b"\n+g ten, both ways\n" in (old.patches / "conflict.patch").read_bytes()
    assert b"\n-g ten, their way\n" in (old.patches / "conflict.patch").read_bytes()
    old.ok("export", "--check")


def test_lost_upstream_changes_must_be_acknowledged(old: Checkout) -> None:
    """A person answers the conflict with the old file, and upstream's other change of it is gone."""
    old.set_exported({"conflict.patch": CONFLICT})
    ours = old.content()["src/g.cpp"]
    old.run("rebase-onto", "b2")
    _resolve(old, "src/g.cpp", ours)
    outcome = old.ok("rebase-onto", "--continue")
    lost = outcome.data["lost_hunks"]
    assert sorted((hunk["path"], hunk["added"]) for hunk in lost) == [
        ("src/g.cpp", ["g eighteen"]), ("src/g.cpp", ["g ten, their way"])
    ]
    ids = [hunk["id"] for hunk in lost]
    assert sorted(outcome.data["missing"]) == sorted(ids)
    before = _without_tree(old)
    refused = old.run("rebase-onto", "--finish")
    assert refused.code == 1
    assert sorted(refused.data["error"]["missing"]) == sorted(ids)
    assert _without_tree(old) == before
    assert old.run("rebase-onto", "--ack", ids[0]).code == 2
    assert old.run("rebase-onto", "--ack", f"{ids[0]}=").code == 2
    assert old.ok("rebase-onto", "--ack", f"{ids[0]}=we say it better").data["missing"] == [ids[1]]
    assert old.run("rebase-onto", "--finish").code == 1
    old.ok("rebase-onto", "--ack", f"{ids[1]}=not wanted")
    data = old.ok("rebase-onto", "--finish").data
    reasons = {hunk["id"]: hunk["reason"] for hunk in data["lost_hunks"]}
    assert reasons == {ids[0]: "we say it better", ids[1]: "not wanted"}
    markdown = (old.root / "docs/rebase/b10-b2.md").read_text("utf-8")
    assert "we say it better" in markdown
    assert f"--ack '{ids[1]}=not wanted'" in markdown


def test_a_change_outside_of_our_files_breaks_the_tree_equation(old: Checkout) -> None:
    old.set_exported({"conflict.patch": CONFLICT})
    old.run("rebase-onto", "b2")
    _resolve(old, "src/g.cpp", replaced("src/g.cpp", ("their way", "our way"), base=NEXT["src/g.cpp"]))
    (old.tree / "src/e.cpp").write_bytes(BASE["src/e.cpp"])
    outcome = old.ok("rebase-onto", "--continue")
    assert outcome.data["outside_our_files"] == {"src/e.cpp": None}
    assert "src/e.cpp" in outcome.text
    assert "src/e.cpp" in outcome.data["missing"]
    assert old.run("rebase-onto", "--finish").code == 1
    for name in outcome.data["missing"]:
        old.ok("rebase-onto", "--ack", f"{name}=on purpose")
    old.ok("rebase-onto", "--finish")
    assert "not the same on both bases:\n- src/e.cpp: on purpose\n" in (
        old.root / "docs/rebase/b10-b2.md").read_text("utf-8")


def test_a_file_that_upstream_removed_is_a_conflict(old: Checkout) -> None:
    old.set_exported({"clean.patch": CLEAN, "offset.patch": OFFSET})
    gone = {path: content for path, content in BASE.items() if path != "src/d.cpp"}
    old.fetch(gone, "3.0.0")
    outcome = old.run("rebase-onto", "b3")
    assert outcome.code == 4
    assert outcome.data["error"]["files"] == ["src/d.cpp"]
    (old.tree / "src/d.cpp").unlink()
    old.ok("rebase-onto", "--continue")
    refused = old.run("rebase-onto", "--finish")
    assert refused.code == 1
    assert "clean.patch" in refused.text
    old.ok("drop-upstreamed")
    old.ok("rebase-onto", "--finish")
    assert (old.patches / "series").read_text("utf-8").splitlines()[-1] == "offset.patch"
    assert "resolved by hand" in (old.patches / "DROPPED.md").read_text("utf-8")


def test_an_upstream_that_is_not_unique_is_refused(easy: Checkout) -> None:
    """An archive and a git tag of one build are two trees, because a packer leaves files out."""
    easy.fetch(NEXT | {"only-in-git.txt": b"\n"})
    before = easy.everything()
    outcome = easy.run("rebase-onto", "b2")
    assert outcome.code in (2, 7)
    assert easy.everything() == before
    with_it, without = (tree_id(files) for files in (NEXT | {"only-in-git.txt": b"\n"}, NEXT))
    assert with_it in outcome.text
    easy.ok("rebase-onto", without)
    assert "only-in-git.txt" not in easy.content()


def test_a_conflict_of_short_lines_is_only_a_conflict(old: Checkout) -> None:
    old.set_exported({"short.patch": _patch("src/g.cpp", "g 10\n", "g X\n")})
    outcome = old.run("canary", "2.0.0", "--archive", str(old.root.parent / "other-2.0.0.tar.gz"))
    assert _outcomes(outcome.data) == {"short": "conflict"}


def test_an_upstream_that_is_not_here_is_named(easy: Checkout) -> None:
    before = easy.everything()
    outcome = easy.run("rebase-onto", "b9")
    assert outcome.code == 7
    assert "lucebox-patches fetch b9" in outcome.text
    assert "b10, b2" in outcome.text
    assert easy.everything() == before


def test_a_dirty_tree_is_not_rebased(easy: Checkout) -> None:
    (easy.tree / "src/g.cpp").write_bytes(b"by hand\n")
    before = easy.everything()
    assert easy.run("rebase-onto", "b2").code in (2, 5)
    assert easy.everything() == before


def test_builds_go_on_during_a_rebase(easy: Checkout) -> None:
    """CMake calls `apply` before each build."""
    easy.ok("rebase-onto", "b2")
    before = easy.everything()
    outcome = easy.ok("apply", "--fetch")
    assert outcome.data["changed"] is False
    assert easy.everything() == before


def test_an_archive_of_another_version_is_refused_if_its_hash_is_known(old: Checkout, tmp_path: Path) -> None:
    archive = tmp_path / "four.tar.gz"
    sha256 = make_archive(archive, upstream_members(NEXT | {"src/four.cpp": b"4\n"}))
    refused = old.run("fetch", "4.0.0", "--archive", str(archive), "--sha256", "0" * 64)
    assert refused.code == 3
    assert refused.data["error"]["found"] == sha256
    assert old.run("rebase-onto", "4.0.0").code in (2, 7)
    outcome = old.ok("fetch", "4.0.0", "--archive", str(archive), "--sha256", sha256)
    assert outcome.data["upstream"]["build"] == "b4"
    assert outcome.data["unpacked"] is False


def test_a_series_of_none_moves_as_well(old: Checkout) -> None:
    old.ok("export")
    old.ok("apply")
    old.ok("rebase-onto", "b2")
    assert old.content() == NEXT
    old.ok("rebase-onto", "--finish")
    assert old.ok("status").data["upstream"]["build"] == "b2"
    old.ok("export", "--check")


def test_changes_made_after_everything_was_carried_are_not_lost(easy: Checkout) -> None:
    easy.ok("rebase-onto", "b2")
    mine = easy.tree / "src/d.cpp"
    mine.write_bytes(mine.read_bytes() + b"mine\n")
    outcome = easy.run("rebase-onto", "--finish")
    assert outcome.code == 2
    assert "src/d.cpp" in outcome.text
    assert mine.read_bytes().endswith(b"mine\n")
