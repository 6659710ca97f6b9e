"""A library of another build is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pylucebox import _build
from pylucebox._build import BuildInfo, find_native_dir, recorded_build, require_same_build
from pylucebox._errors import BuildMismatchError, LibraryNotFoundError

BUILD = BuildInfo(version="1.2.3", upstream_build="b11434", series_hash="abcd")


def write(path: Path, **changes: object) -> Path:
    fields = {"version": "1.2.3", "upstream_build": "b11434", "series_hash": "abcd", "compiler": "ignored", **changes}
    path.write_text(json.dumps(fields))
    return path


def test_recorded_identity_is_read(tmp_path: Path) -> None:
    write(tmp_path / "_build.json")
    assert recorded_build(tmp_path) == BUILD


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"version": "1"}', "\xff"])
def test_missing_or_broken_record_says_that_the_package_was_not_built(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "_build.json"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with pytest.raises(LibraryNotFoundError) as caught:
        recorded_build(tmp_path)
    assert caught.value.searched == (str(path),)


def test_same_build_is_accepted(tmp_path: Path) -> None:
    require_same_build(BUILD, BUILD, tmp_path / "lib.so", version="1.2.3")


@pytest.mark.parametrize("field", ["version", "upstream_build", "series_hash"])
def test_difference_in_any_part_names_both_builds_and_the_file(tmp_path: Path, field: str) -> None:
    loaded = BuildInfo(**{**{name: getattr(BUILD, name) for name in BuildInfo.__slots__}, field: "other"})
    library = tmp_path / "lib.so"
    with pytest.raises(BuildMismatchError) as caught:
        require_same_build(BUILD, loaded, library, version="1.2.3")
    assert caught.value.path == str(library)
    assert (caught.value.expected, caught.value.found) == (str(BUILD), str(loaded))


def test_python_files_of_another_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildMismatchError) as caught:
        require_same_build(BUILD, BUILD, tmp_path / "lib.so", version="1.3.0")
    assert (caught.value.expected, caught.value.found) == ("1.3.0", "1.2.3")


def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    source, installed = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    installed.mkdir()
    monkeypatch.setattr(_build, "_installed_dir", lambda: installed)
    return source, installed


def test_native_parts_of_the_package_itself_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, installed = folders(tmp_path, monkeypatch)
    write(source / "_build.json")
    write(installed / "_build.json")
    assert find_native_dir(source) == source


def test_source_folder_without_native_parts_uses_the_installed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, installed = folders(tmp_path, monkeypatch)
    write(installed / "_build.json")
    assert find_native_dir(source) == installed


def test_missing_native_parts_list_every_folder_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, installed = folders(tmp_path, monkeypatch)
    with pytest.raises(LibraryNotFoundError) as caught:
        find_native_dir(source)
    assert caught.value.searched == (str(source), str(installed))
    monkeypatch.setattr(_build, "_installed_dir", lambda: None)
    with pytest.raises(LibraryNotFoundError) as caught:
        find_native_dir(source)
    assert caught.value.searched == (str(source),)
