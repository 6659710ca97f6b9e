"""The gate for HIP: what it finds in sources of a few lines, and how it reads tables and disassemblies."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
if str(_ROOT / "scripts") not in sys.path:
    sys.path.insert(0, str(_ROOT / "scripts"))

from hip_gate import float_work, resources, toolchain  # noqa: E402  (needs the path above)
from hip_gate.cli import main  # noqa: E402
from hip_gate.errors import GateError  # noqa: E402
from hip_gate.resources import Needs  # noqa: E402
from hip_gate.sources import changed_sources  # noqa: E402

SOUND = """
#include <hip/hip_runtime.h>

#if defined(GGML_USE_HIP)
__global__ void doubled(float * values) { values[threadIdx.x] *= 2.0f; }
#endif
"""
SPILL_LOCALS = 400
SPILL = f"""
#include <hip/hip_runtime.h>

__global__ void __launch_bounds__(1024) doubled(float * values) {{
    float kept[{SPILL_LOCALS}];
    #pragma unroll
    for (int i = 0; i < {SPILL_LOCALS}; ++i) {{ kept[i] = values[i*1024 + threadIdx.x]; }}
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < {SPILL_LOCALS}; ++i) {{ values[i*1024 + threadIdx.x] = kept[{SPILL_LOCALS} - 1 - i]; }}
}}
"""
SYNTAX = SOUND.replace("*= 2.0f", "*= 2.0f +")


def _tree(tmp_path: Path, text: str) -> Path:
    sources = tmp_path / "tree/ggml/src/ggml-cuda"
    sources.mkdir(parents=True, exist_ok=True)
    (sources / "doubled.cu").write_text(text)
    return tmp_path / "tree"


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory with the pretended ROCm installation, the checkout's own if it has been made."""
    directory = _ROOT / "build/hip-gate"
    if not (directory / "rocm").is_dir():
        directory = tmp_path_factory.mktemp("hip-gate")
    try:
        toolchain.prepare(directory)
    except GateError as error:
        pytest.skip(f"no compiler or no headers for HIP here: {error.seen}")
    return directory


def _gate(tmp_path: Path, cache: Path, text: str, *arguments: str) -> int:
    tree = _tree(tmp_path, text)
    return main(
        ["doubled.cu", "--tree", str(tree), "--cache", str(cache), "--expected", str(tmp_path / "EXPECTED"), *arguments]
    )


def test_a_sound_source_passes(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _gate(tmp_path, cache, SOUND, "--record") == 0
    assert _gate(tmp_path, cache, SOUND) == 0
    assert "ok   doubled.cu" in capsys.readouterr().out


def test_a_spill_is_caught(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _gate(tmp_path, cache, SOUND, "--record") == 0
    assert _gate(tmp_path, cache, SPILL) == 1
    assert "doubled: spilled_registers" in capsys.readouterr().out


def test_a_syntax_error_in_a_branch_for_hip_is_caught(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _gate(tmp_path, cache, SYNTAX) == 1
    output = capsys.readouterr().out
    assert "does not compile for the device" in output
    assert "expected expression" in output


def test_a_kernel_that_is_not_recorded_is_named(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _gate(tmp_path, cache, SOUND) == 1
    assert "doubled: not recorded (kernels 1" in capsys.readouterr().out


def test_an_unknown_source_is_a_wrong_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = _tree(tmp_path, SOUND)
    assert main(["tripled.cu", "--tree", str(tree)]) == 2
    assert "tripled.cu" in capsys.readouterr().err


def test_missing_programs_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tree = _tree(tmp_path, SOUND)
    assert main(["doubled.cu", "--tree", str(tree), "--cache", str(tmp_path / "cache")]) == 7
    assert "apt-get install clang-19 lld-19 llvm-19" in capsys.readouterr().err


def test_the_table_survives_writing_and_reading(tmp_path: Path) -> None:
    table = {("a.cu", "f"): Needs(2, 100, 50, 0, 4096, 0), ("b.cu", "g"): Needs(1, 8, 8, 3, 0, 16)}
    resources.write_table(tmp_path / "EXPECTED", table)
    assert resources.read_table(tmp_path / "EXPECTED") == table


def test_more_is_reported_and_less_is_not() -> None:
    recorded = {("a.cu", "f"): Needs(2, 100, 50, 0, 4096, 0), ("a.cu", "gone"): Needs(1, 1, 1, 0, 0, 0)}
    assert list(resources.compare(recorded, "a.cu", {"f": Needs(2, 96, 50, 0, 4096, 0)})) == [
        "gone: recorded, but not compiled"
    ]
    worse = list(resources.compare(recorded, "a.cu", {"f": Needs(2, 101, 50, 0, 8192, 0)}))
    assert "f: vgprs 101, recorded 100" in worse
    assert "f: lds_bytes 8192, recorded 4096" in worse


def test_the_recorded_table_spills_nothing_in_our_own_kernels() -> None:
    table = resources.read_table(_ROOT / "scripts/hip_gate/EXPECTED")
    ours = {key: needs for key, needs in table.items() if key[0].startswith("lucebox-")}
    assert ours
    assert not {key: needs for key, needs in ours.items() if needs.spilled_registers}


def test_float_work_is_counted_by_column() -> None:
    name = "_ZL13mul_mat_vec_qIL9ggml_type12ELi{}ELb0ELb0ELb0EEvPKv"
    lines = [f"<{name.format(1)}>:", "  v_fma_f32 v0, v1, v2, v3", "  v_dual_add_f32 v0, v1 :: v_dual_mul_f32 v2, v3"]
    two = [f"<{name.format(2)}>:", *lines[1:], *lines[1:]]
    assert float_work.count(lines)[name.format(1)] == Counter(fma=1, add=1, mul=1)
    assert list(float_work.compare(float_work.count([*lines, *two]))) == []
    problems = list(float_work.compare(float_work.count([*lines, *two, "  v_add_f32 v0, v1, v2"])))
    assert problems == ["mul_mat_vec_q<12>: add 3, mul 2, fma 2 for 2 columns, add 1, mul 1, fma 1 for one"]


def test_a_header_reaches_the_sources_that_include_it(tmp_path: Path) -> None:
    tree = _tree(tmp_path, '#include "a.cuh"\n')
    sources = tree / "ggml/src/ggml-cuda"
    (sources / "a.cuh").write_text('#include "b.cuh"\n')
    (sources / "b.cuh").write_text("\n")
    (sources / "other.cu").write_text("\n")
    patch = tmp_path / "one.patch"
    patch.write_text("--- a/ggml/src/ggml-cuda/b.cuh\n+++ b/ggml/src/ggml-cuda/b.cuh\n")
    assert [path.name for path in changed_sources(tree, [patch])] == ["doubled.cu"]


def test_it_runs_as_a_program() -> None:
    program = _ROOT / "scripts/hip-gate"
    result = subprocess.run([sys.executable, str(program), "--help"], capture_output=True, text=True, check=True)
    assert "gfx1151" in result.stdout
    assert shutil.which(str(program))
