"""Describe and write small random qwen4exp models.

They have every part of the architecture (gated delta nets, attention with its index, n-gram embedding,
hyper-connections, experts, draft block) and are written in a fraction of a second. What they say and how well they
draft is made up in `pylucebox.testing._weights` and `pylucebox.testing._language`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pylucebox._errors import InvalidArgumentError, StrPath
from pylucebox.testing._gguf_writer import (
    TYPE_NAMES,
    MetaValue,
    QuantizeRows,
    Tensor,
    encode,
    values_per_block,
    write_gguf,
)
from pylucebox.testing._metadata import ARCH, make_metadata
from pylucebox.testing._vocab import byte_vocabulary
from pylucebox.testing._weights import Array, WeightMaker

__all__ = ["K_QUANT_SPEC", "REAL_WIDTHS", "TinyModelFiles", "TinySpec", "write_tiny_model"]

Kind = Literal["mixed", "agree", "random"]
MtpPlace = Literal["in-file", "sidecar", "shared", "none"]

# The grids of these types (ggml-common.h) hold odd numbers only.
_WITHOUT_ZERO = ("iq1_", "iq2_", "iq3_")


@dataclass(frozen=True, kw_only=True)
class TinySpec:
    """What a small model looks like. Equal specs give equal files.

    The sizes have the names of llama.cpp's hyperparameters.

    Attributes
    ----------
    name
        ``general.name`` of the files.
    seed
        Seed of all weights, from 0.
    kind
        How the drafts relate to the trunk, for greedy sampling:

        * ``"mixed"``: after each token the trunk picks one of two likely successors by what came before. The draft
          block sees that one token late, so about three of four first drafts agree, deeper ones less often, and
          every accepted length from 0 to 7 occurs;
        * ``"agree"``: what came before hardly matters and nearly all drafts agree;
        * ``"random"``: the trunk of ``"mixed"`` with a draft block that knows nothing, and nearly no draft agrees.
    mtp
        Where the draft block is: ``"in-file"``; ``"sidecar"``, a file of its own with embedding and LM head;
        ``"shared"``, a sidecar that borrows both from the model; ``"none"``.
    weight_type
        ggml type of the matrices. As upstream's converter has it, tensors of one dimension, norms, ``ffn_gate_inp``
        and ``ssm_conv1d`` stay f32, and a matrix whose rows are no whole number of blocks becomes f16. So does
        ``nextn.eh_proj`` where the type cannot hold its zeros: no draft would agree.
    vocab_multiple
        The vocabulary (256 bytes, 7 special tokens) is filled up with unused tokens to a multiple of this.
    n_ctx_train
        Context length the file states.
    n_embd
        Width of a stream, a multiple of 32.
    n_layer
        Blocks of the trunk.
    full_attention_interval
        Every so many blocks one has full attention, the others a gated delta net.
    hc_count, hc_low_rank
        Hyper-connections: number of streams, rank of a mixer.
    n_head, n_head_kv, head_dim, n_rot
        Attention: query heads, key heads, their width, how much of it is rotated (a multiple of 4).
    indexer_n_head, indexer_head_dim, indexer_top_k, compress_ratio
        Index of the attention: query heads, width, tokens kept, tokens per pooled key. Attention is sparse from
        ``indexer_top_k + compress_ratio`` tokens on.
    ssm_d_state, ssm_n_group, ssm_dt_rank, ssm_d_conv
        Gated delta net: width of a head, key heads, value heads, taps of the convolution.
    n_expert, n_expert_used, n_ff_exp, n_ff_shexp
        Experts: number, how many a token uses, their width, width of the shared one.
    ple_layer
        Block with the n-gram embedding, one with a gated delta net; None for a model without.
    ple_ngram_size, ple_heads_per_ngram, ple_conv_kernel
        n-gram embedding: longest n-gram, table rows per n-gram length, taps of the convolution.
    ple_rows_per_head
        Rows of the first head's part of the table; each further head has two more.
    """

    name: str = "tiny"
    seed: int = 0
    kind: Kind = "mixed"
    mtp: MtpPlace = "in-file"
    weight_type: str = "f32"
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
        """Refuse what the loader would refuse with less to go by.

        Raises
        ------
        InvalidArgumentError
            The sizes do not fit together or a choice is unknown.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < 1 and field.name not in ("seed", "ple_layer"):
                raise InvalidArgumentError(argument=field.name, value=value, allowed="1 or more")
        kinds, places = get_args(Kind), get_args(MtpPlace)
        n_rot_max = min(self.head_dim, self.indexer_head_dim // 2)
        linear = [layer for layer in range(self.n_layer) if not self.is_full_attention(layer)]
        for argument, fits, allowed in (
            ("seed", self.seed >= 0, "0 or more"),
            ("kind", self.kind in kinds, f"one of {', '.join(kinds)}"),
            ("mtp", self.mtp in places, f"one of {', '.join(places)}"),
            ("weight_type", self.weight_type in TYPE_NAMES, f"one of {', '.join(TYPE_NAMES)}"),
            ("n_layer", self.n_layer >= self.full_attention_interval, "full_attention_interval or more"),
            ("full_attention_interval", self.full_attention_interval > 1, "2 or more"),
            ("n_embd", self.n_embd % 32 == 0, "a multiple of 32"),
            ("hc_count", self.hc_count > 1, "2 or more"),
            ("n_head", self.n_head % self.n_head_kv == 0, f"a multiple of n_head_kv, {self.n_head_kv}"),
            ("n_rot", self.n_rot % 4 == 0 and self.n_rot <= n_rot_max, f"a multiple of 4 up to {n_rot_max}"),
            ("compress_ratio", self.compress_ratio > 1, "2 or more"),
            ("indexer_top_k", self.indexer_top_k % self.compress_ratio == 0, "a multiple of compress_ratio"),
            ("ssm_dt_rank", self.ssm_dt_rank % self.ssm_n_group == 0, "a multiple of ssm_n_group"),
            ("n_expert_used", self.n_expert_used <= self.n_expert, f"1 to {self.n_expert}"),
            ("ple_layer", self.ple_layer is None or self.ple_layer in linear, f"None or one of {linear}"),
            ("ple_ngram_size", self.ple_ngram_size > 1, "2 or more"),
            (
                "ple_heads_per_ngram",
                self.n_embd % max(self.ple_n_heads, 1) == 0,
                "a number of heads that divides n_embd",
            ),
        ):
            if not fits:
                raise InvalidArgumentError(argument=argument, value=getattr(self, argument), allowed=allowed)

    @property
    def ssm_d_inner(self) -> int:
        """Width of all values of a gated delta net."""
        return self.ssm_d_state * self.ssm_dt_rank

    @property
    def ple_n_heads(self) -> int:
        """Rows of the n-gram table that one token gathers."""
        return (self.ple_ngram_size - 1) * self.ple_heads_per_ngram

    @property
    def ple_head_dim(self) -> int:
        """Width of a row of the n-gram table."""
        return self.n_embd // self.ple_n_heads

    @property
    def ple_head_rows(self) -> tuple[int, ...]:
        """Rows of each head's part of the n-gram table."""
        return tuple(self.ple_rows_per_head + 2 * head for head in range(self.ple_n_heads))

    def is_full_attention(self, layer: int) -> bool:
        """Tell whether a block has full attention, as the draft block at index `n_layer` has."""
        return layer >= self.n_layer or (layer + 1) % self.full_attention_interval == 0


K_QUANT_SPEC = TinySpec(n_embd=256, hc_low_rank=256, n_head=4, ssm_dt_rank=8, n_expert=4, n_ff_exp=256, n_ff_shexp=256)
"""Rows of 256 in every matrix but the n-gram table and the n-gram convolution, so that any tensor type fits.

Use it as ``dataclasses.replace(K_QUANT_SPEC, weight_type="q4_K")``."""

REAL_WIDTHS = TinySpec(
    name="real widths",
    vocab_multiple=248_320,
    n_embd=2560,
    hc_low_rank=320,
    n_head=24,
    n_head_kv=2,
    head_dim=256,
    n_rot=64,
    indexer_n_head=4,
    indexer_head_dim=128,
    indexer_top_k=2048,
    ssm_d_state=128,
    ssm_n_group=16,
    ssm_dt_rank=48,
    n_expert=512,
    n_expert_used=10,
    n_ff_exp=640,
    n_ff_shexp=640,
    ple_heads_per_ngram=8,
)
"""The widths of Qwen3.8-Flash-Next's config.json, for measurements; far from small with all its experts and tokens.

The n-gram table is left small, since a row of it is read whatever its size is."""


@dataclass(frozen=True)
class TinyModelFiles:
    """Files of a written model.

    Attributes
    ----------
    model
        The model; it has the draft block inside if the spec says ``mtp="in-file"``.
    sidecar
        The draft block's own file, or None.
    """

    model: Path
    sidecar: Path | None


def write_tiny_model(
    path: StrPath,
    spec: TinySpec | None = None,
    *,
    extra_metadata: Mapping[str, MetaValue] | None = None,
    quantize: QuantizeRows | None = None,
) -> TinyModelFiles:
    """Write a small random model, in place of files that are there.

    Parameters
    ----------
    path
        File of the model. A sidecar goes to ``MTP/mtp-<name of the file>`` beside it. Directories are made as needed.
    spec
        What to write; None takes ``TinySpec()``.
    extra_metadata
        Keys that every written file has besides its own, or in place of those of the same name.
    quantize
        Quantiser for types other than f32, f16, bf16 and q8_0; None takes that of the native library.

    Raises
    ------
    InvalidArgumentError
        GGUF cannot hold a value of `extra_metadata`, or the quantiser failed.
    OSError
        A file cannot be written.

    Examples
    --------
    >>> files = write_tiny_model(tmp / "tiny.gguf", TinySpec(mtp="sidecar", weight_type="q8_0"))
    >>> files.sidecar.name
    'mtp-tiny.gguf'
    """
    path = Path(path)
    spec = spec or TinySpec()
    vocab = byte_vocabulary(spec.vocab_multiple)
    maker = WeightMaker(spec, vocab)

    def write(target: Path, tensors: Mapping[str, Array], own: Mapping[str, MetaValue]) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        stored = [_store(name, values, spec.weight_type, quantize) for name, values in tensors.items()]
        write_gguf(target, {**own, **(extra_metadata or {})}, stored)

    trunk = maker.trunk()
    in_file = spec.mtp == "in-file"
    metadata = make_metadata(spec, vocab, has_trunk=True, has_draft_block=in_file)
    write(path, trunk | maker.draft_block() if in_file else trunk, metadata)
    if spec.mtp not in ("sidecar", "shared"):
        return TinyModelFiles(path, None)

    sidecar = path.parent / "MTP" / f"mtp-{path.name}"
    metadata = make_metadata(spec, vocab, has_trunk=False, has_draft_block=True)
    if spec.mtp == "shared":
        write(sidecar, maker.draft_block(), {**metadata, f"{ARCH}.nextn_shared_target_tensors": True})
    else:
        tables = {name: trunk[name] for name in ("token_embd.weight", "output.weight")}
        write(sidecar, tables | maker.draft_block(), metadata)
    return TinyModelFiles(path, sidecar)


def stored_type(name: str, shape: tuple[int, ...], weight_type: str) -> str:
    """Return the type that upstream's converter would give a tensor; `shape` is in numpy order, rows first."""
    kept = ("ffn_gate_inp.", "ffn_gate_inp_shexp.", "ssm_conv1d.")
    if len(shape) == 1 or name.endswith("_norm.weight") or any(part in name for part in kept):
        return "f32"
    if shape[-1] % values_per_block(weight_type) or (
        "nextn.eh_proj." in name and weight_type.startswith(_WITHOUT_ZERO)
    ):
        return "f16"
    return weight_type


def _store(name: str, values: Array, weight_type: str, quantize: QuantizeRows | None) -> Tensor:
    """Encode a tensor in the type that upstream's converter would give it."""
    type_name = stored_type(name, values.shape, weight_type)
    return Tensor(name, values.shape, type_name, encode(values, type_name, quantize))
