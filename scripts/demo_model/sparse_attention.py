"""Gated attention with the sparse-attention indexer (QSA): a query sees the best blocks of keys, and the tail."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .config import ModelConfig
from .layers import Linear, RMSNorm, rotate

HINGE_WEIGHT = 0.05


def causal_mask(n_tokens: int, device: torch.device | None = None) -> Tensor:
    """Boolean ``(n_tokens, n_tokens)`` mask in which a query sees itself and what comes before."""
    return torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=device).tril()


class Indexer(nn.Module):
    """Scores blocks of ``indexer_compress_ratio`` consecutive keys for every query."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.index_qk_proj = Linear(config.hidden_size, (config.indexer_n_heads + 1) * config.indexer_head_dim)
        self.q_layernorm = RMSNorm(config.indexer_head_dim, config.rms_norm_eps)
        self.k_layernorm = RMSNorm(config.indexer_head_dim, config.rms_norm_eps)

    def scores(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Score every complete block.

        Parameters
        ----------
        x
            The attention layer's input, ``(batch, tokens, hidden)``.
        cos, sin
            Rotary tables.

        Returns
        -------
        tuple of Tensor
            Scores ``(batch, tokens, blocks)``, and the dot products behind them ``(batch, heads, tokens, blocks)``.
        """
        config = self.config
        ratio = config.indexer_compress_ratio
        n_blocks = x.shape[1] // ratio
        complete = n_blocks * ratio
        size = config.indexer_n_heads * config.indexer_head_dim
        qk = self.index_qk_proj(x)
        q = rotate(self.q_layernorm(qk[..., :size].unflatten(-1, (config.indexer_n_heads, -1))), cos, sin)
        k = qk[..., size:]
        k = k[:, :complete].unflatten(1, (n_blocks, ratio)).float().mean(2).to(k.dtype)
        # a block's key is rotated to the block's first position
        k = rotate(self.k_layernorm(k)[:, :, None], cos[:complete:ratio], sin[:complete:ratio])[:, :, 0]
        dots = q.float().transpose(1, 2) @ k.float()[:, None].mT
        return torch.relu(dots).sum(1) / math.sqrt(config.indexer_head_dim), dots

    def visible(self, n_tokens: int, device: torch.device) -> Tensor:
        """Boolean ``(tokens, blocks)``: the blocks that are complete when a query comes."""
        ratio = self.config.indexer_compress_ratio
        queries = torch.arange(n_tokens, device=device)[:, None]
        return (torch.arange(n_tokens // ratio, device=device)[None] + 1) * ratio <= queries + 1

    def mask(self, scores: Tensor) -> Tensor:
        """Turn scores into a boolean ``(batch, tokens, tokens)`` mask: the best blocks and the incomplete tail."""
        config, (n_batch, n_tokens, n_blocks) = self.config, scores.shape
        ratio, device = config.indexer_compress_ratio, scores.device
        visible = self.visible(n_tokens, device)
        selected = torch.zeros(n_batch, n_tokens, n_blocks, dtype=torch.bool, device=device)
        n_top = min(config.indexer_budget // ratio, n_blocks)
        if n_top:
            index = scores.masked_fill(~visible, float("-inf")).topk(n_top, -1).indices
            selected = selected.scatter(-1, index, True) & visible
        cells = F.pad(selected.repeat_interleave(ratio, -1), (0, n_tokens - n_blocks * ratio))
        token = torch.arange(n_tokens, device=device)
        tail = (token[None] >= ((token + 1) // ratio * ratio)[:, None]) & (token[None] <= token[:, None])
        return cells | tail


@dataclass
class Projections:
    """Queries, keys and values ``(batch, heads, tokens, head_dim)``, and the output gate ``(batch, tokens, ...)``."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor


class Attention(nn.Module):
    """Grouped-query attention with norms on queries and keys, an output gate, and the indexer's mask."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.q_proj = Linear(config.hidden_size, config.num_attention_heads * config.head_dim * 2)
        self.k_proj = Linear(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.v_proj = Linear(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.o_proj = Linear(config.num_attention_heads * config.head_dim, config.hidden_size)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.indexer = Indexer(config)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> Projections:
        """Project, normalise and rotate; keys and values are repeated for the query heads that share them."""
        config = self.config
        q, gate = self.q_proj(x).unflatten(-1, (config.num_attention_heads, -1)).chunk(2, -1)
        q = rotate(self.q_norm(q), cos, sin).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).unflatten(-1, (config.num_key_value_heads, -1)))
        k = rotate(k, cos, sin).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (config.num_key_value_heads, -1)).transpose(1, 2)
        repeat = config.num_attention_heads // config.num_key_value_heads
        k, v = (t.repeat_interleave(repeat, 1).to(q.dtype) for t in (k, v))
        return Projections(q, k, v, gate.flatten(-2))

    def mask(self, x: Tensor, cos: Tensor, sin: Tensor, *, sparse: bool) -> Tensor:
        """Boolean ``(batch, tokens, tokens)``: the indexer's choice, or everything visible if not `sparse`."""
        if sparse:
            return self.indexer.mask(self.indexer.scores(x, cos, sin)[0])
        n_batch, n_tokens, _ = x.shape
        return causal_mask(n_tokens, x.device).expand(n_batch, n_tokens, n_tokens)

    def attend(self, qkv: Projections, mask: Tensor) -> Tensor:
        """Attend under a mask, gate and project: ``(batch, tokens, hidden)``."""
        out = F.scaled_dot_product_attention(qkv.q, qkv.k, qkv.v, attn_mask=mask[:, None])
        return self.o_proj(out.transpose(1, 2).flatten(-2) * torch.sigmoid(qkv.gate))

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, *, sparse: bool = True, loss_rows: int = 0
    ) -> tuple[Tensor, Tensor, Projections, Tensor]:
        """Run the layer.

        Parameters
        ----------
        x
            ``(batch, tokens, hidden)``.
        cos, sin
            Rotary tables.
        sparse
            Let the indexer choose; False attends to everything.
        loss_rows
            Sequences of the batch that the indexer's loss is computed on.

        Returns
        -------
        tuple
            Output, mask, projections, and the indexer's loss (0 without `loss_rows`).
        """
        qkv = self.project(x, cos, sin)
        with torch.no_grad():
            mask = self.mask(x, cos, sin, sparse=sparse)
        loss = x.new_zeros((), dtype=torch.float32)
        if loss_rows:
            rows = slice(0, loss_rows)
            loss = self._indexer_loss(x[rows].detach(), qkv.q[rows].detach(), qkv.k[rows].detach(), cos, sin)
        return self.attend(qkv, mask), mask, qkv, loss

    def _indexer_loss(self, x: Tensor, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """KL from the dense attention's mass per block, and a hinge that keeps the dots positive (no ties at 0)."""
        config, n_tokens = self.config, x.shape[1]
        ratio = config.indexer_compress_ratio
        n_blocks = n_tokens // ratio
        visible = self.indexer.visible(n_tokens, x.device)
        with torch.no_grad():
            dense = (q.float() @ k.float().mT) * config.head_dim**-0.5
            dense = dense.masked_fill(~causal_mask(n_tokens, x.device), float("-inf"))
            mass = dense.softmax(-1).mean(1)[..., : n_blocks * ratio].unflatten(-1, (n_blocks, ratio)).sum(-1)
        mass = mass * visible
        mass = mass / mass.sum(-1, keepdim=True).clamp_min(1e-6)
        scores, dots = self.indexer.scores(x, cos, sin)
        log_q = scores.masked_fill(~visible, -1e9).log_softmax(-1)
        counted = visible.any(-1).float()
        kl = (mass * (mass.clamp_min(1e-9).log() - log_q)).masked_fill(~visible, 0).sum(-1)
        hinge = (F.relu(1.0 - dots).pow(2) * visible).sum() / (visible.sum() * dots.shape[0] * dots.shape[1])
        return (kl * counted).sum() / (counted.sum() * x.shape[0]) + HINGE_WEIGHT * hinge
