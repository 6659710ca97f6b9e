"""Upstream's quantiser, which llama-quantize is a front of, leaves alone what must stay f32."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from pylucebox import Engine, _ffi
from pylucebox._build import find_native_dir
from pylucebox._gguf import read_file
from pylucebox.testing import TinySpec, write_tiny_model
from pylucebox.testing import _tiny as tiny

MOSTLY_Q8_0 = 7  # enum llama_ftype in include/llama.h
NORMS = ("blk.1.ple_norm_key", "blk.1.ple_norm_query", "blk.1.ple_norm_conv", "blk.4.nextn.hnorm")


class _Params(ctypes.Structure):
    """The first fields of ``llama_model_quantize_params``, and room for all that follow."""

    _fields_ = [("n_threads", ctypes.c_int32), ("ftype", ctypes.c_int), ("others", ctypes.c_byte * 1024)]


def quantize_file(source: Path, target: Path, ftype: int) -> None:
    _ffi.native()
    llama = ctypes.CDLL(str(next((find_native_dir() / "lib").glob("libllama.*"))))
    llama.llama_model_quantize_default_params.restype = _Params
    llama.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_Params)]
    llama.llama_model_quantize.restype = ctypes.c_uint32
    params = llama.llama_model_quantize_default_params()
    params.n_threads, params.ftype = 1, ftype
    assert llama.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(params)) == 0


@pytest.fixture
def with_rows_per_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a model whose stream norms have two dimensions, as upstream's test writer has them."""
    spec = TinySpec()

    class TwoDimensions(tiny.WeightMaker):
        def trunk(self) -> dict[str, tiny.Array]:
            return _by_stream(dict(super().trunk()), spec.n_embd)

        def draft_block(self) -> dict[str, tiny.Array]:
            return _by_stream(dict(super().draft_block()), spec.n_embd)

    monkeypatch.setattr(tiny, "WeightMaker", TwoDimensions)
    return write_tiny_model(tmp_path / "f32.gguf", spec).model


def _by_stream(tensors: dict[str, tiny.Array], n_embd: int) -> dict[str, tiny.Array]:
    return {
        name: values.reshape(-1, n_embd) if name.removesuffix(".weight") in NORMS else values
        for name, values in tensors.items()
    }


def test_norms_with_a_row_per_stream_stay_f32(with_rows_per_stream: Path, tmp_path: Path) -> None:
    target = tmp_path / "q8_0.gguf"
    quantize_file(with_rows_per_stream, target, MOSTLY_Q8_0)
    tensors = read_file(target).tensors
    assert all(len(tensors[f"{name}.weight"].shape) == 2 for name in NORMS)
    assert tensors["blk.1.attn_qkv.weight"].type_name == "q8_0"
    # a quantised one would end the process below
    assert {tensors[f"{name}.weight"].type_name for name in NORMS} == {"f32"}
    with Engine(target, n_ctx=128, n_threads=1, spec="require") as engine:
        assert engine.generate("def add(a, b):", max_tokens=8, verify_width=4).token_ids
