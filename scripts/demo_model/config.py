"""Sizes of the demo model and their spelling in a Hugging Face ``config.json``."""

from dataclasses import asdict, dataclass
from typing import Any

END_OF_TEXT, IM_END = 4032, 4034
VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD = 4041, 4042, 4044, 4045
MAX_POSITION = 4096


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model. The field names are those of the real model's ``text_config``."""

    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 8
    full_attention_interval: int = 4
    hc_count: int = 4
    hc_lowrank: int = 32
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    partial_rotary_factor: float = 0.25
    rope_theta: float = 10_000_000.0
    linear_num_key_heads: int = 4
    linear_num_value_heads: int = 8
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    num_experts: int = 16
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 64
    indexer_n_heads: int = 2
    indexer_head_dim: int = 32
    indexer_budget: int = 128
    indexer_compress_ratio: int = 4
    ple_layer_ids: tuple[int, ...] = (2,)  # one-based, as in the real configuration
    ple_embed_dim: int = 256
    ple_conv_kernel_size: int = 4
    ngram_size: int = 3
    heads_per_ngram: int = 4
    ngram_vocab_size_base: int = 5000
    make_ngram_vocab_size_divisible_by: int = 128
    split_ngram_parts: int = 4
    seed: int = 1234
    rms_norm_eps: float = 1e-6
    eos_token_id: int = END_OF_TEXT  # ends the n-grams of the per-layer embedding

    @property
    def wide_size(self) -> int:
        """Values per token of the residual: one ``hidden_size`` for each hyper-connection stream."""
        return self.hc_count * self.hidden_size

    def is_attention(self, layer: int) -> bool:
        """Whether a layer (zero-based) is an attention layer; the others are gated delta nets."""
        return (layer + 1) % self.full_attention_interval == 0


def mrope_sections(config: ModelConfig) -> list[int]:
    """Split the rotary pairs over time, height and width in the real model's proportion, [11, 11, 10] of 32.

    Parameters
    ----------
    config
        Sizes of the model.

    Returns
    -------
    list of int
        Three counts that sum to half the rotary dimensions.
    """
    pairs = int(config.head_dim * config.partial_rotary_factor) // 2
    side = pairs - 5 * pairs // 8
    return [side, side, pairs - 2 * side]


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """Build ``config.json`` in the real model's layout.

    Parameters
    ----------
    config
        Sizes of the model.

    Returns
    -------
    dict
        The configuration of ``Qwen4ExpForConditionalGeneration`` with a nested ``text_config``.
    """
    sizes = asdict(config)
    rope_theta = sizes.pop("rope_theta")
    text = sizes | {
        "model_type": "qwen4_exp_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "indexer_kv_heads": 1,
        "initializer_range": 0.02,
        "layer_types": [
            "full_attention" if config.is_attention(layer) else "linear_attention"
            for layer in range(config.num_hidden_layers)
        ],
        "max_position_embeddings": MAX_POSITION,
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "norm_topk_prob": True,
        "output_gate_type": "sigmoid",
        "output_router_logits": False,
        "pad_token_id": None,
        "ple_layer_ids": list(config.ple_layer_ids),
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": mrope_sections(config),
            "partial_rotary_factor": config.partial_rotary_factor,
            "rope_theta": rope_theta,
            "rope_type": "default",
        },
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": False,
        "use_cache": True,
    }
    # a vision tower belongs to the class; the checkpoint holds none of its weights, so it is as small as can be
    vision = {
        "model_type": "qwen4_exp_vision",
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 1,
        "in_channels": 3,
        "patch_size": 2,
        "spatial_merge_size": 1,
        "temporal_patch_size": 1,
        "out_hidden_size": config.hidden_size,
        "num_position_embeddings": 4,
        "hidden_act": "gelu_pytorch_tanh",
    }
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "dtype": "bfloat16",
        "image_token_id": IMAGE_PAD,
        "video_token_id": VIDEO_PAD,
        "vision_start_token_id": VISION_START,
        "vision_end_token_id": VISION_END,
        "tie_word_embeddings": False,
        "text_config": dict(sorted(text.items())),
        "vision_config": vision,
    }
