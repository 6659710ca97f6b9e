"""Changing an existing tree: only what differs, nothing of the user's, and safe to interrupt."""

from __future__ import annotations

import fcntl
import shutil
import threading
from pathlib import Path

import pytest
from lucebox_patches import workspace
from lucebox_patches.tree import STAMP_NAME
from patch_fakes import UPSTREAM, Checkout, KilledError, change, diff

FIRST = change("src/a.cpp", "a 10\n", "a ten\n")
SECOND = change("src/b.cpp", "b 10\n", "b ten\n")
THIRD = change("src/deep/c.h", "c 10\n", "c ten\n")
WITH_FIRST = UPSTREAM | {"src/a.cpp": UPSTREAM["src/a.cpp"].replace(b"a 10\n", b"a ten\n")}
WITH_BOTH = WITH_FIRST | {"src/b.cpp": UPSTREAM["src/b.cpp"].replace(b"b 10\n", b"b ten\n")}


def _apply_killed_at_file(checkout: Checkout, number: int) -> None:
    """Apply, but end when the file with this 1-based number is about to be put in place."""
    real = Path.replace
    calls = 0

    def replace(path: Path, target: Path) -> Path:
        nonlocal calls
        calls += path.name == ".lucebox-placing"
        if calls == number:
            raise KilledError
        return real(path, target)

    with pytest.MonkeyPatch.context() as patcher:
        patcher.setattr(Path, "replace", replace)
        with pytest.raises(KilledError):
            checkout.run("apply")


def test_applying_again_changes_nothing(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST})
    checkout.run("apply")
    checkout.age_files()
    outcome = checkout.run("apply")
    assert outcome.code == 0
    assert outcome.data["changed"] is False
    assert "up to date" in outcome.text
    assert checkout.young_files() == set()
    assert (checkout.tree / STAMP_NAME).stat().st_mtime == 1000


def test_only_files_of_changed_patches_are_rewritten(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST, "second.patch": SECOND})
    checkout.run("apply")
    checkout.age_files()
    checkout.set_series({"first.patch": FIRST, "second.patch": SECOND, "third.patch": THIRD})
    outcome = checkout.run("apply")
    assert outcome.data["written"] == ["src/deep/c.h"]
    assert checkout.young_files() == {"src/deep/c.h"}


def test_a_dropped_patch_restores_its_file_as_new(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST, "second.patch": SECOND})
    checkout.run("apply")
    checkout.age_files()
    checkout.set_series({"first.patch": FIRST})
    checkout.run("apply")
    assert checkout.content() == WITH_FIRST
    # Newer than what was built from the patched file, or a build would keep using that.
    assert checkout.young_files() == {"src/b.cpp"}


def test_a_patch_whose_words_change_updates_the_stamp_alone(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST})
    before = checkout.run("apply").data["series_hash"]
    checkout.age_files()
    checkout.set_series({"first.patch": FIRST.replace(b"Why it is done.", b"Why it is really done.")})
    outcome = checkout.run("apply")
    assert outcome.data["changed"] is True
    assert outcome.data["series_hash"] != before
    assert outcome.data["written"] == []
    assert checkout.young_files() == set()
    assert checkout.run("status").code == 0


@pytest.mark.parametrize("killed_at", [1, 2])
def test_an_interrupted_apply_is_seen_and_repaired(checkout: Checkout, killed_at: int) -> None:
    checkout.run("apply")
    checkout.set_series({"first.patch": FIRST, "second.patch": SECOND})
    _apply_killed_at_file(checkout, killed_at)
    status = checkout.run("status")
    assert status.code == 1
    assert status.data["state"] == "stale"
    assert "interrupted" in status.data["reason"]
    assert checkout.run("apply").code == 0
    assert checkout.content() == WITH_BOTH
    assert checkout.run("status").code == 0


def test_a_tree_that_cannot_be_written_is_reported(checkout: Checkout) -> None:
    """The error is made, because for the superuser nothing is read-only."""

    def refuse(path: Path, content: bytes) -> int:
        raise PermissionError(13, f"Permission denied: {path}, {len(content)} bytes")

    checkout.set_series({"first.patch": FIRST})
    with pytest.MonkeyPatch.context() as patcher:
        patcher.setattr(Path, "write_bytes", refuse)
        outcome = checkout.run("apply")
    assert outcome.code == 7
    assert outcome.data["error"]["type"] == "OSError"
    assert "Permission denied" in outcome.text
    assert checkout.content() == UPSTREAM
    assert checkout.run("apply").code == 0
    assert checkout.content() == WITH_FIRST


def test_interrupted_runs_towards_different_series_are_repaired(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST, "second.patch": SECOND})
    _apply_killed_at_file(checkout, 2)
    checkout.set_series({"third.patch": THIRD, "new.patch": diff("src/new.cpp", b"", b"new\n")})
    _apply_killed_at_file(checkout, 3)
    checkout.set_series({"first.patch": FIRST})
    assert checkout.run("apply").code == 0
    assert checkout.content() == WITH_FIRST


def test_an_edit_after_an_interruption_is_not_lost(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST, "second.patch": SECOND})
    _apply_killed_at_file(checkout, 2)
    (checkout.tree / "src/b.cpp").write_bytes(b"mine\n")
    outcome = checkout.run("apply")
    assert outcome.code == 5
    assert (checkout.tree / "src/b.cpp").read_bytes() == b"mine\n"


