"""Tokens and logits are the same at every chunk size, with the MTP block and without."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

import pytest
from _models import WriteModel

from pylucebox import SamplingParams, _open
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._open import EngineOptions
from pylucebox._session import Ask
from pylucebox.cli._exactness_run import OpenBench
from pylucebox.testing import TinySpec

GREEDY = SamplingParams(temperature=0.0, seed=0, ignore_eos=True)
SPEC = TinySpec(kind="mixed", n_ctx_train=8192)
N_TOKENS = 24


def run(model: Model, n_prompt: int, n_ubatch: int, max_width: int) -> tuple[list[int], str]:
    """Return tokens after a prompt, and a digest of the logits behind the prompt and behind the first 16 tokens."""
    draw = random.Random(n_prompt)
    ids = [draw.randrange(256) for _ in range(n_prompt)]
    session = NativeSession(model, SessionOptions(n_ctx=n_prompt + 64, n_ubatch=n_ubatch, max_width=max_width))
    first, _ = session.prefill(0, ids, session.open_sampler(GREEDY, None), use_mtp=max_width > 1)
    logits = hashlib.sha256(session.logits(0, 0).tobytes())
    tokens = [first]
    while len(tokens) < N_TOKENS:
        # up to the token whose logits are compared, and on to the end
        left = (17 if len(tokens) < 17 else N_TOKENS) - len(tokens)
        (cycle,), _ = session.cycle([Ask(0, min(max_width, left), left)])
        tokens += cycle.tokens
        if len(tokens) == 17:
            logits.update(session.logits(0, len(cycle.tokens) - 1).tobytes())
    session.close()
    return tokens, logits.hexdigest()


def compare(write_model: WriteModel, n_prompt: int, chunks: Sequence[int]) -> None:
    model = Model(ModelOptions(path=write_model(SPEC).model, mtp_in_file=True))
    expected = run(model, n_prompt, chunks[0], 1)
    found = {(chunk, width): run(model, n_prompt, chunk, width) for chunk in chunks for width in (1, 8)}
    model.close()
    assert found == dict.fromkeys(found, expected)


def test_small_chunks(write_model: WriteModel) -> None:
    compare(write_model, 700, (512, 32, 128, 304, 464, 1024))


def test_exactness_compares_sessions_with_one_chunk(
    write_model: WriteModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # a GPU computes in another order in chunks of another size; here the memory alone is a GPU's
    monkeypatch.setattr(_open, "free_device_bytes", lambda *_: 1 << 50)
    with OpenBench(EngineOptions(model=write_model(SPEC).model, n_ctx=2048)) as bench:
        assert bench._plain.info.n_ubatch == bench._opened.session.info.n_ubatch == 2048
    assert not [record for record in caplog.records if "memory is short" in record.message]


def test_a_chunk_that_memory_made_smaller_is_told(
    write_model: WriteModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_open, "free_device_bytes", lambda *_: 1)
    with OpenBench(EngineOptions(model=write_model(SPEC).model, n_ctx=2048)) as bench:
        assert bench._opened.session.info.n_ubatch == 512
    (told,) = [record for record in caplog.records if "memory is short" in record.message]
    assert told.levelname == "WARNING"
    assert "n_ubatch=512" in told.message


@pytest.mark.exactness_full
def test_large_chunks(write_model: WriteModel) -> None:
    compare(write_model, 7500, (512, 2048, 4864, 7424))
