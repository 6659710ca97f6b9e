"""Every token's logits, bit by bit, with drafts and without.

Equal text is the promise; equal bits are the reason it can be kept, and they show a fault long before it flips a token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask
from pylucebox.testing import K_QUANT_SPEC, TinyModelFiles, write_tiny_model

# Its rows hold whole blocks of every type, so that each type is really used.
WIDE = K_QUANT_SPEC
WEIGHT_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "iq4_nl", "iq4_xs")
OPTIONS = SessionOptions(n_ctx=1024, n_ubatch=256, max_width=8)
N_TOKENS = 40
PROMPT = "Counting: 1, 2, 3. It was a bright day, and {the clocks} were striking thirteen; " * 2


@pytest.fixture(scope="module", params=WEIGHT_TYPES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModelFiles:
    """A small model of each weight type."""
    folder = tmp_path_factory.mktemp("exact")
    return write_tiny_model(folder / f"{request.param}.gguf", replace(WIDE, weight_type=request.param))


@contextmanager
def session_on(path: Path, options: SessionOptions) -> Iterator[tuple[Model, NativeSession]]:
    """A session on a model whose draft block is in its own file."""
    model = Model(ModelOptions(path=path, mtp_in_file=True))
    session = NativeSession(model, options)
    try:
        yield model, session
    finally:
        session.close()
        model.close()


def decode(path: Path, width: int, options: SessionOptions = OPTIONS, prompt: str = PROMPT) -> list[tuple[int, str]]:
    """Return each token with the hash of the logits it was sampled from."""
    out: list[tuple[int, str]] = []
    with session_on(path, replace(options, max_width=max(width, 1))) as (model, session):
        ids = model.tokenize(prompt, add_special=False, parse_special=True)
        sampler = session.open_sampler(SamplingParams(temperature=0.9, top_k=40, seed=7), None)
        token, _ = session.prefill(0, ids, sampler, use_mtp=width > 1)
        out.append((token, hashlib.sha256(session.logits(0, 0).tobytes()).hexdigest()))
        while len(out) < N_TOKENS:
            (result,), _ = session.cycle([Ask(0, width, N_TOKENS - len(out))])
            for row, token in enumerate(result.tokens):
                out.append((token, hashlib.sha256(session.logits(0, row).tobytes()).hexdigest()))
    return out


@pytest.mark.parametrize("width", range(2, 9))
def test_logits_of_every_token_have_the_bits_of_plain_decoding(files: TinyModelFiles, width: int) -> None:
    plain = decode(files.model, 1)
    assert decode(files.model, width) == plain


@pytest.mark.parametrize("flash_attn", [True, False])
@pytest.mark.parametrize(("n_threads", "widths"), [(1, (3, 8)), (2, (8,))])
def test_bits_hold_past_the_sparse_budget_and_512_cells(
    tmp_path: Path, flash_attn: bool, n_threads: int, widths: tuple[int, ...]
) -> None:
    files = write_tiny_model(tmp_path / "long.gguf", replace(WIDE, weight_type="q4_K"))
    options = replace(OPTIONS, flash_attn=flash_attn, n_threads=n_threads)
    prompt = PROMPT * 4
    plain = decode(files.model, 1, options, prompt)
    for width in widths:
        assert decode(files.model, width, options, prompt) == plain


def test_different_texts_do_have_different_bits(files: TinyModelFiles) -> None:
    """The comparison can fail: another prompt gives other logits from the first token on."""
    assert decode(files.model, 1)[0][1] != decode(files.model, 1, prompt=PROMPT + "!")[0][1]
