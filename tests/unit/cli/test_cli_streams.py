"""Interrupts from the first moment on, and standard output that goes away or is full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

START = "import sys\nfrom pylucebox.cli.main import main\n"
RUN = START + "sys.exit(main({arguments}))\n"

# As the terminal does it, but always while a certain module is being imported.
INTERRUPT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupt())
"""


def run(code: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code],
        stdout=stdout,
        stderr=stderr,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )


@pytest.mark.parametrize(
    "module",
    [
        "pylucebox._errors",
        "pylucebox.cli._args",
        "argparse",
        "json",
        "pylucebox._engine",
        "pylucebox.cli.doctor",
        "pylucebox._native_session",
    ],
)
def test_interrupt_while_the_command_is_still_being_imported(module: str) -> None:
    done = run(INTERRUPT.format(module=module) + RUN.format(arguments=["generate", "x", "--max-tokens", "1"]))
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "lucebox: interrupted\n"


def test_little_is_imported_before_main_runs() -> None:
    done = run("import sys\nbefore = set(sys.modules)\n" + START + "print(*sorted(set(sys.modules) - before))")
    modules = done.stdout.split()
    assert [name for name in modules if name.startswith("pylucebox")] == [
        "pylucebox",
        "pylucebox._version",
        "pylucebox.cli",
        "pylucebox.cli.main",
    ]
    assert not {"argparse", "json", "dataclasses", "pathlib"} & set(modules)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["generate", "--help"],
        ["--version"],
        ["generate", "x", "-m", "nowhere.gguf", "--json"],
        ["nonsense", "--json"],
    ],
    ids=" ".join,
)
def test_reader_that_went_away(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(RUN.format(arguments=arguments), stdout=writer)
    finally:
        os.close(writer)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_reader_of_both_streams_that_went_away() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(RUN.format(arguments=["generate", "x", "-m", "nowhere.gguf"]), stdout=writer, stderr=writer)
    finally:
        os.close(writer)
    assert done.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--json"]], ids=" ".join)
def test_output_onto_a_full_disk(arguments: list[str]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = run(RUN.format(arguments=arguments), stdout=full)
    finally:
        os.close(full)
    assert done.returncode == 1
    assert done.stderr == f"lucebox: cannot write the output: [Errno 28] {os.strerror(28)}\n"
