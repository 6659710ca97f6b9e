"""A sidecar without embedding and head drafts like one that has its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox.testing import TinyModelFiles, TinySpec, write_tiny_model

OPTIONS = SessionOptions(n_ctx=512, n_ubatch=128, max_width=8)


def drafts_of(files: TinyModelFiles) -> tuple[Model, list[tuple[list[int], list[float]]]]:
    """Return the open model, and seven drafts after each of eight tokens."""
    model = Model(ModelOptions(path=files.model, mtp_path=files.sidecar))
    session = NativeSession(model, OPTIONS)
    ids = model.tokenize("One, two, three and four.", add_special=False, parse_special=True)
    found = []
    for n_prompt in range(len(ids) - 8, len(ids)):
        session.clear(0)
        sampler = session.open_sampler(SamplingParams(temperature=0, seed=0), None)
        session.prefill(0, ids[:n_prompt], sampler, use_mtp=True)
        found.append(session.draft(0, 7))
    session.close()
    return model, found


@pytest.mark.parametrize("weight_type", ["q8_0", "f16"])
def test_borrowed_tables_give_the_drafts_of_own_tables(tmp_path: Path, weight_type: str) -> None:
    spec = TinySpec(weight_type=weight_type, mtp="sidecar")
    own_model, own = drafts_of(write_tiny_model(tmp_path / "own" / "m.gguf", spec))
    shared_model, shared = drafts_of(write_tiny_model(tmp_path / "shared" / "m.gguf", replace(spec, mtp="shared")))
    assert not own_model.info.mtp_borrows_head
    assert shared_model.info.mtp_borrows_head
    assert shared_model.info.mtp_borrows_embedding
    assert shared_model.info.mtp_size_bytes < own_model.info.mtp_size_bytes
    assert shared == own


def test_the_reading_of_the_hidden_norm_changes_the_drafts(tmp_path: Path) -> None:
    files = write_tiny_model(tmp_path / "m.gguf", TinySpec(mtp="sidecar"))
    probs = {}
    for reading in ("file", "full", "per-stream"):
        model = Model(ModelOptions(path=files.model, mtp_path=files.sidecar, hidden_norm=reading))
        session = NativeSession(model, OPTIONS)
        ids = model.tokenize("One, two, three and four.", add_special=False, parse_special=True)
        sampler = session.open_sampler(SamplingParams(temperature=0, seed=0), None)
        session.prefill(0, ids, sampler, use_mtp=True)
        probs[reading] = session.draft(0, 7)
        assert model.info.hidden_norm == ("per-stream" if reading == "per-stream" else "full")
        session.close()
    assert probs["file"] == probs["full"]
    assert probs["per-stream"] != probs["full"]
