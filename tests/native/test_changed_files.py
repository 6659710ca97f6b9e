"""A model file that is removed, cut short or written over while it is loaded or used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from _models import WriteModel

import pylucebox as lb
from pylucebox import _open
from pylucebox.testing import TinySpec

PROMPT = [10, 20, 30]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(bytes(64))


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.fixture
def files(write_model: WriteModel, tmp_path: Path) -> tuple[Path, Path]:
    """A model and its MTP file, for one test."""
    written = write_model(TinySpec(mtp="sidecar"))
    assert written.sidecar is not None
    (tmp_path / "MTP").mkdir()
    model = Path(shutil.copy(written.model, tmp_path))
    sidecar = Path(shutil.copy(written.sidecar, tmp_path / "MTP"))
    for path in (model, sidecar):
        os.utime(path, (1, 1))  # so that any writing moves the time, however coarse the clock of the file system
    return model, sidecar


@pytest.mark.parametrize("change", [cut, overwrite, empty])
@pytest.mark.parametrize("which", [0, 1], ids=["model", "MTP file"])
def test_change_after_opening_fails_the_next_call_and_names_the_file(
    files: tuple[Path, Path], which: int, change: Callable[[Path], None]
) -> None:
    with lb.Engine(files[0], n_ctx=64, n_threads=1, verify_width=4) as engine:
        assert engine.spec.effective
        engine.generate(PROMPT, max_tokens=8)
        stream = engine.stream(PROMPT, max_tokens=30)
        next(stream)
        change(files[which])
        for call in (lambda: list(stream), lambda: engine.generate(PROMPT, max_tokens=8)):
            with pytest.raises(lb.LoadError, match="was changed") as caught:
                call()
            assert str(files[which]) in caught.value.seen
            assert caught.value.path == str(files[0])


@pytest.mark.parametrize("change", [cut, overwrite, empty])
def test_change_while_loading_fails_the_load(files: tuple[Path, Path], change: Callable[[Path], None]) -> None:
    calls = 0

    def once(_fraction: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            change(files[0])

    with pytest.raises(lb.LoadError, match="was changed") as caught:
        lb.Engine(files[0], n_ctx=64, n_threads=1, mtp="off", progress=once)
    assert caught.value.path == str(files[0])


def test_removal_while_loading_and_after_changes_nothing(files: tuple[Path, Path]) -> None:
    with lb.Engine(files[0], n_ctx=64, n_threads=1, verify_width=4) as engine:
        wanted = engine.generate(PROMPT, max_tokens=8).token_ids
    with lb.Engine(files[0], n_ctx=64, n_threads=1, verify_width=4, progress=lambda _: unlink(files)) as engine:
        assert engine.generate(PROMPT, max_tokens=8).token_ids == wanted


def unlink(files: tuple[Path, Path]) -> None:
    # the MTP file is opened by name once the model is loaded, so it stays until the end
    files[0].unlink(missing_ok=True)


def test_replacement_by_a_new_file_changes_nothing(files: tuple[Path, Path], tmp_path: Path) -> None:
    with lb.Engine(files[0], n_ctx=64, n_threads=1, verify_width=4) as engine:
        wanted = engine.generate(PROMPT, max_tokens=8).token_ids
        (tmp_path / "new").write_bytes(b"something else")
        (tmp_path / "new").replace(files[0])
        assert engine.generate(PROMPT, max_tokens=8).token_ids == wanted


def test_removal_between_the_search_and_the_load(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found = _open.find_sidecar

    def find_and_remove(*arguments: object) -> object:
        verdict = found(*arguments)  # type: ignore[arg-type]
        files[0].unlink()
        return verdict

    monkeypatch.setattr(_open, "find_sidecar", find_and_remove)
    with pytest.raises(lb.LoadError) as caught:
        lb.Engine(files[0], n_threads=1)
    assert caught.value.path == str(files[0])


def test_a_model_that_is_opened_again_after_the_change(files: tuple[Path, Path]) -> None:
    with lb.Engine(files[0], n_ctx=64, n_threads=1, verify_width=4) as engine:
        overwrite(files[0])
        with pytest.raises(lb.LoadError):
            engine.generate(PROMPT, max_tokens=8)
    with lb.Engine(files[0], n_ctx=64, n_threads=1, verify_width=4) as engine:
        assert engine.generate(PROMPT, max_tokens=8).token_ids
