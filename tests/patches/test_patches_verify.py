"""Building and testing prefixes; a small program stands for cmake, so there is no compiler."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from lucebox_patches.cli import main
from patch_fakes import UPSTREAM, Checkout, Prepared, edits, plain_git, replaced

_FAKE_CMAKE = r"""#!/bin/sh
echo "$1" >> '{log}'
case "$1" in
--version) echo cmake version 3.99;;
-S)
    mkdir -p "$4"
    for word; do
        case "$word" in -DLUCEBOX_LLAMA_CPP_DIR=*) echo "${{word#*=}}" > "$4/source";; esac
    done;;
--build)
    seq -f 'compiling %g' 0 59
    if grep broken "$(cat "$2/source")/src/b.cpp"; then exit 1; fi;;
--install)
    mkdir -p "$4/pylucebox/lib"
    cp "$(cat "$2/source")/src/a.cpp" "$4/pylucebox/lib/";;
*) exit 9;;
esac
"""
_PACKAGE = '''
from pathlib import Path
from types import SimpleNamespace

TEXT = (Path(__file__).parent / "lib" / "a.cpp").read_text()


class Engine:
    @classmethod
    def demo(cls, **options):
        return cls()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def generate(self, prompt, **options):
        return SimpleNamespace(token_ids=[TEXT.count("token"), 7])
'''


def _series(*changes: tuple[str, str, dict[str, str]]) -> dict[str, bytes]:
    patches: dict[str, bytes] = {}
    content = UPSTREAM["src/a.cpp"]
    for line, new, fields in changes:
        pair = (f"a {line}\n", f"{new}\n")
        name = new.split()[0]
        patches[f"{name}.patch"] = edits(f"a: {name}", "src/a.cpp", pair, base=content, **{"Test": "$ true", **fields})
        content = replaced("src/a.cpp", pair, base=content)
    return patches


def _prepare_shop(checkout: Checkout) -> None:
    package = checkout.root / "pylucebox"
    package.mkdir()
    (package / "__init__.py").write_text(_PACKAGE, encoding="utf-8")
    (package / "lib").mkdir()
    (package / "lib" / "a.cpp").write_text("not the one of the prefix: token token token\n", encoding="utf-8")
    (checkout.root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    checkout.set_exported(_series(("5", "one", {}), ("10", "two", {}), ("15", "three", {})))


@pytest.fixture
def shop(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """Give a checkout with a small package, three patches, and a cmake that builds it."""
    checkout = prepared("shop", _prepare_shop)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"cmake": _FAKE_CMAKE.format(log=tmp_path / "cmake.log"), "ccache": "", "ninja": ""}.items():
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return checkout


def _builds(checkout: Checkout) -> int:
    log = checkout.root.parent / "cmake.log"
    return log.read_text(encoding="utf-8").split().count("--build") if log.exists() else 0


def _passed(data: dict[str, Any]) -> list[tuple[int, bool]]:
    return [(outcome["prefix"], outcome["cached"]) for outcome in data["passed"]]


def test_the_whole_series_is_built_and_the_result_is_remembered(shop: Checkout) -> None:
    before = shop.everything()
    outcome = shop.ok("verify")
    assert _passed(outcome.data) == [(3, False)]
    assert outcome.data["passed"][0]["tokens"] == [0, 7]
    assert outcome.data["passed"][0]["patch"] == "three.patch"
    assert _builds(shop) == 1
    assert _passed(shop.ok("verify").data) == [(3, True)]
    assert _builds(shop) == 1
    assert shop.everything() == before
    # Another package, test or tree is another question.
    (shop.root / "pylucebox" / "more.py").write_text("x = 1\n", encoding="utf-8")
    assert _passed(shop.ok("verify").data) == [(3, False)]


def test_all_prefixes_begin_with_the_plain_base(shop: Checkout) -> None:
    outcome = shop.ok("verify", "--prefixes", "--jobs", "1")
    assert [outcome["patch"] for outcome in outcome.data["passed"]] == [
        "the plain base", "one.patch", "two.patch", "three.patch"
    ]
    assert "prefix 2 (two.patch): passes" in outcome.text
    assert _passed(shop.ok("verify", "--prefixes").data) == [(number, True) for number in range(4)]
    assert _builds(shop) == 4


def test_the_package_of_each_prefix_is_kept_on_demand(
    shop: Checkout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.ok("verify", "--prefixes")
    capsys.readouterr()
    assert main(["verify", "--prefixes", "--sites", str(tmp_path / "sites")], shop.root) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["prefix"].endswith("the-plain-base")
    assert len({line["site"] for line in lines}) == len(lines) > 1
    assert all((Path(line["site"]) / "pylucebox").is_dir() for line in lines)


def test_a_prefix_that_does_not_build_is_named_with_log_and_command(shop: Checkout) -> None:
    shop.set_exported({
        **_series(("5", "one", {})),
        "bad.patch": edits("b: bad", "src/b.cpp", ("b 5\n", "broken\n"), Test="$ true"),
        "good.patch": edits("b: good", "src/b.cpp", ("broken\n", "b five\n"),
                            base=replaced("src/b.cpp", ("b 5\n", "broken\n")), Test="$ true"),
    })
    outcome = shop.run("verify", "--prefixes")
    assert outcome.code == 6
    error = outcome.data["error"]
    assert (error["type"], error["prefix"], error["step"]) == ("VerifyError", 2, "build")
    assert "bad.patch" in outcome.text
    assert "\nbroken\n" in outcome.text
    assert "compiling 59" in outcome.text
    assert "compiling 5\n" not in outcome.text
    assert "cmake --build" in outcome.text
    outcome = shop.run("verify", "--prefixes", "--keep-going")
    assert outcome.code == 6
    assert _passed(outcome.data) == [(0, True), (1, True), (3, False)]
    assert [failure["prefix"] for failure in outcome.data["failed"]] == [2]


def test_output_changes_only_where_a_patch_says_so(shop: Checkout) -> None:
    quiet = _series(("5", "one", {}), ("10", "token two", {}), ("15", "three", {}))
    shop.set_exported(quiet)
    outcome = shop.run("verify", "--prefixes")
    assert outcome.code == 6
    assert outcome.data["error"]["prefix"] == 2
    assert "[1, 7] after [0, 7]" in outcome.text
    assert "Changes-Output" in outcome.text
    said = {"Changes-Output": "yes, a token more"}
    shop.set_exported(_series(("5", "one", {}), ("10", "token two", said), ("15", "three", {})))
    outcome = shop.ok("verify", "--prefixes")
    assert [outcome["tokens"] for outcome in outcome.data["passed"]] == [[0, 7], [0, 7], [1, 7], [1, 7]]


def test_the_tests_of_a_patch_run_on_its_prefix(shop: Checkout) -> None:
    """Commands and pytest ids see the package that was built with the prefix, not the one beside the tests."""
    (shop.root / "tests" / "test_it.py").write_text(
        "import pylucebox\n\ndef test_it():\n    assert 'three' not in pylucebox.TEXT\n", encoding="utf-8"
    )
    shop.set_exported(_series(
        ("5", "one", {"Test": "$ grep one site/pylucebox/lib/a.cpp"}),
        ("10", "two", {"Test": "$ ! grep three site/pylucebox/lib/a.cpp"}),
        ("15", "three", {"Test": "tests/test_it.py::test_it"}),
    ))
    outcome = shop.run("verify", "--prefixes")
    assert outcome.code == 6
    assert (outcome.data["error"]["prefix"], outcome.data["error"]["step"]) == (3, "tests/test_it.py::test_it")
    assert "assert 'three' not in" in outcome.text


@pytest.fixture
def committed(shop: Checkout) -> Checkout:
    """Give one whose files are in a repository of the user."""
    (shop.root / ".gitignore").write_text("vendor/llama.cpp/\nvendor/.cache/\n", encoding="utf-8")
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "start"], ["tag", "start"]):
        plain_git(*command, cwd=shop.root)
    return shop


def test_only_changed_prefixes_are_built(committed: Checkout) -> None:
    assert committed.ok("verify", "--changed").data["passed"] == []
    series = _series(("5", "one", {}), ("10", "two", {}), ("15", "three", {"Class": "hook"}))
    committed.set_exported(series)
    assert _passed(committed.ok("verify", "--changed").data)[-1] == (3, False)
    plain_git("commit", "--quiet", "-am", "more", cwd=committed.root)
    assert committed.ok("verify", "--changed").data["passed"] == []
    assert _passed(committed.ok("verify", "--changed", "--since", "start").data)[-1] == (3, True)
    committed.set_exported(_series(("15", "three", {"Class": "hook"}), ("5", "one", {}), ("10", "two", {})))
    assert [outcome["patch"] for outcome in committed.ok("verify", "--changed").data["passed"]][-3:] == [
        "three.patch", "one.patch", "two.patch"
    ]


def test_the_output_of_the_first_changed_prefix_is_compared_too(committed: Checkout) -> None:
    committed.set_exported(_series(("5", "one", {}), ("10", "two", {}), ("15", "token three", {})))
    outcome = committed.run("verify", "--changed")
    assert outcome.code == 6, outcome.text
    assert "[1, 7] after [0, 7]" in outcome.text


def test_another_base_changes_every_prefix(committed: Checkout) -> None:
    committed.fetch(UPSTREAM | {"src/b.cpp": b"another\n"})
    committed.ok("rebase-onto", "b2")
    committed.ok("rebase-onto", "--finish")
    assert [prefix for prefix, _ in _passed(committed.ok("verify", "--changed").data)] == [0, 1, 2, 3]


def test_what_changed_since_nothing_is_a_usage_error(committed: Checkout, shop: Checkout) -> None:
    assert shop is committed
    outcome = committed.run("verify", "--changed", "--since", "no-such-tag")
    assert outcome.code == 2
    assert "no-such-tag" in outcome.text


def test_the_result_of_a_rebase_is_verified_before_it_is_finished(shop: Checkout) -> None:
    shop.fetch(UPSTREAM | {"src/b.cpp": b"another\n"})
    shop.ok("rebase-onto", "b2")
    outcome = shop.ok("verify", "--prefixes")
    assert [prefix for prefix, _ in _passed(outcome.data)] == [0, 1, 2, 3]
    data = shop.ok("rebase-onto", "--finish").data
    assert len(data["verify"]) == 4
    assert "prefix 3 (three.patch): passes" in "\n".join(data["verify"])
    assert "prefix 3 (three.patch): passes" in (shop.root / "docs/rebase/b1-b2.md").read_text("utf-8")


def test_without_cmake_the_message_names_it(shop: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = shop.root.parent / "only-git"
    programs.mkdir()
    (programs / "git").symlink_to(shutil.which("git") or "")
    monkeypatch.setenv("PATH", str(programs))
    outcome = shop.run("verify")
    assert outcome.code == 7
    assert outcome.data["error"]["program"] == "cmake"


def test_an_open_edit_cannot_be_verified(shop: Checkout) -> None:
    shop.ok("edit", "two")
    assert shop.run("verify").code == 2
    assert shop.run("bisect", "--", "true").code == 2


def test_bisect_finds_the_first_patch_with_which_a_command_fails(shop: Checkout) -> None:
    shop.set_exported(_series(*[(str(number), word, {}) for number, word in (
        (2, "one"), (5, "two"), (8, "bad"), (11, "four"), (14, "five"), (17, "six")
    )]))
    outcome = shop.ok("bisect", "--", "sh", "-c", "! grep -q bad site/pylucebox/lib/a.cpp")
    assert (outcome.data["prefix"], outcome.data["patch"]) == (3, "bad.patch")
    assert _builds(shop) <= 3
    assert "bad.patch" in outcome.text
    outcome = shop.ok("bisect", "--good", "2", "--bad", "4", "--", "sh", "-c", "! grep -q bad site/pylucebox/lib/a.cpp")
    assert outcome.data["prefix"] == 3


@pytest.mark.parametrize("ends", [("3", "3"), ("2", "1"), ("-1", "2"), ("0", "9")])
def test_bisect_needs_two_ends(shop: Checkout, ends: tuple[str, str]) -> None:
    assert shop.run("bisect", f"--good={ends[0]}", f"--bad={ends[1]}", "--", "true").code == 2


def test_a_damaged_record_of_results_costs_a_build(shop: Checkout) -> None:
    shop.ok("verify")
    (record,) = (shop.cache / "verify").glob("records.json")
    assert json.loads(record.read_text("utf-8"))
    record.write_text("{", encoding="utf-8")
    outcome = shop.run("verify")
    assert outcome.code == 0, outcome.text
    assert _passed(outcome.data) == [(3, False)]
