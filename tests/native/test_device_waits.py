"""What the host waits for and copies in a cycle, counted on a device that does nothing before it is waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _programs import compiler_for

import pylucebox

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "vendor" / "llama.cpp" / "ggml"
LIBRARIES = Path(pylucebox.__file__).parent / "lib"
Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the cycles of ``_deferred.py``: ``run(device, n_gpu_layers, packed, cells_step)``."""
    compiler = compiler_for(SOURCES / "src" / "ggml-backend-impl.h")
    library = tmp_path_factory.mktemp("device") / "libdeferred.so"
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    command += [f"-I{SOURCES / folder}" for folder in ("include", "src")]
    command += [str(HERE / "deferred_device.cpp"), "-o", str(library), f"-L{LIBRARIES}", "-lggml", "-lggml-base"]
    subprocess.run(command, check=True)

    @cache
    def run_one(device: str, n_gpu_layers: int = -1, packed: bool = True, cells_step: int = 4) -> dict[str, Any]:
        path = os.pathsep.join(filter(None, (str(Path(pylucebox.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        switches = {"GGML_SCHED_PACKED_INPUTS": str(int(packed)), "LUCEBOX_CELLS_STEP": str(cells_step)}
        env = {**os.environ, "PYTHONPATH": path, **switches}
        child = [sys.executable, str(HERE / "_deferred.py"), device, str(library), str(n_gpu_layers)]
        done = subprocess.run(child, env=env, stdout=subprocess.PIPE, check=True, text=True)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run_one


def later(found: dict[str, Any], n_seq: int, width: int) -> dict[str, int]:
    """Return the counts of the last cycle of a width that built no graph."""
    of_width = [cycle for cycle in found["cycles"] if (cycle["n_seq"], cycle["width"]) == (n_seq, width)]
    last: dict[str, int] = [cycle for cycle in of_width if not cycle["built"]][-1]
    return last


def test_a_plain_step_waits_for_its_logits_and_its_state(run: Run) -> None:
    step = later(run("Deferred0"), 1, 1)
    assert (step["n_waits"], step["n_copies"], step["n_launches"]) == (2, 3, 1)


@pytest.mark.parametrize("width", [2, 4, 8])
def test_drafts_and_their_verification_are_a_launch_each(run: Run, width: int) -> None:
    cycle = later(run("Deferred0"), 1, width)
    assert (cycle["n_waits"], cycle["n_copies"], cycle["n_launches"]) == (3, 6, 2)


def test_a_second_sequence_costs_only_the_wait_for_its_own_state(run: Run) -> None:
    cycle = later(run("Deferred0"), 2, 4)
    assert cycle["n_waits"] <= 4
    assert cycle["n_launches"] == 2


def test_without_packed_inputs_each_input_is_waited_for(run: Run) -> None:
    assert later(run("Deferred0", packed=False), 1, 1)["n_waits"] > 20


@pytest.mark.parametrize("packed", [True, False])
def test_inputs_can_be_filled_in_again_while_the_device_is_at_work(run: Run, packed: bool) -> None:
    assert run("Deferred0", packed=packed)["sum"] == 111


@pytest.mark.parametrize("n_gpu_layers", [-1, 3, 1])
def test_tokens_and_logits_do_not_depend_on_how_inputs_get_there(run: Run, n_gpu_layers: int) -> None:
    packed = run("Deferred0", n_gpu_layers)
    assert packed["digest"] == run("Deferred0", n_gpu_layers, packed=False)["digest"]
    assert packed["digest"] == run("cpu")["digest"]


def test_graphs_last_longer_on_a_device_and_compute_the_same(run: Run) -> None:
    found, as_upstream = run("Deferred0"), run("Deferred0", cells_step=1)
    assert found["digest"] == as_upstream["digest"]
    assert sum(cycle["built"] for cycle in found["cycles"]) < sum(cycle["built"] for cycle in as_upstream["cycles"])


def test_the_run_that_captures_a_graph_counts_as_a_build(run: Run) -> None:
    of_width = [cycle["built"] for cycle in run("Deferred0")["cycles"] if (cycle["n_seq"], cycle["width"]) == (1, 8)]
    assert of_width == [True, True, False]


def test_a_cycle_sends_no_more_behind_a_longer_text(run: Run) -> None:
    """Which cells a row sees is told in a few numbers; tables and masks would grow with the text."""
    short, long = run("Deferred0")["sent_bytes"]
    assert short == long
    assert max(short.values()) < 1 << 19
