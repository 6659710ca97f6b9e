"""Loading the native parts, and what crosses the border."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pylucebox as lb
from pylucebox import _ffi
from pylucebox._build import PACKAGE_DIR, find_native_dir, recorded_build
from pylucebox._quantize import quantize_rows

NATIVE_PARTS = ("_native.abi3.so", "_build.json")


def test_loaded_library_is_the_one_that_was_recorded() -> None:
    info = lb.system_info()
    recorded = recorded_build()
    assert (info.version, info.upstream_build, info.series_hash) == (
        recorded.version,
        recorded.upstream_build,
        recorded.series_hash,
    )
    assert info.version == lb.__version__
    assert [device.kind for device in info.devices if device.backend == "CPU"] == ["cpu"]


def test_every_function_of_the_header_can_be_called() -> None:
    header = Path(__file__).resolve().parents[2] / "pylucebox" / "native" / "lucebox.h"
    names = set(re.findall(r"LUCEBOX_API[^;{}]*?\b(lucebox_\w+)\(", header.read_text(encoding="utf-8")))
    lib = _ffi.native().lib
    assert len(names) > 35
    assert all(callable(getattr(lib, name)) for name in names)


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, Path]:
    """A source folder without native parts, and a site folder with an installed package."""
    source, site = tmp_path / "source", tmp_path / "site"
    ignore = shutil.ignore_patterns("lib", "_native*.so", "_build.json", "__pycache__", "native")
    shutil.copytree(PACKAGE_DIR, source / "pylucebox", ignore=ignore)
    native = find_native_dir()
    (site / "pylucebox").mkdir(parents=True)
    for name in NATIVE_PARTS:
        shutil.copy(native / name, site / "pylucebox" / name)
    (site / "pylucebox" / "lib").symlink_to(native / "lib")
    dist_info = site / f"pylucebox-{lb.__version__}.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pylucebox\nVersion: {lb.__version__}\n")
    return source, site


def run_in(source: Path, site: Path, code: str) -> subprocess.CompletedProcess[str]:
    prelude = f"import sys; sys.path[:0] = [{str(source)!r}, {str(site)!r}]\n"
    return subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, check=False)


def test_source_folder_uses_the_installed_native_parts(checkout: tuple[Path, Path]) -> None:
    source, site = checkout
    code = "import pylucebox as lb; print(lb.__file__); print(lb.system_info().version)"
    done = run_in(source, site, code)
    assert done.stderr == ""
    assert done.stdout.split() == [str(source / "pylucebox" / "__init__.py"), lb.__version__]


def test_library_of_another_build_is_refused(checkout: tuple[Path, Path]) -> None:
    source, site = checkout
    record = site / "pylucebox" / "_build.json"
    fields = json.loads(record.read_text())
    record.write_text(json.dumps({**fields, "series_hash": "0000"}))
    code = (
        "import pylucebox as lb\n"
        "try:\n    lb.system_info()\n"
        "except lb.BuildMismatchError as error:\n    print(error.path); print('0000' in error.expected)"
    )
    done = run_in(source, site, code)
    assert done.stderr == ""
    assert done.stdout.split() == [str(site / "pylucebox" / "_native.abi3.so"), "True"]


def test_missing_extension_says_where_it_was_looked_for(checkout: tuple[Path, Path]) -> None:
    source, site = checkout
    (site / "pylucebox" / "_native.abi3.so").unlink()
    code = (
        "import pylucebox as lb\n"
        "try:\n    lb.system_info()\n"
        "except ImportError as error:\n    print(type(error).__name__, *error.searched)"
    )
    done = run_in(source, site, code)
    assert done.stderr == ""
    name, *searched = done.stdout.split()
    assert name == "LibraryNotFoundError"
    assert str(site / "pylucebox" / "_native.abi3.so") in searched


def test_process_that_closes_nothing_ends_cleanly() -> None:
    code = "import pylucebox as lb; e = lb.Engine.demo(n_threads=1); s = e.stream('a'); next(s); next(s)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_native_log_reaches_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="pylucebox.native"), lb.Engine.demo(n_threads=1, mtp="off"):
        pass
    assert any(record.name == "pylucebox.native" for record in caplog.records)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "iq4_nl", "iq2_xxs"])
def test_rows_are_stored_in_every_kind_of_type(kind: str) -> None:
    rows = np.random.default_rng(0).normal(size=(3, 512)).astype(np.float32)
    data = quantize_rows(kind, rows)
    assert len(data) % 3 == 0
    assert 0 < len(data) <= rows.nbytes
    assert quantize_rows(kind, rows) == data
    if kind == "f32":
        assert data == rows.tobytes()


@pytest.mark.parametrize(
    ("kind", "shape"), [("q99", (1, 256)), ("q8_0", (1, 33)), ("q4_K", (1, 128)), ("i32", (1, 32))]
)
def test_rows_that_a_type_cannot_hold_are_refused(kind: str, shape: tuple[int, int]) -> None:
    with pytest.raises(lb.InvalidArgumentError):
        quantize_rows(kind, np.zeros(shape, dtype=np.float32))


def test_text_survives_the_tokenizer() -> None:
    with lb.Engine.demo(n_threads=1, mtp="off") as engine:
        for text in ("", "plain", "naïve 漢字 🙂", "a\0b", "\n\t  ", "x" * 5000):
            assert engine.detokenize(engine.tokenize(text)) == text
