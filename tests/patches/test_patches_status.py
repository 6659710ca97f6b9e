"""The state of the tree, the pin file, the series file, and the command line."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lucebox_patches.errors import PinError, SeriesError
from lucebox_patches.pin import read_pin
from lucebox_patches.series import read_series
from patch_fakes import Checkout, change

FIRST = change("src/a.cpp", "a 10\n", "a ten\n")
SECOND = change("src/b.cpp", "b 10\n", "b ten\n")
REPOSITORY = Path(__file__).resolve().parents[2]


def test_status_follows_the_life_of_a_tree(empty_checkout: Checkout) -> None:
    checkout = empty_checkout

    def state() -> tuple[int, str]:
        outcome = checkout.run("status")
        return outcome.code, outcome.data["state"]

    checkout.set_series({"first.patch": FIRST})
    assert state() == (1, "absent")
    checkout.run("fetch", "--archive", str(checkout.archive))
    assert state() == (1, "base")
    checkout.run("apply")
    assert state() == (0, "applied")
    (checkout.tree / "src/extra.cpp").write_bytes(b"mine\n")
    assert state() == (1, "dirty")
    (checkout.tree / "src/extra.cpp").unlink()
    (checkout.patches / "first.patch").write_bytes(FIRST.replace(b"a ten\n", b"a x\n"))
    assert state() == (1, "stale")


def test_status_says_which_patches_are_in_the_tree(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST, "second.patch": SECOND})
    checkout.run("apply")
    (checkout.patches / "second.patch").write_bytes(SECOND.replace(b"b ten\n", b"b x\n"))
    outcome = checkout.run("status")
    assert outcome.data["num_patches"] == 2
    assert outcome.data["upstream"]["build"] == "b1"
    assert outcome.data["source_at_hand"] is True
    assert [(patch["in_tree"], patch["files"]) for patch in outcome.data["patches"]] == [
        (True, ["src/a.cpp"]),
        (False, None),
    ]
    assert outcome.data["tree_series_hash"] != outcome.data["series_hash"]
    assert "not in tree  second.patch" in outcome.text


def test_status_changes_nothing(empty_checkout: Checkout) -> None:
    before = sorted(empty_checkout.root.rglob("*"))
    empty_checkout.run("status")
    assert sorted(empty_checkout.root.rglob("*")) == before


def test_byte_code_of_scripts_in_the_tree_is_no_change(checkout: Checkout) -> None:
    (checkout.tree / "src" / "__pycache__").mkdir()
    (checkout.tree / "src" / "__pycache__" / "x.pyc").write_bytes(b"\0")
    assert checkout.run("status").data["state"] == "applied"


def test_the_series_hash_depends_on_names_order_and_content(checkout: Checkout) -> None:
    def series_hash(patches: dict[str, bytes]) -> str:
        checkout.set_series(patches)
        return read_series(checkout.patches).hash

    variants = [
        {},
        {"a.patch": b"xy"},
        {"b.patch": b"xy"},
        {"a.patch": b"x", "b.patch": b"y"},
        {"b.patch": b"y", "a.patch": b"x"},
        {"a.patch": b"y", "b.patch": b"x"},
        # One patch whose content reads like the record of a second one.
        {"a.patch": b"xb.patch\0\0y"},
    ]
    assert len({series_hash(variant) for variant in variants}) == len(variants)
    assert series_hash({}) == hashlib.sha256().hexdigest()
    assert read_series(checkout.patches).short_hash == series_hash({})[:12]


def test_comments_and_blank_lines_are_no_part_of_the_series(checkout: Checkout) -> None:
    checkout.set_series({"a.patch": b"x", "b.patch": b"y"})
    plain = read_series(checkout.patches)
    (checkout.patches / "series").write_bytes(b"\r\n# words\na.patch  # needs: nothing\r\n\n  b.patch\n")
    assert read_series(checkout.patches) == plain


def test_all_problems_of_a_series_are_reported_at_once(checkout: Checkout) -> None:
    checkout.set_series({"a.patch": b"x", "stray.patch": b"y"})
    names = ["a.patch", "a.patch", "none.patch", "../up.patch", "note.txt"]
    (checkout.patches / "series").write_text("\n".join(names), encoding="utf-8")
    with pytest.raises(SeriesError) as caught:
        read_series(checkout.patches)
    assert [line for line, _ in caught.value.problems] == [2, 3, 4, 5, 0]
    for word in ("line 1", "none.patch does not exist", "'../up.patch'", "'note.txt'", "stray.patch exists"):
        assert word in str(caught.value)
    assert checkout.run("apply").code == 2


def test_a_missing_series_file_is_an_error_and_not_an_empty_series(checkout: Checkout) -> None:
    (checkout.patches / "series").unlink()
    assert checkout.run("apply").code == 2


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('build = "b1"\n', "", "missing: build"),
        ('build = "b1"', 'build = "1"', "not a valid build"),
        ('build = "b1"', "build = b1", "line"),
        ('build = "b1"', 'build = "b1"\nbuild = "b2"', "repeated"),
        ('build = "b1"', 'build = "b1"\nurl = "x"', "unknown"),
        ('subdir = "llama.cpp"', 'subdir = "../x"', "subdir"),
        ('sha256 = "', 'sha256 = "0', "not a valid sha256"),
    ],
)
def test_a_pin_that_is_not_understood_is_refused(checkout: Checkout, old: str, new: str, word: str) -> None:
    text = checkout.pin_file.read_text(encoding="utf-8")
    assert old in text
    checkout.pin_file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(PinError, match=word):
        read_pin(checkout.pin_file)
    assert checkout.run("status").code == 3


def test_the_pin_of_this_repository_is_valid_and_means_the_same_as_toml() -> None:
    pin = read_pin(REPOSITORY / "vendor" / "upstream.toml")
    tomllib = pytest.importorskip("tomllib")
    with (REPOSITORY / "vendor" / "upstream.toml").open("rb") as file:
        assert tomllib.load(file) == {key: value for key, value in vars(pin).items() if value}


def test_a_wrong_command_line_is_a_usage_error(checkout: Checkout) -> None:
    with pytest.raises(SystemExit) as caught:
        checkout.run("frobnicate")
    assert caught.value.code == 2


def test_an_error_of_the_operating_system_is_reported_as_such(checkout: Checkout) -> None:
    outcome = checkout.run("fetch", "--archive", str(checkout.root / "none.tar.gz"))
    assert outcome.code == 7
    assert "none.tar.gz" in outcome.text


def test_the_script_works_on_the_checkout_it_lies_in(checkout: Checkout, tmp_path: Path) -> None:
    shutil.copytree(
        REPOSITORY / "scripts" / "lucebox_patches",
        checkout.root / "scripts" / "lucebox_patches",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(REPOSITORY / "scripts" / "lucebox-patches", checkout.root / "scripts")
    script = checkout.root / "scripts" / "lucebox-patches"
    # Isolated mode: the script's own directory is then not on the module path by itself.
    command = [sys.executable, "-I", str(script), "status", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["state"] == "applied"
    assert not list(checkout.root.rglob("__pycache__"))
