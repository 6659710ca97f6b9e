"""Metadata of the small models: the keys that llama.cpp asks for (``load_arch_hparams`` of qwen4exp)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pylucebox.testing._gguf_writer import MetaValue
from pylucebox.testing._vocab import CHAT_TEMPLATE, Vocabulary

if TYPE_CHECKING:
    from pylucebox.testing._tiny import TinySpec

ARCH = "qwen4exp"


def make_metadata(spec: TinySpec, vocab: Vocabulary, *, has_trunk: bool, has_draft_block: bool) -> dict[str, MetaValue]:
    """Return the metadata of a file with the trunk, the draft block or both."""
    n_block = spec.n_layer + has_draft_block
    ratios = [spec.compress_ratio if spec.is_full_attention(layer) else 0 for layer in range(n_block)]
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
        "rope.dimension_sections": _rope_sections(spec.n_rot),
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
    if has_draft_block:
        values["nextn_predict_layers"] = 1
    if has_trunk and spec.ple_layer is not None:
        values |= _ngram_embedding(spec, spec.ple_layer, vocab)
    return {
        "general.architecture": ARCH,
        "general.name": spec.name,
        **{f"{ARCH}.{key}": value for key, value in values.items()},
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


def _rope_sections(n_rot: int) -> MetaValue:
    # pairs of channels for time, height and width in the proportion of the real model (11, 11, 10 of 32)
    n_pair = n_rot // 2
    first = -(-n_pair // 3)
    return np.asarray([first, first, n_pair - 2 * first, 0], np.int32)


def _ngram_embedding(spec: TinySpec, layer: int, vocab: Vocabulary) -> dict[str, MetaValue]:
    rows = np.asarray(spec.ple_head_rows, np.uint64)
    # 45 bits and odd, like those of the real model, so that arithmetic of less than 64 bits shows
    multipliers = np.random.default_rng([spec.seed, layer]).integers(1 << 44, 1 << 45, spec.ple_ngram_size, np.uint64)
    return {
        "embedding_length_per_layer_input": spec.ple_head_dim,
        "ple.layers": np.asarray([layer], np.int32),
        "ple.ngram_size": spec.ple_ngram_size,
        "ple.heads_per_ngram": spec.ple_heads_per_ngram,
        "ple.conv_kernel": spec.ple_conv_kernel,
        "ple.eos_token_id": vocab.id_of("<|endoftext|>"),
        "ple.layer_multipliers": multipliers | np.uint64(1),
        "ple.head_offsets": np.cumsum(rows) - rows,
        "ple.head_vocab_sizes": rows,
    }
