"""The extension's source is the one the header gives, and the generator reads the header right."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

cffi = pytest.importorskip("cffi")
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gen_ffi.py"


@pytest.fixture(scope="module")
def gen_ffi() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_ffi", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def native_dir(gen_ffi: ModuleType, tmp_path: Path) -> Path:
    for name in ("lucebox.h", "ffi_cdef.h", "ffi_source.c", "_native.c"):
        shutil.copy(gen_ffi.NATIVE_DIR / name, tmp_path)
    return tmp_path


def needs_pinned_cffi(gen_ffi: ModuleType) -> None:
    if cffi.__version__ != gen_ffi.CFFI_VERSION:
        pytest.skip(f"the committed file is made with cffi {gen_ffi.CFFI_VERSION}")


def test_committed_source_matches_the_header(gen_ffi: ModuleType) -> None:
    needs_pinned_cffi(gen_ffi)
    assert gen_ffi.main(["--check"]) == 0


def test_check_fails_when_the_header_changes(
    gen_ffi: ModuleType, native_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_pinned_cffi(gen_ffi)
    header = native_dir / "lucebox.h"
    header.write_text(header.read_text().replace("int32_t n_accepted;", "int64_t n_accepted;"))
    before = (native_dir / "_native.c").read_text()
    assert gen_ffi.main(["--check", "--native-dir", str(native_dir)]) == 1
    assert "n_accepted" in capsys.readouterr().err
    assert (native_dir / "_native.c").read_text() == before


def test_another_cffi_is_refused_by_version(
    gen_ffi: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gen_ffi, "CFFI_VERSION", "0.0.1")
    assert gen_ffi.main(["--check"]) == 1
    assert "0.0.1" in capsys.readouterr().err


def test_generated_source_holds_no_path_of_this_machine(gen_ffi: ModuleType) -> None:
    text = (gen_ffi.NATIVE_DIR / "_native.c").read_text()
    assert str(gen_ffi.NATIVE_DIR) not in text
    assert sys.prefix not in text


def test_compiler_only_parts_of_the_header_are_left_out(gen_ffi: ModuleType) -> None:
    header = """
    #ifndef LUCEBOX_H
    #define LUCEBOX_H
    #include <stdint.h>
    #if defined(_WIN32)
    #  define LUCEBOX_API __declspec(dllexport)
    #else
    #  define LUCEBOX_API
    #endif
    #define LUCEBOX_MAX_WIDTH 8
    #ifdef __cplusplus
    extern "C" {
    #endif
    /* a comment
       over two lines */
    LUCEBOX_API int32_t f(int32_t x); /* and one behind */
    #ifdef __cplusplus
    }
    #endif
    #endif
    """
    text = gen_ffi.declarations(header)
    assert text.split("\n") == ["#define LUCEBOX_MAX_WIDTH 8", "    int32_t f(int32_t x);", ""]


def test_unbalanced_conditional_is_an_error(gen_ffi: ModuleType) -> None:
    with pytest.raises(ValueError, match="open"):
        gen_ffi.declarations("#ifndef A\n#ifdef B\n#endif\n")


def test_every_function_of_the_header_is_declared(gen_ffi: ModuleType) -> None:
    header = (gen_ffi.NATIVE_DIR / "lucebox.h").read_text()
    builder = cffi.FFI()
    builder.cdef(gen_ffi.declarations(header))
    declared = {key.split()[1] for key in builder._parser._declarations if key.startswith("function ")}
    assert declared == set(re.findall(r"LUCEBOX_API[^;{}]*?\b(lucebox_\w+)\(", header))
