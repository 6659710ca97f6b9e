"""The rules: for each a patch that keeps it and one that does not."""

from __future__ import annotations

import shutil

import pytest
from patch_fakes import UPSTREAM, Checkout, diff, edits, lines, mail, replaced

GOOD = edits("a: five", "src/a.cpp", ("a 5\n", "a five\n"), ("a 15\n", "a fifteen\n"))
HEADER = "include/llama.h"
WITH_HEADER = UPSTREAM | {HEADER: lines("h", 40).encode()}


def _with(**fields: str) -> bytes:
    return edits("a: five", "src/a.cpp", ("a 5\n", "a five\n"), **fields)


def _adds(text: str, **fields: str) -> bytes:
    return edits("a: five", "src/a.cpp", ("a 5\n", f"{text}\n"), **fields)


def _lint(checkout: Checkout, **patches: bytes) -> set[str]:
    """Write a series, export it, and return the rules that are broken; without a tree, to be quicker."""
    shutil.rmtree(checkout.tree, ignore_errors=True)
    checkout.set_series({f"{name.replace('_', '-')}.patch": content for name, content in patches.items()})
    (checkout.root / "tests").mkdir(exist_ok=True)
    (checkout.root / "tests" / "test_it.py").touch()
    checkout.ok("export")
    outcome = checkout.run("lint")
    found = outcome.data["findings"]
    assert outcome.code == (1 if found else 0)
    for finding in found:
        assert finding["where"] in outcome.text
        assert finding["code"] in outcome.text
    return {finding["code"] for finding in found}


KEEPING = {
    "plain": GOOD,
    "a URL": _with(Origin="backport, https://example.org/1", Class="backport", Forwarded="https://example.org/2"),
    "other": _with(Origin="other, https://example.org/x MIT", Forwarded="not-needed (ours alone)"),
    "the output": _with(Changes_Output="yes, the logits are exact now", Class="hook"),
    "a command": _with(Test="$ true"),
    "two tests": _with(Test="tests/test_it.py::test_x tests/test_it.py"),
    "measured": _with(Measured="12 ms, by scripts/x.py"),
    "a long reason": mail("a: five", diff("src/a.cpp", UPSTREAM["src/a.cpp"], replaced("src/a.cpp", ("a 5\n", "x\n"))),
                          "One paragraph.\n\nAnother: with a colon.\n    and code"),
    "a new file": mail("x: big", diff("src/own.cpp", b"", lines("own", 80).encode()), Class="hook"),
    "much with an excuse": _adds(lines("x", 41)[:-1], Class="feature", Why_Not_Own_File="it is a table"),
    "a comment": _adds("// why it is done (and how);"),
    "few lines removed": mail("b: less", diff("src/b.cpp", UPSTREAM["src/b.cpp"], b"")),
}


@pytest.mark.parametrize("patch", KEEPING.values(), ids=KEEPING.keys())
def test_a_patch_that_keeps_the_rules(checkout: Checkout, patch: bytes) -> None:
    assert _lint(checkout, good=patch) == set()


BREAKING = {
    "L02 subject": (mail("x" * 73, GOOD), "L02"),
    "L02 class": (_with(Class="improvement"), "L02"),
    "L03 no test": (_with(Test=""), "L03"),
    "L03 no drop": (_with(Drop_When=""), "L03"),
    "L03 no date": (GOOD.replace(b"Date: Fri, 02 Jan 2026 03:04:05 +0000\n", b""), "L03"),
    "L03 no author": (GOOD.replace(b"From: A Person <a@example.org>\n", b""), "L03"),
    "L03 no reason": (mail("a: five", GOOD, ""), "L03"),
    "L03 to do": (mail("a: five", GOOD, "TODO: say why"), "L03"),
    "L04 origin": (_with(Origin="somewhere"), "L04"),
    "L04 origin without URL": (_with(Origin="backport, from upstream"), "L04"),
    "L04 forwarded": (_with(Forwarded="maybe"), "L04"),
    "L04 date": (_with(Last_Update="yesterday"), "L04"),
    "L04 output": (_with(Changes_Output="perhaps"), "L04"),
    "L04 output without why": (_with(Changes_Output="yes"), "L04"),
    "L08 space": (_adds("a five "), "L08"),
    "L08 tab": (_adds("a five\t"), "L08"),
    "L08 CRLF": (edits("d: three", "tools/crlf.txt", ("d 3\r\n", "three\r\n")), "L08"),
    "L10 hook": (_adds(lines("x", 41)[:-1], Class="hook", Why_Not_Own_File="it is a table"), "L10"),
    "L10 feature": (_adds(lines("x", 41)[:-1], Class="feature"), "L10"),
    "L11 getenv": (_adds('const char * x = getenv("X");'), "L11"),
    "L11 dead code": (_adds("// if (x) { return 1; }"), "L11"),
    "L12 home": (_with(Measured="in /home/me/x"), "L12"),
    "L12 token": (_with(Forwarded="https://me:secret@example.org/1"), "L12"),
    "L12 in the diff": (_adds("ghp_0123456789abcdefghijABCDEFGHIJ"), "L12"),
    "L13 nothing before": (_with(Needs="none.patch"), "L13"),
    "L02 bracket": (mail("[1/2] a: five", GOOD), "L02"),
    "L02 no area": (mail("five", GOOD), "L02"),
    "L03 unknown field": (_with(Klass="fix"), "L03"),
    "L19 no such test": (_with(Test="tests/test_none.py::test_x"), "L19"),
}


