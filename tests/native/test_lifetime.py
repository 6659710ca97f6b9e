"""Opening and closing again and again, several engines at once, and processes that fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from _models import OpenEngine, WriteModel

import pylucebox as lb
from pylucebox.testing import TinySpec

PROMPT = "def add(a, b):"

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def n_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def open_and_use(path: Path) -> None:
    """Do what leaves something behind if anything does: drafts, grammars, chats, streams that are dropped, errors."""
    with lb.Engine(path, n_ctx=64, n_threads=1, n_ubatch=32) as engine:
        assert engine.spec.effective
        engine.generate([10, 20, 30], max_tokens=8, verify_width=4)
        engine.generate("x", max_tokens=2, sampling=lb.SamplingParams(grammar='root ::= "a"+'))
        engine.chat([{"role": "user", "content": "x"}], max_tokens=2)
        next(engine.stream("x", max_tokens=8))
        for bad in ("", [10**6]):
            with pytest.raises(lb.InvalidArgumentError):
                engine.generate(bad)
    with pytest.raises(lb.LoadError):
        lb.Engine(path.parent)
    with pytest.raises(lb.CancelledError):
        lb.Engine(path, progress=lambda _: False)


@ON_LINUX
@pytest.mark.skipif("LUCEBOX_SANITIZED" in os.environ, reason="the sanitizers keep what was freed for a while")
@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.soak)])
def test_opening_and_closing_leaves_nothing_behind(write_model: WriteModel, rounds: int) -> None:
    path = write_model(TinySpec()).model
    for _ in range(10):  # what is made once, and the allocators' pools
        open_and_use(path)
    memory_bytes, descriptors = resident_bytes(), n_descriptors()
    for _ in range(rounds):
        open_and_use(path)
    assert n_descriptors() == descriptors
    # A model takes 5 MB, its caches as much: one of them kept in every tenth round would be more than this allows.
    assert resident_bytes() - memory_bytes < (8 << 20) + rounds * (16 << 10)


def test_two_engines_in_two_threads(open_model: OpenEngine) -> None:
    names = ("built-in", "mixed, sidecar")
    prompts = (PROMPT, [10, 20, 30])
    wanted = {}
    for name, prompt in zip(names, prompts, strict=True):
        with open_model(name, n_ctx=128, verify_width=4) as engine:
            wanted[name] = engine.generate(prompt, max_tokens=24).token_ids
    together = threading.Barrier(2)
    errors: list[BaseException] = []

    def work(name: str, prompt: str | list[int]) -> None:
        try:
            together.wait(60)
            for _ in range(4):  # opened and closed while the other one computes
                with open_model(name, n_ctx=128, verify_width=4) as engine:
                    for _ in range(2):
                        assert engine.generate(prompt, max_tokens=24).token_ids == wanted[name]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(names, prompts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)


def run(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


AFTER_IMPORT = """
import os, sys
import pylucebox as lb

def use():
    with lb.Engine.demo(n_ctx=128) as engine:
        return engine.generate("def add(a, b):", max_tokens=8).token_ids

lb.SamplingParams()  # all Python code is loaded, nothing native
child = os.fork()
ids = use()
if child == 0:
    sys.exit(0 if len(ids) == 8 else "child")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or (0 if len(ids) == 8 else "parent"))
"""

AFTER_OPENING = """
import concurrent.futures, multiprocessing
import pylucebox as lb

def work(prompt):
    return lb.Engine.demo(n_ctx=128).generate(prompt, max_tokens=4).token_ids

def use_inherited(prompt):
    return engine.generate(prompt, max_tokens=4).token_ids

if __name__ == "__main__":
    engine = lb.Engine.demo(n_ctx=128)
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        for task in (work, use_inherited):
            try:
                pool.submit(task, "x").result(60)
            except lb.ClosedError as error:
                assert "spawn" in str(error), error
            else:
                raise AssertionError("not refused")
    assert len(engine.generate("x", max_tokens=4).token_ids) == 4
    engine.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")
def test_fork_after_import_leaves_both_processes_free_to_open_an_engine() -> None:
    run(AFTER_IMPORT)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")
def test_worker_forked_after_opening_is_refused_and_does_not_hang() -> None:
    run(AFTER_OPENING)
