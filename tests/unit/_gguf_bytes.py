"""Build GGUF files byte by byte, valid or broken in one chosen place, and small qwen4exp headers."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
F32_TENSOR, Q8_0_TENSOR, I64_TENSOR = 0, 8, 27

_LETTERS = dict(zip((U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64), "BbHhIifBQqd", strict=True))


@dataclass(frozen=True)
class Typed:
    """A metadata value with an explicit GGUF type; a list becomes an array of it."""

    kind: int
    value: Any


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: Any) -> bytes:
    return text(value) if kind == STRING else struct.pack(f"<{_LETTERS[kind]}", value)


def value_bytes(value: Any) -> bytes:
    """Encode type and value: bool, int (u32), float (f32), str, bytes as they are, or `Typed`."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, Typed):
        kinds = {bool: BOOL, int: U32, float: F32, str: STRING}
        value = Typed(kinds[type(value)], value)
    if isinstance(value.value, (list, tuple)):
        head = struct.pack("<IIQ", ARRAY, value.kind, len(value.value))
        return head + b"".join(scalar(value.kind, item) for item in value.value)
    return struct.pack("<I", value.kind) + scalar(value.kind, value.value)


def tensor_bytes(name: str | bytes, shape: Sequence[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf(
    metadata: Sequence[tuple[str | bytes, Any]] | Mapping[str, Any] = (),
    tensors: Mapping[str, Sequence[int]] | None = None,
    *,
    version: int = 3,
    data: bool = True,
) -> bytes:
    """Return a file whose tensors are f32 ones; with `data` False it ends where the tensor data would begin.

    A tensor named d2t is i64 and counts from 0.
    """
    pairs = list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)
    out = [b"GGUF", struct.pack("<IQQ", version, len(tensors or {}), len(pairs))]
    out += [text(key) + value_bytes(value) for key, value in pairs]
    stored = b""
    for name, shape in (tensors or {}).items():
        n_values, ids = math.prod(shape), name == "d2t"
        out.append(tensor_bytes(name, shape, I64_TENSOR if ids else F32_TENSOR, len(stored)))
        stored += struct.pack(f"<{n_values}q", *range(n_values)) if ids else struct.pack("<f", 1.0) * n_values
        stored += bytes(-len(stored) % 32)
    head = b"".join(out)
    return head + bytes(-len(head) % 32) + stored if data else head


# ---- qwen4exp --------------------------------------------------------------------------------------------

N_EMBD, N_STREAMS, LOW_RANK, N_TRUNK = 4, 2, 3, 2
N_HEAD, N_HEAD_KV, HEAD_DIM, INDEX_HEADS, INDEX_DIM = 2, 1, 6, 3, 5
N_EXPERT, N_FF, N_FF_SHARED = 7, 8, 9
TOKENS = ("a", "b", "c", "<end>")


def metadata(*, n_nextn: int, tokens: Sequence[str] = TOKENS, **changed: Any) -> dict[str, Any]:
    """Return what a qwen4exp file says; `changed` overrides keys, with ``__`` for a dot; None drops one."""
    values: dict[str, Any] = {
        "general.architecture": "qwen4exp",
        "qwen4exp.block_count": N_TRUNK + n_nextn,
        "qwen4exp.embedding_length": N_EMBD,
        "qwen4exp.hyper_connection.count": N_STREAMS,
        "qwen4exp.hyper_connection.low_rank": LOW_RANK,
        "qwen4exp.attention.head_count": N_HEAD,
        "qwen4exp.attention.head_count_kv": N_HEAD_KV,
        "qwen4exp.attention.key_length": HEAD_DIM,
        "qwen4exp.attention.value_length": HEAD_DIM,
        "qwen4exp.attention.indexer.head_count": INDEX_HEADS,
        "qwen4exp.attention.indexer.key_length": INDEX_DIM,
        "qwen4exp.expert_count": N_EXPERT,
        "qwen4exp.expert_feed_forward_length": N_FF,
        "qwen4exp.expert_shared_feed_forward_length": N_FF_SHARED,
        "tokenizer.ggml.tokens": Typed(STRING, list(tokens)),
    }
    if n_nextn:
        values["qwen4exp.nextn_predict_layers"] = n_nextn
    values |= {key.replace("__", "."): value for key, value in changed.items()}
    return {key: value for key, value in values.items() if value is not None}


def mtp_block(block: int = N_TRUNK, *, n_embd: int = N_EMBD, n_streams: int = N_STREAMS) -> dict[str, Sequence[int]]:
    """Return names and shapes of the tensors of an MTP block as llama.cpp's converter writes them."""
    wide = n_embd * n_streams
    mixers = {
        f"{part}_{kind}": shape
        for part in ("hc_attn", "hc_ffn", "nextn.hc_head")
        for kind, shape in (("norm", [wide]), ("down", [wide, LOW_RANK]), ("up", [LOW_RANK, wide]))
    }
    rest = {
        "nextn.eh_proj": [2 * n_embd, n_embd],
        "nextn.enorm": [n_embd],
        "nextn.hnorm": [wide],
        "hc_attn_inject": [wide, n_streams],
        "hc_ffn_inject": [wide, n_streams],
    }
    attention = {
        "attn_q": [n_embd, 2 * N_HEAD * HEAD_DIM],
        "attn_k": [n_embd, N_HEAD_KV * HEAD_DIM],
        "attn_v": [n_embd, N_HEAD_KV * HEAD_DIM],
        "attn_output": [N_HEAD * HEAD_DIM, n_embd],
        "attn_q_norm": [HEAD_DIM],
        "attn_k_norm": [HEAD_DIM],
        "indexer.q_proj": [n_embd, INDEX_HEADS * INDEX_DIM],
        "indexer.k_proj": [n_embd, INDEX_DIM],
        "indexer.q_norm": [INDEX_DIM],
        "indexer.k_norm": [INDEX_DIM],
    }
    experts = {
        "ffn_gate_inp": [n_embd, N_EXPERT],
        "ffn_gate_exps": [n_embd, N_FF, N_EXPERT],
        "ffn_up_exps": [n_embd, N_FF, N_EXPERT],
        "ffn_down_exps": [N_FF, n_embd, N_EXPERT],
        "ffn_gate_inp_shexp": [n_embd],
        "ffn_gate_shexp": [n_embd, N_FF_SHARED],
        "ffn_up_shexp": [n_embd, N_FF_SHARED],
        "ffn_down_shexp": [N_FF_SHARED, n_embd],
    }
    named = mixers | rest | attention | experts
    return {f"blk.{block}.{name}.weight": shape for name, shape in named.items()}


TABLES: dict[str, Sequence[int]] = {
    "token_embd.weight": [N_EMBD, len(TOKENS)],
    "output.weight": [N_EMBD, len(TOKENS)],
}
MIXER: dict[str, Sequence[int]] = {f"output_hc_{kind}.weight": [N_EMBD] for kind in ("norm", "down", "up")}
TRUNK: dict[str, Sequence[int]] = {
    **TABLES,
    **MIXER,
    **{f"blk.{layer}.hc_attn_norm.weight": [N_EMBD * N_STREAMS] for layer in range(N_TRUNK)},
}


def write_model(path: Path, tensors: Mapping[str, Sequence[int]] = TRUNK, *, n_nextn: int = 0, **changed: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf(metadata(n_nextn=n_nextn, **changed), tensors))
    return path


def write_sidecar(path: Path, tensors: Mapping[str, Sequence[int]] | None = None, **changed: Any) -> Path:
    return write_model(path, {**TABLES, **mtp_block()} if tensors is None else tensors, n_nextn=1, **changed)