@pytest.mark.parametrize(("patch", "code"), BREAKING.values(), ids=BREAKING.keys())
def test_a_patch_that_breaks_a_rule(checkout: Checkout, patch: bytes, code: str) -> None:
    assert _lint(checkout, bad=patch) == {code}


def test_a_name_with_a_number_in_front(checkout: Checkout) -> None:
    checkout.set_exported({"0001-five.patch": GOOD})
    assert [finding["code"] for finding in checkout.run("lint").data["findings"]] == ["L02"]
    checkout.set_exported({"Five_x.patch": GOOD})
    assert "L02" in {finding["code"] for finding in checkout.run("lint").data["findings"]}


def test_a_subject_must_be_the_only_one(checkout: Checkout) -> None:
    assert _lint(checkout, one=GOOD, two=edits("a: five", "src/b.cpp", ("b 5\n", "b five\n"))) == {"L16"}
    assert _lint(checkout, one=GOOD, two=edits("b: five", "src/b.cpp", ("b 5\n", "b five\n"))) == set()


def test_what_a_patch_needs_stands_before_it(checkout: Checkout) -> None:
    needing = edits("b: five", "src/b.cpp", ("b 5\n", "b five\n"), Needs="one.patch")
    assert _lint(checkout, one=GOOD, two=needing) == set()
    assert _lint(checkout, two=needing, one=GOOD) == {"L13"}


def test_public_headers_are_not_for_hooks_and_removing_much_needs_a_reason(checkout: Checkout) -> None:
    checkout.pin_upstream(WITH_HEADER)
    checkout.ok("fetch", "--archive", str(checkout.archive))
    header = WITH_HEADER[HEADER]
    export = diff(HEADER, header, header.replace(b"h 5\n", b"h five\n"))
    assert _lint(checkout, one=mail("h: export", export, Class="hook")) == {"L17"}
    assert _lint(checkout, one=mail("h: export", export, Class="feature")) == set()
    short = diff(HEADER, header, lines("h", 10).encode())
    assert _lint(checkout, one=mail("h: less", short)) == {"L18"}
    assert _lint(checkout, one=mail("h: less", short, Deletes="upstream's tables, which ours replace")) == set()


def test_fix_brings_patches_into_their_form(checkout: Checkout) -> None:
    above = b"above\n" * 4 + UPSTREAM["src/a.cpp"]
    first = mail("a: above", diff("src/a.cpp", UPSTREAM["src/a.cpp"], above))
    checkout.set_exported({"above.patch": first, "good.patch": GOOD})
    checkout.set_series({
        "above.patch": (checkout.patches / "above.patch").read_bytes(),
        "good.patch": GOOD.replace(b"Class: fix\nOrigin: own\n", b"Origin: own\nClass: fix\n"),
    })
    outcome = checkout.run("lint")
    assert outcome.code == 1
    assert {(finding["code"], finding["where"]) for finding in outcome.data["findings"]} == {
        ("L06", "good.patch"), ("L07", "good.patch")
    }
    outcome = checkout.ok("lint", "--fix")
    assert outcome.data["written"] == ["good.patch"]
    assert outcome.data["findings"] == []


def test_tree_id_and_table_are_checked(checkout: Checkout) -> None:
    checkout.set_exported({"good.patch": GOOD})
    checkout.ok("lint")
    (checkout.patches / "EXPECTED").write_text("0" * 40 + "\n", encoding="utf-8")
    readme = checkout.patches / "README.md"
    readme.write_text(readme.read_text("utf-8") + "\nSee gone.patch and good.patch.\n", encoding="utf-8")
    outcome = checkout.run("lint")
    assert [(finding["code"], finding["where"]) for finding in outcome.data["findings"]] == [
        ("L14", "EXPECTED"), ("L15", "README.md")
    ]
    assert "gone.patch" in outcome.text
    (checkout.patches / "EXPECTED").unlink()
    assert {finding["code"] for finding in checkout.run("lint").data["findings"]} == {"L14", "L15"}
    readme.unlink()
    assert {finding["code"] for finding in checkout.run("lint").data["findings"]} == {"L06", "L14"}
    checkout.ok("lint", "--fix")


def test_lint_says_what_is_wrong_with_the_order_file(checkout: Checkout) -> None:
    checkout.set_exported({"good.patch": GOOD})
    (checkout.patches / "series").write_text("good.patch\ngood.patch\nnone.patch\n", encoding="utf-8")
    outcome = checkout.run("lint")
    assert outcome.code == 2
    assert [line for line, _ in outcome.data["error"]["problems"]] == [2, 3]
