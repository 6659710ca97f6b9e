"""Plans of graphs that come again are kept, and only of those."""

from __future__ import annotations

import subprocess
from pathlib import Path

from _programs import compiler_for

import pylucebox

HERE = Path(__file__).parent
GGML = HERE.parents[1] / "vendor" / "llama.cpp" / "ggml"
LIBRARIES = Path(pylucebox.__file__).parent / "lib"


def test_a_graph_is_planned_once(tmp_path: Path) -> None:
    compiler = compiler_for(GGML / "src" / "ggml-cpu" / "kept-plans.h")
    program = tmp_path / "kept_plans"
    folders = [f"-I{GGML / folder}" for folder in ("include", "src", "src/ggml-cpu")]
    command = [compiler, "-std=c++17", "-Wall", "-Wextra", *folders, str(HERE / "kept_plans.cpp"), "-o", str(program)]
    subprocess.run([*command, f"-L{LIBRARIES}", "-lggml-base", f"-Wl,-rpath,{LIBRARIES}"], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    answers = dict(line.rsplit(" ", 1) for line in printed.splitlines())
    assert len(answers) == 7
    assert set(answers.values()) == {"1"}, answers
