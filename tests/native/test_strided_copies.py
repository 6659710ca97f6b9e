"""Copies of strided rows: every value arrives, and none lands beside its row or is read from beyond the tensor."""

from __future__ import annotations

import subprocess
from pathlib import Path

from _programs import compiler_for

import pylucebox

HERE = Path(__file__).parent
GGML = HERE.parents[1] / "vendor" / "llama.cpp" / "ggml"
LIBRARIES = Path(pylucebox.__file__).parent / "lib"
SANITIZER = "-fsanitize=address"


def test_copies_of_any_shape(tmp_path: Path) -> None:
    compiler = compiler_for(GGML / "src" / "ggml-cpu" / "strided-copies.cpp")
    program = tmp_path / "strided_copies"
    folders = [f"-I{GGML / folder}" for folder in ("include", "src", "src/ggml-cpu")]
    command = [compiler, "-std=c++17", "-O1", "-march=native", *folders, str(HERE / "strided_copies.cpp")]
    command += ["-o", str(program), f"-L{LIBRARIES}", "-lggml-base", f"-Wl,-rpath,{LIBRARIES}"]
    if subprocess.run([*command, SANITIZER], capture_output=True, check=False).returncode != 0:
        subprocess.run(command, check=True)  # a compiler without that library
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["0", "0"]
