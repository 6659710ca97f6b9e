"""Small C++ programs that tests compile."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compiler_for(*needed: Path) -> str:
    """Return the C++ compiler; the test is skipped where there is none, or not what it compiles."""
    compiler = shutil.which("c++")
    missing = [path for path in needed if not path.exists()]
    if compiler is None or missing:
        pytest.skip(f"there is no {missing[0].name}" if missing else "there is no C++ compiler")
    return compiler


def run_program(compiler: str, folder: Path, text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Compile a program in `folder`, and run it."""
    source, program = folder / "program.cpp", folder / "program"
    source.write_text(text, encoding="utf-8")
    subprocess.run([compiler, "-std=c++17", *flags, str(source), "-o", str(program)], check=True)
    return subprocess.run([str(program)], capture_output=True, text=True, check=False)
