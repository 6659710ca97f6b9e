"""The built-in model on a GPU: drafts in one launch, nothing on the CPU in between, graphs that are kept."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pylucebox._build import DEMO_MODEL
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask
from pylucebox._session_options import SessionOptions

TEXT = "The table lists the values one to twelve: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.\n" * 8
GREEDY = SamplingParams(temperature=0, seed=0, ignore_eos=True)
SIDECAR = DEMO_MODEL.parent / "MTP" / f"mtp-{DEMO_MODEL.name}"


@pytest.fixture(scope="module")
def model(gpu: str) -> Iterator[Model]:
    opened = Model(ModelOptions(path=DEMO_MODEL, mtp_path=SIDECAR, device=gpu))
    yield opened
    opened.close()


@pytest.fixture
def session(model: Model) -> Iterator[NativeSession]:
    opened = NativeSession(model, SessionOptions(n_ctx=1024, max_width=8))
    ids = model.tokenize(TEXT, add_special=False, parse_special=False)
    opened.prefill(0, ids, opened.open_sampler(GREEDY, None), use_mtp=True)
    yield opened
    opened.close()


def test_drafts_are_made_in_one_launch_with_the_whole_vocabulary(model: Model, session: NativeSession) -> None:
    assert session.why_stepwise() == ""
    assert model.info.draft_rows_bytes > 0
    assert model.info.n_draft_vocab == model.info.n_vocab


@pytest.mark.parametrize("width", [2, 4, 8])
def test_the_host_waits_once_for_the_drafts_of_a_cycle(session: NativeSession, width: int) -> None:
    waits = [session.cycle([Ask(0, width, 8)])[1].n_draft_waits for _ in range(4)]
    assert waits == [1, 1, 1, 1]


def test_alternating_widths_build_each_graph_once(session: NativeSession) -> None:
    widths = (1, 8, 4, 2)
    for width in widths * 2:  # the second run of a graph captures it
        session.cycle([Ask(0, width, 1)])
    built = [session.cycle([Ask(0, width, 1)])[1] for width in widths * 4]
    assert not any(times.graph_built or times.draft_graph_built for times in built)


def test_a_gpu_and_the_cpu_draft_alike(session: NativeSession) -> None:
    on_cpu = Model(ModelOptions(path=DEMO_MODEL, mtp_path=SIDECAR, device="cpu"))
    other = NativeSession(on_cpu, SessionOptions(n_ctx=1024, max_width=8))
    ids = on_cpu.tokenize(TEXT, add_special=False, parse_special=False)
    other.prefill(0, ids, other.open_sampler(GREEDY, None), use_mtp=True)
    accepted = []
    for each in (session, other):
        cycles = [each.cycle([Ask(0, 8, 8)])[0][0] for _ in range(8)]
        accepted.append(sum(cycle.n_accepted for cycle in cycles) / len(cycles))
    other.close()
    on_cpu.close()
    # bits differ between back ends, what a trained block knows of a table does not
    assert accepted[0] == pytest.approx(accepted[1], abs=1.0)


# Prints how many drafts held, by the length of the chain.
ACCEPTED = """
import json, sys
from test_gpu import GREEDY, SIDECAR, TEXT, DEMO_MODEL, Ask, Model, ModelOptions, NativeSession, SessionOptions

model = Model(ModelOptions(path=DEMO_MODEL, mtp_path=SIDECAR, device=sys.argv[1]))
ids = model.tokenize(TEXT, add_special=False, parse_special=False)
accepted = []
for width in range(2, 9):
    session = NativeSession(model, SessionOptions(n_ctx=1024, max_width=8))
    session.prefill(0, ids, session.open_sampler(GREEDY, None), use_mtp=True)
    accepted.append(sum(session.cycle([Ask(0, width, 8)])[0][0].n_accepted for _ in range(8)))
    session.close()
model.close()
print(json.dumps(accepted))
"""


def accepted_by_length(gpu: str, **environment: str) -> list[int]:
    """Run chains of one to seven drafts in a process of their own, which reads these variables once."""
    done = subprocess.run(
        [sys.executable, "-c", ACCEPTED, gpu],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_chains_of_every_length_hold_as_with_an_operation_per_launch(gpu: str) -> None:
    """Where the drafts of a chain lie in memory depends on its length, and what is one kernel has to bear it."""
    fused, single = (accepted_by_length(gpu, GGML_CUDA_DISABLE_FUSION=off) for off in ("", "1"))
    # bits differ a little, so that a draft here and there may; drafts that are wrong in a cycle hold in none
    assert fused == pytest.approx(single, abs=8)
    assert all(n >= 4 for n in fused)


def test_attention_of_few_rows_names_its_cells(session: NativeSession) -> None:
    assert session.info.attend_selected  # the cache is of F16; nothing has turned STRIX_ATTN_CELLS off


def test_requests_without_mtp_leave_the_graphs_of_those_with_it(model: Model, session: NativeSession) -> None:
    ids = model.tokenize(TEXT, add_special=False, parse_special=False)
    built = []
    for use_mtp in (True, False) * 4:  # the second run of a graph captures it
        session.clear(0)
        session.prefill(0, ids, session.open_sampler(GREEDY, None), use_mtp=use_mtp)
        built.append([session.cycle([Ask(0, width, 1)])[1].graph_built for width in (1, 8 if use_mtp else 1)])
    assert not any(built[-2] + built[-1])
