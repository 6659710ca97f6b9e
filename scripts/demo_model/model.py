"""The demo model in PyTorch: a qwen4exp trunk with its multi-token prediction (MTP) block.

Parameter names are the real checkpoint's (``model.language_model.*``, ``lm_head.weight``, ``mtp.*``), so
``state_dict()`` is the checkpoint up to the shards of the n-gram table. The trunk computes what transformers does, the
MTP block what sglang does:

* entry i of the MTP block joins token i + 1 with the trunk's residual h_i, at rotary position i;
* its input is ``fc_embedding(norm(embed(token)))``, added to ``fc_hidden(norm(h))`` for each residual stream, where the
  norm of h is one RMS over all streams;
* one attention layer with its own hyper-connections, indexer and experts follows, without a per-layer embedding;
* ``lm_head`` on the block's own mixer predicts token i + 2, and a chain goes on with the block's own residual.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .config import ModelConfig
from .delta_net import GatedDeltaNet
from .layers import GatedResidual, Linear, MoE, RMSNorm, combine, rotary_tables
from .ngram_embedding import PerLayerEmbedding
from .sparse_attention import Attention, Projections


class LayerOutput(NamedTuple):
    """What a layer returns: residual, load-balance loss, and for attention layers indexer loss, mask, projections."""

    wide: Tensor
    balance: Tensor
    indexer_loss: Tensor | None
    mask: Tensor | None
    qkv: Projections | None


class TrunkOutput(NamedTuple):
    """Input of the head ``(batch, tokens, hidden)``, residual ``(batch, tokens, wide)``, and two summed losses."""

    hidden: Tensor
    wide: Tensor
    balance: Tensor | float
    indexer_loss: Tensor | float


class Layer(nn.Module):
    """A decoder layer: attention or gated delta net, then experts, both behind hyper-connections."""

    def __init__(self, config: ModelConfig, *, attention: bool, ple_index: int | None = None) -> None:
        super().__init__()
        if attention:
            self.self_attn = Attention(config)
        else:
            self.linear_attn = GatedDeltaNet(config)
        self.is_attention = attention
        self.mlp = MoE(config)
        self.ple = PerLayerEmbedding(config, ple_index) if ple_index is not None else None
        self.attn_hyper_connection, self.mlp_hyper_connection = GatedResidual(config), GatedResidual(config)

    def feed_forward(self, wide: Tensor) -> tuple[Tensor, Tensor]:
        """Second half of the layer: the new residual and the load-balance loss."""
        h, gains = self.mlp_hyper_connection(wide)
        h, balance = self.mlp(h)
        return combine(wide, h, gains), balance

    def forward(
        self,
        wide: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        ids: Tensor | None = None,
        sparse: bool = True,
        loss_rows: int = 0,
    ) -> LayerOutput:
        """Run the layer on ``(batch, tokens, wide)``; `ids` is needed where there is a per-layer embedding."""
        if self.ple is not None:
            wide = wide + self.ple(wide, ids)
        h, gains = self.attn_hyper_connection(wide)
        mask = qkv = indexer_loss = None
        if self.is_attention:
            h, mask, qkv, indexer_loss = self.self_attn(h, cos, sin, sparse=sparse, loss_rows=loss_rows)
        else:
            h = self.linear_attn(h)
        wide, balance = self.feed_forward(combine(wide, h, gains))
        return LayerOutput(wide, balance, indexer_loss, mask, qkv)


class _LanguageModel(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        ple = {layer - 1: index for index, layer in enumerate(config.ple_layer_ids)}
        self.layers = nn.ModuleList(
            Layer(config, attention=config.is_attention(i), ple_index=ple.get(i))
            for i in range(config.num_hidden_layers)
        )
        self.hyper_connection_mixer = GatedResidual(config, injects=False)


class _Inner(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.language_model = _LanguageModel(config)


def _shift(x: Tensor, n: int) -> Tensor:
    """Move ``(..., tokens, size)`` by n tokens to the right, filling with zeros."""
    return F.pad(x, (0, 0, n, 0))[..., : x.shape[-2], :]


class MtpBlock(nn.Module):
    """The multi-token prediction block; it shares the trunk's embedding and head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.fc_embedding = Linear(config.hidden_size, config.hidden_size)
        self.fc_hidden = Linear(config.hidden_size, config.hidden_size)
        self.pre_fc_norm_embedding = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.pre_fc_norm_hidden = RMSNorm(config.wide_size, config.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(config, attention=True)])
        self.hyper_connection_mixer = GatedResidual(config, injects=False)

    def normalise_streams(self, separately: bool) -> None:
        """Normalise each residual stream by itself, which the model was not trained for, or all together."""
        self.pre_fc_norm_hidden.group = self.config.hidden_size if separately else None

    def fuse(self, embedding: Tensor, wide: Tensor) -> Tensor:
        """Join token embeddings ``(..., hidden)`` and residuals ``(..., wide)`` to the block's own residual."""
        e = self.fc_embedding(self.pre_fc_norm_embedding(embedding))
        h = self.fc_hidden(self.pre_fc_norm_hidden(wide).unflatten(-1, (self.config.hc_count, -1)))
        return (e.unsqueeze(-2) + h).flatten(-2)

    def first(
        self, embedding: Tensor, wide: Tensor, cos: Tensor, sin: Tensor, *, sparse: bool = True, loss_rows: int = 0
    ) -> LayerOutput:
        """Depth 1 for all positions: entry t joins the embedding of token t + 1 with the trunk's residual at t."""
        return self.layers[0](self.fuse(embedding, wide), cos, sin, sparse=sparse, loss_rows=loss_rows)

    def chained(
        self,
        embedding: Tensor,
        wide: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        first: LayerOutput,
        previous: list[tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """One depth beyond the first, for all positions at once.

        A chain of depth k that ends at entry t started at entry t - k + 1. It sees the depth-1 entries up to its
        start, with the selection made there, and then its own entries of the depths between.

        Parameters
        ----------
        embedding
            As in `first`: the text itself stands for the drafted tokens.
        wide
            The depth before's residual, ``(batch, tokens, wide)``; entry t takes the one of entry t - 1.
        cos, sin
            Rotary tables.
        first
            What `first` returned.
        previous
            Keys and values of the depths 2 to k - 1.

        Returns
        -------
        tuple
            This depth's residual, its keys and values, and the load-balance loss.
        """
        layer, attention = self.layers[0], self.layers[0].self_attn
        depth = len(previous) + 2
        x = self.fuse(embedding, _shift(wide, 1))
        h, gains = layer.attn_hyper_connection(x)
        own = attention.project(h, cos, sin)
        scale = self.config.head_dim**-0.5
        mask = F.pad(first.mask, (0, 0, depth - 1, 0))[:, : first.mask.shape[1]]
        far = (own.q @ first.qkv.k.mT).masked_fill(~mask[:, None], -30000.0).float() * scale
        keys = [_shift(k, depth - 1 - i) for i, (k, _) in enumerate(previous, 1)] + [own.k]
        values = [_shift(v, depth - 1 - i) for i, (_, v) in enumerate(previous, 1)] + [own.v]
        near = torch.stack([(own.q.float() * k.float()).sum(-1) for k in keys], -1) * scale
        # one softmax over both parts
        top = torch.maximum(far.amax(-1), near.amax(-1))[..., None]
        far, near = (far - top).exp(), (near - top).exp()
        total = far.sum(-1, keepdim=True) + near.sum(-1, keepdim=True)
        out = (far / total).to(own.v.dtype) @ first.qkv.v
        near = (near / total).to(own.v.dtype)
        for i, value in enumerate(values):
            out = out + near[..., i, None] * value
        out = attention.o_proj(out.transpose(1, 2).flatten(-2) * torch.sigmoid(own.gate))
        x, balance = layer.feed_forward(combine(x, out, gains))
        return x, (own.k, own.v), balance


class Qwen4Exp(nn.Module):
    """Trunk, head and MTP block.

    Attributes
    ----------
    dtype
        Type of the activations; the weights stay float32.
    """

    dtype = torch.float32

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model, self.mtp = _Inner(config), MtpBlock(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self._initialise()

    def _initialise(self) -> None:
        residual_std = 0.02 / math.sqrt(2 * self.config.num_hidden_layers)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 or (parameter.ndim == 3 and "experts" in name):
                nn.init.normal_(parameter, std=0.02)
            if name.endswith("ple.conv1d.weight"):
                nn.init.zeros_(parameter)
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")):
                nn.init.normal_(parameter, std=residual_std)
            if "indexer.index_qk_proj" in name:
                nn.init.normal_(parameter, std=0.06)
        nn.init.normal_(self.lm_head.weight, std=0.02)

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings ``(batch, tokens, hidden)``."""
        return self.model.language_model.embed_tokens(ids).to(self.dtype)

    def trunk(self, ids: Tensor, *, sparse: bool = True, loss_rows: int = 0) -> TrunkOutput:
        """Run the trunk on ``(batch, tokens)``.

        Parameters
        ----------
        ids
            Token ids.
        sparse
            Sparse attention; False attends to everything.
        loss_rows
            Sequences of the batch that the indexers' loss is computed on.

        Returns
        -------
        TrunkOutput
            What the head and the MTP block take, and the losses summed over the layers.
        """
        language_model = self.model.language_model
        wide = self.embed(ids).repeat(1, 1, self.config.hc_count)
        cos, sin = rotary_tables(torch.arange(ids.shape[1], device=ids.device), self.config)
        balance = indexer_loss = 0.0
        for layer in language_model.layers:
            out = layer(wide, cos, sin, ids=ids, sparse=sparse, loss_rows=loss_rows)
            wide, balance = out.wide, balance + out.balance
            if out.indexer_loss is not None:
                indexer_loss = indexer_loss + out.indexer_loss
        return TrunkOutput(language_model.hyper_connection_mixer(wide), wide, balance, indexer_loss)
