"""A small random vision tower with the layout of Qwen's, and pictures to show it; both are written here."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path

import numpy as np

from pylucebox._gguf import read_file
from pylucebox.testing._gguf_writer import Tensor, write_gguf

WIDTH, N_FF, N_HEAD = 32, 64, 2
PATCH, SIDE = 16, 64  # pixels
MERGED = 4 * WIDTH  # two by two patches make a token


def write_mmproj(path: Path, model: Path, n_embd: int | None = None) -> Path:
    """Write a random vision tower whose tokens have the width of a model's embeddings.

    Parameters
    ----------
    path
        File to write.
    model
        The model that is to see.
    n_embd
        Width of its embeddings, if not what the model says.
    """
    if n_embd is None:
        header = read_file(model)
        n_embd = header.get_int(f"{header.get_str('general.architecture')}.embedding_length")
    assert n_embd is not None
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (WIDTH, 3, PATCH, PATCH),
        "v.patch_embd.weight.1": (WIDTH, 3, PATCH, PATCH),
        "v.patch_embd.bias": (WIDTH,),
        "v.position_embd.weight": ((SIDE // PATCH) ** 2, WIDTH),
        "v.blk.0.attn_qkv.weight": (3 * WIDTH, WIDTH),
        "v.blk.0.attn_qkv.bias": (3 * WIDTH,),
        "v.blk.0.attn_out.weight": (WIDTH, WIDTH),
        "v.blk.0.attn_out.bias": (WIDTH,),
        "v.blk.0.ffn_up.weight": (N_FF, WIDTH),
        "v.blk.0.ffn_up.bias": (N_FF,),
        "v.blk.0.ffn_down.weight": (WIDTH, N_FF),
        "v.blk.0.ffn_down.bias": (WIDTH,),
        "mm.0.weight": (MERGED, MERGED),
        "mm.0.bias": (MERGED,),
        "mm.2.weight": (n_embd, MERGED),
        "mm.2.bias": (n_embd,),
    }
    for norm in ("v.blk.0.ln1", "v.blk.0.ln2", "v.post_ln"):
        shapes |= {f"{norm}.weight": (WIDTH,), f"{norm}.bias": (WIDTH,)}
    rng = np.random.default_rng(0)
    tensors = []
    for name, shape in shapes.items():
        values = rng.normal(0.0, 0.05, shape).astype(np.float32)
        tensors.append(Tensor(name, shape, "f32", values.tobytes()))
    write_gguf(
        path,
        {
            "general.architecture": "clip",
            "general.type": "mmproj",
            "clip.has_vision_encoder": True,
            "clip.projector_type": "qwen3vl_merger",
            "clip.use_gelu": True,
            "clip.vision.image_size": SIDE,
            "clip.vision.patch_size": PATCH,
            "clip.vision.embedding_length": WIDTH,
            "clip.vision.feed_forward_length": N_FF,
            "clip.vision.projection_dim": n_embd,
            "clip.vision.block_count": 1,
            "clip.vision.attention.head_count": N_HEAD,
            "clip.vision.attention.layer_norm_epsilon": 1e-6,
            "clip.vision.image_mean": np.array([0.5, 0.5, 0.5], np.float32),
            "clip.vision.image_std": np.array([0.5, 0.5, 0.5], np.float32),
            "clip.vision.spatial_merge_size": 2,
        },
        tensors,
    )
    return path


def png(seed: int, width: int = 96, height: int = 64) -> bytes:
    """Return a picture of random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def image_part(data: bytes) -> dict[str, object]:
    """Return a part of a message that shows a picture."""
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(data).decode()}}
