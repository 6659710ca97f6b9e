"""Describe and write small random qwen4exp models.

The files have every part of the architecture (gated delta net, attention with its index, n-gram embedding,
hyper-connections, experts, draft block) at a size that is written in a fraction of a second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pylucebox.testing._gguf_writer import TENSOR_TYPES, MetaValue, QuantizeRows, Tensor, encode, write_gguf
from pylucebox.testing._vocab import CHAT_TEMPLATE, Vocabulary, byte_vocabulary
from pylucebox.testing._weights import WeightMaker

ARCH = "qwen4exp"


@dataclass(frozen=True)
class TinySpec:
    """What a small model looks like; equal specs give equal files.

    The names of the sizes are those of llama.cpp's hyperparameters. With ``n_embd=256``, ``hc_low_rank=256``,
    ``n_ff_exp=256`` and ``n_ff_shexp=256`` (see `TinySpec.k_quant`) nearly every matrix can hold any tensor type.

    Attributes
    ----------
    name
        ``general.name`` of the files.
    seed
        Seed of all weights.
    kind
        How the drafts relate to the trunk:

        * ``"mixed"``: after each token the trunk picks one of two likely tokens by what came before, and the draft
          block sees that history one token late, so drafts agree most of the time and every accepted length occurs;
        * ``"agree"``: history hardly matters and nearly all drafts agree;
        * ``"random"``: the trunk of ``"mixed"`` with a draft block that knows nothing, so nearly all drafts fail.
    mtp
        Where the draft block is: ``"in-file"``; ``"sidecar"``, a file of its own with embedding and head;
        ``"shared"``, a sidecar that borrows both from its trunk; ``"none"``.
    weight_type
        ggml type of the matrices. Tensors of one dimension, norms, ``ffn_gate_inp``, ``ssm_conv1d``, ``ssm_a`` and
        ``ssm_dt`` stay f32 as upstream's converter has them; a matrix whose rows are no whole number of blocks
        becomes f16.
    vocab_multiple
        The vocabulary (261 tokens) is padded with unused tokens to a multiple of this.
    ple_layer
        Trunk layer with the n-gram embedding (a linear-attention layer), or None for a model without.
    ple_rows_per_head
        Lower bound of the table rows of each n-gram head; the heads have distinct odd sizes from there.
    """

    name: str = "tiny"
    seed: int = 0
    kind: Literal["mixed", "agree", "random"] = "mixed"
    mtp: Literal["in-file", "sidecar", "shared", "none"] = "in-file"
    weight_type: str = "q8_0"
    vocab_multiple: int = 32
    n_ctx_train: int = 4096
    n_embd: int = 128
    n_layer: int = 4
    full_attention_interval: int = 4
    hc_count: int = 4
    hc_low_rank: int = 32
    n_head: int = 2
    n_head_kv: int = 1
    head_dim: int = 64
    n_rot: int = 16
    indexer_n_head: int = 2
    indexer_head_dim: int = 32
    indexer_top_k: int = 32
    compress_ratio: int = 4
    ssm_d_state: int = 32
    ssm_n_group: int = 2
    ssm_dt_rank: int = 4
    ssm_d_conv: int = 4
    n_expert: int = 8
    n_expert_used: int = 2
    n_ff_exp: int = 32
    n_ff_shexp: int = 32
    ple_layer: int | None = 1
    ple_ngram_size: int = 3
    ple_heads_per_ngram: int = 2
    ple_conv_kernel: int = 4
    ple_rows_per_head: int = 251

    def __post_init__(self) -> None:
        """Check what the loader would refuse with less to go by.

        Raises
        ------
        ValueError
            If the sizes do not fit together or a choice is unknown.
        """
        rules = {
            f"weight_type must be one of {', '.join(TENSOR_TYPES)}": self.weight_type in TENSOR_TYPES,
            "kind must be mixed, agree or random": self.kind in ("mixed", "agree", "random"),
            "mtp must be in-file, sidecar, shared or none": self.mtp in ("in-file", "sidecar", "shared", "none"),
            "n_embd must be a multiple of 32": self.n_embd % 32 == 0,
            "hc_count must be at least 2": self.hc_count >= 2,
            "n_rot must be a multiple of 4 and at most head_dim and indexer_head_dim": self.n_rot % 4 == 0
            and self.n_rot <= min(self.head_dim, self.indexer_head_dim),
            "n_head_kv must divide n_head": self.n_head % self.n_head_kv == 0,
            "ssm_n_group must divide ssm_dt_rank": self.ssm_dt_rank % self.ssm_n_group == 0,
            "compress_ratio must be at least 2 and divide indexer_top_k": self.compress_ratio >= 2
            and self.indexer_top_k % self.compress_ratio == 0,
            "ple_layer must be a linear-attention layer": self.ple_layer is None
            or (0 <= self.ple_layer < self.n_layer and not self.is_full_attention(self.ple_layer)),
            "the n-gram heads must divide n_embd": self.n_embd % self.ple_n_heads == 0,
        }
        for rule, holds in rules.items():
            if not holds:
                msg = f"{rule}; see {self}"
                raise ValueError(msg)

    @property
    def ssm_d_inner(self) -> int:
        """Width of the linear-attention values."""
        return self.ssm_d_state * self.ssm_dt_rank

    @property
    def ple_n_heads(self) -> int:
        """Rows of the n-gram table gathered per token."""
        return (self.ple_ngram_size - 1) * self.ple_heads_per_ngram

    @property
    def ple_head_dim(self) -> int:
        """Width of a row of the n-gram table."""
        return self.n_embd // self.ple_n_heads

    @property
    def ple_head_rows(self) -> tuple[int, ...]:
        """Table rows of each n-gram head."""
        return tuple(self.ple_rows_per_head + 2 * head for head in range(self.ple_n_heads))

    def is_full_attention(self, layer: int) -> bool:
        """Tell whether a block has full attention; the draft block, at index `n_layer`, does."""
        return layer >= self.n_layer or (layer + 1) % self.full_attention_interval == 0


@dataclass(frozen=True)
class TinyModelFiles:
    """Files of a written model.

    Attributes
    ----------
    model
        The trunk, with the draft block when that is in-file.
    sidecar
        The draft block's own file, or None.
    """

    model: Path
    sidecar: Path | None


def write_tiny_model(
    path: str | Path,
    spec: TinySpec | None = None,
    *,
    metadata: Mapping[str, MetaValue] | None = None,
    quantize: QuantizeRows | None = None,
) -> TinyModelFiles:
    """Write a small random model."""
    path = Path(path)
    spec = spec or TinySpec()
    vocab = byte_vocabulary(spec.vocab_multiple)
    weights = WeightMaker(spec, vocab)
    trunk = weights.trunk()
    head = weights.draft_block() if spec.mtp != "none" else {}

    def write(file: Path, arrays: Mapping[str, np.ndarray], meta: dict[str, MetaValue]) -> None:
        tensors = []
        for name, array in arrays.items():
            kind = stored_type(name, array.shape, spec.weight_type)
            tensors.append(Tensor(name, array.shape, kind, encode(array, kind, quantize)))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_gguf(file, meta | dict(metadata or {}), tensors)

    in_file = spec.mtp == "in-file"
    write(path, trunk | head if in_file else trunk, model_metadata(spec, vocab, n_nextn=int(in_file)))
    if spec.mtp not in ("sidecar", "shared"):
        return TinyModelFiles(path, None)
    side = path.parent / "MTP" / f"mtp-{path.name}"
    meta = model_metadata(spec, vocab, n_nextn=1)
    meta = {k: v for k, v in meta.items() if ".ple." not in k and "per_layer_input" not in k}
    if spec.mtp == "shared":
        meta[ARCH + ".nextn_shared_target_tensors"] = True
    else:
        head = {"token_embd.weight": trunk["token_embd.weight"], "output.weight": trunk["output.weight"]} | head
    write(side, head, meta)
    return TinyModelFiles(path, side)


def stored_type(name: str, shape: tuple[int, ...], weight_type: str) -> str:
    """Type a tensor is stored as when the matrices of its model are `weight_type`."""
    if len(shape) == 1 or name.endswith("_norm.weight") or not name.endswith(".weight"):
        return "f32"
    if "ffn_gate_inp" in name or "ssm_conv1d" in name:
        return "f32"
    return weight_type if shape[-1] % TENSOR_TYPES[weight_type].block == 0 else "f16"


def model_metadata(spec: TinySpec, vocab: Vocabulary, *, n_nextn: int) -> dict[str, MetaValue]:
    """Metadata."""
    n_block = spec.n_layer + n_nextn
    ratios = [spec.compress_ratio if spec.is_full_attention(il) else 0 for il in range(n_block)]
    third = spec.n_rot // 2
    a = (third + 2) // 3
    values: dict[str, MetaValue] = {
        "vocab_size": len(vocab.tokens),
        "context_length": spec.n_ctx_train,
        "embedding_length": spec.n_embd,
        "block_count": n_block,
        "attention.head_count": spec.n_head,
        "attention.head_count_kv": spec.n_head_kv,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.indexer.head_count": spec.indexer_n_head,
        "attention.indexer.key_length": spec.indexer_head_dim,
        "attention.indexer.top_k": spec.indexer_top_k,
        "attention.compress_ratios": np.asarray(ratios, np.int32),
        "full_attention_interval": spec.full_attention_interval,
        "rope.dimension_count": spec.n_rot,
        "rope.dimension_sections": np.asarray([a, a, third - 2 * a, 0], np.int32),
        "rope.freq_base": 1e7,
        "ssm.conv_kernel": spec.ssm_d_conv,
        "ssm.inner_size": spec.ssm_d_inner,
        "ssm.state_size": spec.ssm_d_state,
        "ssm.time_step_rank": spec.ssm_dt_rank,
        "ssm.group_count": spec.ssm_n_group,
        "hyper_connection.count": spec.hc_count,
        "hyper_connection.low_rank": spec.hc_low_rank,
        "expert_count": spec.n_expert,
        "expert_used_count": spec.n_expert_used,
        "expert_feed_forward_length": spec.n_ff_exp,
        "expert_shared_feed_forward_length": spec.n_ff_shexp,
    }
    if n_nextn:
        values["nextn_predict_layers"] = n_nextn
    if spec.ple_layer is not None:
        rng = np.random.default_rng([spec.seed, 5])
        rows = np.asarray(spec.ple_head_rows, np.uint64)
        values |= {
            "ple.layers": np.asarray([spec.ple_layer], np.int32),
            "ple.ngram_size": spec.ple_ngram_size,
            "ple.heads_per_ngram": spec.ple_heads_per_ngram,
            "ple.conv_kernel": spec.ple_conv_kernel,
            "ple.eos_token_id": vocab.id_of("<|endoftext|>"),
            "embedding_length_per_layer_input": spec.n_embd // spec.ple_n_heads,
            "ple.layer_multipliers": rng.integers(1 << 44, 1 << 45, spec.ple_ngram_size, np.uint64) | np.uint64(1),
            "ple.head_offsets": np.cumsum(rows) - rows,
            "ple.head_vocab_sizes": rows,
        }
    general: dict[str, MetaValue] = {
        "general.architecture": ARCH,
        "general.name": spec.name,
    }
    tokenizer: dict[str, MetaValue] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": vocab.tokens,
        "tokenizer.ggml.token_type": vocab.types,
        "tokenizer.ggml.merges": (),
        "tokenizer.ggml.eos_token_id": vocab.id_of("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": vocab.id_of("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    return general | {f"{ARCH}.{k}": v for k, v in values.items()} | tokenizer
