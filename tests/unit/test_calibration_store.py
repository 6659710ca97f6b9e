"""Measured costs in a cache folder: found again, ignored with a reason when they do not fit, never an error."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylucebox.calibration import CostKey, CostStore
from pylucebox.calibration.store import cache_dir, default_store, file_identity
from pylucebox.width import WidthCosts

COSTS = WidthCosts(tuple(range(1, 9)), tuple(range(1, 8)), 0.5, 2.0, 128, "sweep")
KEY = CostKey(
    model=("/models/m.gguf@10-20",), settings=(("n_threads", "4"),), build="1.0 b1 abc", device=("CPU CPU: made up",)
)


@pytest.fixture
def store(tmp_path: Path) -> CostStore:
    return CostStore(tmp_path / "not" / "there" / "yet")


def only_file(tmp_path: Path) -> Path:
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    return path


def test_what_was_saved_is_loaded(store: CostStore, tmp_path: Path) -> None:
    assert store.load(KEY) is None
    assert store.save(KEY, COSTS) == only_file(tmp_path)
    assert store.load(KEY) == COSTS


def test_saving_again_replaces_and_leaves_nothing_behind(store: CostStore, tmp_path: Path) -> None:
    store.save(KEY, COSTS)
    newer = replace(COSTS, reject_us=9.0)
    store.save(KEY, newer)
    only_file(tmp_path)
    assert store.load(KEY) == newer


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"build": "1.1 b1 abc"}, "another build"),
        ({"device": ("CUDA CUDA0: made up",)}, "other devices"),
        ({"model": ("/models/m.gguf@10-21",)}, "another state of the model's files"),
    ],
)
def test_stale_costs_are_ignored_with_the_reason_and_replaced(
    store: CostStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any], reason: str
) -> None:
    store.save(KEY, COSTS)
    other = replace(KEY, **change)
    with caplog.at_level(logging.INFO, "pylucebox"):
        assert store.load(other) is None
    assert reason in caplog.text
    store.save(other, COSTS)
    only_file(tmp_path)
    assert store.load(other) == COSTS
    assert store.load(KEY) is None


@pytest.mark.parametrize("change", [{"settings": (("n_threads", "2"),)}, {"model": ("/models/n.gguf@10-20",)}])
def test_other_models_and_settings_have_files_of_their_own(store: CostStore, change: dict[str, Any]) -> None:
    other = replace(KEY, **change)
    store.save(KEY, COSTS)
    store.save(other, replace(COSTS, n_past=7))
    assert store.load(KEY) == COSTS
    assert store.load(other) == replace(COSTS, n_past=7)


def damage(document: dict[str, Any], how: str) -> str:
    if how == "cut":
        return json.dumps(document)[:-20]
    if how == "list":
        return "[]"
    if how == "format":
        return json.dumps({**document, "format": 99})
    if how == "no key":
        return json.dumps({**document, "key": None})
    if how == "no costs":
        return json.dumps({name: value for name, value in document.items() if name != "costs"})
    costs = {"short": {"verify_us": [1.0]}, "negative": {"reject_us": -1}, "text": {"draft_us": "abcdefg"}}[how]
    return json.dumps({**document, "costs": {**document["costs"], **costs}})


@pytest.mark.parametrize("how", ["cut", "list", "format", "no key", "no costs", "short", "negative", "text"])
def test_broken_files_are_ignored_with_a_reason(
    store: CostStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    store.save(KEY, COSTS)
    path = only_file(tmp_path)
    path.write_text(damage(json.loads(path.read_text(encoding="utf-8")), how), encoding="utf-8")
    with caplog.at_level(logging.INFO, "pylucebox"):
        assert store.load(KEY) is None
    assert str(path) in caplog.text


def test_bytes_that_are_no_text_are_ignored(store: CostStore, tmp_path: Path) -> None:
    store.save(KEY, COSTS)
    only_file(tmp_path).write_bytes(b"\xff\xfe\x00")
    assert store.load(KEY) is None


def test_folder_that_cannot_be_used_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    store = CostStore(tmp_path / "file")
    with caplog.at_level(logging.INFO, "pylucebox"):
        assert store.save(KEY, COSTS) is None
        assert store.load(KEY) is None
    assert "cannot be stored" in caplog.text


def test_without_a_folder_nothing_is_kept() -> None:
    store = CostStore(None)
    assert store.save(KEY, COSTS) is None
    assert store.load(KEY) is None


def test_failed_replacement_leaves_the_old_file_and_nothing_else(
    store: CostStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(KEY, COSTS)

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", refuse)
    assert store.save(KEY, replace(COSTS, reject_us=1.0)) is None
    only_file(tmp_path)
    assert store.load(KEY) == COSTS


def test_identity_of_a_file_changes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"abc")
    first = file_identity(path)
    assert file_identity(path) == first
    os.utime(path, ns=(1, 1))
    second = file_identity(path)
    path.write_bytes(b"abcd")
    os.utime(path, ns=(1, 1))
    assert len({first, second, file_identity(path)}) == 3


def test_cache_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    chosen = str(tmp_path / "chosen")
    assert cache_dir({"XDG_CACHE_HOME": chosen}, "linux") == tmp_path / "chosen" / "pylucebox"
    assert cache_dir({"XDG_CACHE_HOME": "relative"}, "linux") == tmp_path / ".cache" / "pylucebox"
    assert cache_dir({}, "linux") == tmp_path / ".cache" / "pylucebox"
    assert cache_dir({}, "darwin") == tmp_path / "Library" / "Caches" / "pylucebox"
    assert cache_dir({"LOCALAPPDATA": chosen}, "win32") == tmp_path / "chosen" / "pylucebox" / "Cache"
    assert cache_dir({}, "win32") is None


def test_default_store_lies_in_the_cache_folder(tmp_path: Path) -> None:
    default_store({"XDG_CACHE_HOME": str(tmp_path)}).save(KEY, COSTS)
    assert only_file(tmp_path).parent == tmp_path / "pylucebox" / "widths"
