"""The built-in model on a GPU: drafts in one launch, nothing on the CPU in between, graphs that are kept."""

from collections.abc import Iterator

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
