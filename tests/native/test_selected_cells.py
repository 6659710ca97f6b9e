"""Steps of few rows attend to the cells that they selected: which they are, and that nothing else changes."""

from __future__ import annotations

import hashlib
import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from _models import WriteModel
from _parity import f32_pair, open_session
from _programs import compiler_for
from test_parity import REFERENCE, largest_difference

import pylucebox
from pylucebox import SamplingParams
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._session import Ask
from pylucebox.testing import TinySpec

HERE = Path(__file__).parent
LIBRARIES = Path(pylucebox.__file__).parent / "lib"
GREEDY = SamplingParams(temperature=0.0, seed=0, ignore_eos=True)
# 32 of 300 and more cells are attended to
SPEC = TinySpec(kind="mixed", indexer_top_k=32)
PROMPT = [random.Random(3).randrange(256) for _ in range(301)]


@pytest.fixture(scope="module")
def model(write_model: WriteModel) -> Iterator[Model]:
    opened = Model(ModelOptions(path=write_model(SPEC).model, mtp_in_file=True))
    yield opened
    opened.close()


def start(model: Model, **options: object) -> NativeSession:
    chosen = replace(SessionOptions(n_ctx=1024, n_ubatch=64, max_width=8), **options)  # type: ignore[arg-type]
    session = NativeSession(model, chosen)
    for seq in range(session.n_seq):
        prompt = PROMPT[: len(PROMPT) - 50 * seq]
        session.prefill(seq, prompt, session.open_sampler(GREEDY, None), use_mtp=session.max_width > 1)
    return session


def run(session: NativeSession, widths: tuple[int, ...]) -> list[object]:
    """Return tokens and drafts of all cycles, and what is left: logits and states."""
    found: list[object] = []
    for width in widths:
        cycles, _ = session.cycle([Ask(seq, width, 100) for seq in range(session.n_seq)])
        found += [(cycle.tokens, cycle.draft_tokens, cycle.draft_probs) for cycle in cycles]
    for seq in range(session.n_seq):
        found.append(session.logits(seq, 0).tobytes())
        found.append(hashlib.sha256(session.state_save(seq)).hexdigest())
    return found


@pytest.mark.parametrize("n_seq", [1, 3])
def test_tokens_logits_and_states_are_those_with_masks(model: Model, n_seq: int) -> None:
    widths = (1, 8, 3, 1, 5, 2, 8, 7, 4, 6)
    sessions = [start(model, n_seq=n_seq, attend_selected=on) for on in (True, False)]
    assert [session.info.attend_selected for session in sessions] == [True, False]
    selected, masked = (run(session, widths) for session in sessions)
    assert selected == masked
    for session in sessions:
        session.close()


def test_no_graph_is_built_while_a_bucket_lasts(model: Model) -> None:
    """Caches are looked at in steps of 256 cells, blocks in steps of 64; the prompt of 301 tokens is in the second."""
    session = start(model)
    widths = (1, 8, 3, 5)
    for width in widths * 2:  # the first drafts of cycles differ by how many pairs wait for them
        session.cycle([Ask(0, width, 100)])
    n_cycles = 0
    while session.n_past(0) + 8 < 504:
        _, times = session.cycle([Ask(0, widths[n_cycles % len(widths)], 100)])
        assert not times.graph_built, session.n_past(0)
        n_cycles += 1
    assert n_cycles > 20
    session.close()


def test_caches_without_a_kernel_keep_the_mask(model: Model) -> None:
    session = start(model, cache_type_k="q8_0", cache_type_v="q8_0")
    assert not session.info.attend_selected
    session.close()


@pytest.mark.parametrize("name", [name for name, reference in REFERENCE.items() if len(reference["ids"]) > 131])
@pytest.mark.parametrize("n_steps", range(1, 5))
def test_selection_is_the_references(parity: NativeSession, name: str, n_steps: int) -> None:
    """Beyond the budget, with every length of the incomplete block; dense attention differs by 0.017 and more."""
    ids = REFERENCE[name]["ids"].tolist()
    parity.clear(0)
    parity.prefill(0, ids[:-n_steps], parity.open_sampler(GREEDY, None), use_mtp=False)
    for token in ids[-n_steps:]:
        parity.force(0, token)
        parity.cycle([Ask(0, 1, 100)])
    # caches of half precision take 0.006
    assert largest_difference(parity.logits(0, 0), REFERENCE[name]["trunk_logits"][-1]) < 0.012


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeSession]:
    session = open_session(f32_pair(tmp_path_factory.mktemp("selected")), cache_type="f16", flash_attn=True)
    assert session.info.attend_selected
    yield session
    session.close()


def test_a_state_goes_on_where_it_was_saved(model: Model) -> None:
    """Pooled keys are in no state: they are pooled again from the raw ones."""
    session, other = (start(model, max_width=1) for _ in range(2))
    state = session.state_save(0)
    other.clear(0)
    other.state_load(0, state, other.open_sampler(GREEDY, None))
    expected, found = (run(one, (1,) * 9) for one in (session, other))
    assert expected == found
    assert np.isfinite(session.logits(0, 0)).all()
    session.close()
    other.close()


@pytest.mark.parametrize("shared_stream", [False, True], ids=["stream-each", "one-stream"])
def test_cells_may_lie_in_any_order(write_model: WriteModel, tmp_path: Path, shared_stream: bool) -> None:
    """A block's number tells its cells only while they are in order: not after a rollback or a copy beside others."""
    vendored = HERE.parents[1] / "vendor" / "llama.cpp"
    compiler = compiler_for(vendored / "src" / "lucebox-selection.h")
    program = tmp_path / "cells_in_any_order"
    folders = [f"-I{vendored / folder}" for folder in ("include", "src", "ggml/include")]
    command = [compiler, "-std=c++17", *folders, str(HERE / "cells_in_any_order.cpp"), "-o", str(program)]
    subprocess.run([*command, f"-L{LIBRARIES}", "-lllama", "-lggml-base", f"-Wl,-rpath,{LIBRARIES}"], check=True)
    path = str(write_model(SPEC).model)
    printed = [
        subprocess.run(
            [program, path, str(int(shared_stream)), named], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        for named in ("1", "0")
    ]
    assert "names cells 1" in printed[0]
    assert not any(line.endswith(" 0") or "failed" in line for line in printed[0])
    assert len(set(printed[0])) > 50
    assert printed[0] == printed[1]
