"""What comparisons with the PyTorch reference share: the built-in model as float32 files, and how sessions open.

The reference ran on the weights of the shipped files. With the same weights as F32, F32 caches and no flash attention,
the only difference left is the order of float32 sums.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import NamedTuple

from pylucebox._model import HiddenNorm, Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox.testing import write_f32_copy

DATA = Path(__file__).resolve().parents[1] / "data"
N_CTX = 1024


class Pair(NamedTuple):
    """A trunk and its MTP block."""

    model: Path
    mtp: Path


def shipped_pair() -> Pair:
    """Return the built-in model's files."""
    folder = Path(str(resources.files("pylucebox"))) / "demo_model"
    return Pair(folder / "tiny-qwen4exp-Q8_0.gguf", folder / "MTP" / "mtp-tiny-qwen4exp-Q8_0.gguf")


def f32_pair(folder: Path) -> Pair:
    """Write the built-in model's files with float32 tensors to `folder`."""
    pair = Pair(folder / "trunk-F32.gguf", folder / "mtp-F32.gguf")
    for source, target in zip(shipped_pair(), pair, strict=True):
        write_f32_copy(source, target)
    return pair


def open_session(
    pair: Pair, *, cache_type: str = "f32", hidden_norm: HiddenNorm = "file", flash_attn: bool = False
) -> NativeSession:
    """Open a session on one thread; the caller closes it."""
    model = Model(ModelOptions(path=pair.model, mtp_path=pair.mtp, hidden_norm=hidden_norm))
    options = SessionOptions(
        n_ctx=N_CTX,
        n_seq=1,
        n_ubatch=512,
        n_threads=1,
        n_threads_batch=1,
        max_width=8,
        flash_attn=flash_attn,
        cache_type_k=cache_type,
        cache_type_v=cache_type,
    )
    return NativeSession(model, options)