def test_what_a_killed_run_left_in_the_cache_does_not_matter(checkout: Checkout) -> None:
    shutil.rmtree(checkout.cache / "store.git")
    shutil.rmtree(checkout.tree)
    for name in ("work", "work-tree"):
        (checkout.cache / name / "src").mkdir(parents=True)
        (checkout.cache / name / "src" / "stray.cpp").write_bytes(b"stray\n")
    checkout.set_series({"first.patch": FIRST})
    assert checkout.run("apply").code == 0
    assert checkout.content() == WITH_FIRST
    assert not (checkout.cache / "work").exists()
    assert not (checkout.cache / "work-tree").exists()


def test_edits_by_hand_stop_a_change_and_are_listed(checkout: Checkout) -> None:
    (checkout.tree / "src/b.cpp").write_bytes(b"mine\n")
    checkout.set_series({"first.patch": FIRST})
    outcome = checkout.run("apply")
    assert outcome.code == 5
    assert outcome.data["error"]["type"] == "DirtyTreeError"
    assert "src/b.cpp" in outcome.text
    assert checkout.content() == UPSTREAM | {"src/b.cpp": b"mine\n"}


def test_force_clean_discards_edits_and_additions(checkout: Checkout) -> None:
    (checkout.tree / "src/b.cpp").write_bytes(b"mine\n")
    (checkout.tree / "src/extra.cpp").write_bytes(b"mine\n")
    (checkout.tree / "src/a.cpp").unlink()
    checkout.set_series({"first.patch": FIRST})
    assert checkout.run("apply", "--force-clean").code == 0
    assert checkout.content() == WITH_FIRST


def test_files_added_by_hand_stay(checkout: Checkout) -> None:
    (checkout.tree / "src/extra.cpp").write_bytes(b"mine\n")
    checkout.set_series({"first.patch": FIRST})
    assert checkout.run("apply").code == 0
    assert checkout.content() == WITH_FIRST | {"src/extra.cpp": b"mine\n"}


def test_a_file_added_by_hand_is_not_overwritten_by_one_of_a_patch(checkout: Checkout) -> None:
    (checkout.tree / "src/new.cpp").write_bytes(b"mine\n")
    checkout.set_series({"new.patch": diff("src/new.cpp", b"", b"theirs\n")})
    assert checkout.run("apply").code == 5
    assert (checkout.tree / "src/new.cpp").read_bytes() == b"mine\n"


def test_an_edit_that_became_a_patch_is_accepted(checkout: Checkout) -> None:
    (checkout.tree / "src/a.cpp").write_bytes(WITH_FIRST["src/a.cpp"])
    checkout.age_files()
    checkout.set_series({"first.patch": FIRST})
    assert checkout.run("apply").code == 0
    assert checkout.young_files() == set()
    assert checkout.run("status").data["state"] == "applied"


def test_edits_in_an_up_to_date_tree_are_kept_and_mentioned(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST})
    checkout.run("apply")
    (checkout.tree / "src/b.cpp").write_bytes(b"mine\n")
    outcome = checkout.run("apply")
    assert outcome.code == 0
    assert outcome.data["modified"] == ["src/b.cpp"]
    assert "in no patch: src/b.cpp" in outcome.text
    assert (checkout.tree / "src/b.cpp").read_bytes() == b"mine\n"


def test_a_tree_without_stamp_is_adopted_if_it_is_the_base(checkout: Checkout) -> None:
    (checkout.tree / STAMP_NAME).unlink()
    checkout.set_series({"first.patch": FIRST})
    assert checkout.run("status").data["state"] == "stale"
    assert checkout.run("apply").code == 0
    assert checkout.content() == WITH_FIRST


@pytest.mark.parametrize("stamp", ["", "{", "[]", "{}", '{"schema": 99}'])
def test_a_tree_of_unknown_origin_is_not_overwritten(checkout: Checkout, stamp: str) -> None:
    (checkout.tree / STAMP_NAME).write_text(stamp, encoding="utf-8")
    (checkout.tree / "src/a.cpp").write_bytes(b"mine\n")
    outcome = checkout.run("apply")
    assert outcome.code == 5
    assert (checkout.tree / "src/a.cpp").read_bytes() == b"mine\n"


def test_a_source_distribution_is_accepted_as_it_is(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST})
    checkout.run("apply")
    shutil.rmtree(checkout.cache)
    shutil.rmtree(checkout.tree / "tools")
    outcome = checkout.run("apply", "--fetch")
    assert outcome.code == 0
    assert outcome.data["changed"] is False
    assert not checkout.cache.exists()
    status = checkout.run("status")
    assert status.code == 0
    assert status.data["missing"] == ["tools/crlf.txt"]
    assert status.data["source_at_hand"] is False


def test_a_second_run_waits_for_the_first(checkout: Checkout) -> None:
    checkout.set_series({"first.patch": FIRST})
    waiting = threading.Event()
    results: list[workspace.ApplyResult] = []

    def run() -> None:
        results.append(workspace.apply(workspace.Layout(checkout.root), lambda _: waiting.set()))

    with (checkout.cache / "lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=run)
        second.start()
        assert waiting.wait(60)
        # It cannot end while the lock is held, however long this waits.
        second.join(0.5)
        assert second.is_alive()
        assert checkout.content() == UPSTREAM
    second.join(60)
    assert results[0].changed
    assert checkout.content() == WITH_FIRST
