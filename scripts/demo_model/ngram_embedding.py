"""Per-layer embedding (PLE): a table of hashed n-grams, read by one layer of the trunk."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .config import ModelConfig
from .delta_net import causal_conv
from .layers import Linear, RMSNorm

MASK64 = (1 << 64) - 1
GOLDEN64 = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, the increment of splitmix64


def splitmix64(value: int) -> int:
    """One output of the splitmix64 generator (Steele, Lea, Flood 2014) for a 64-bit state."""
    value = (value + GOLDEN64) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return (value ^ (value >> 31)) & MASK64


def layer_multipliers(config: ModelConfig, index: int) -> list[int]:
    """Odd hash multipliers, one per n-gram place, small enough that token times multiplier fits into int64."""
    half = max(1, ((1 << 63) - 1) // config.vocab_size // 2)
    base = config.seed + 10007 * index
    return [2 * (splitmix64((base + GOLDEN64 * (i + 1)) & MASK64) % half) + 1 for i in range(config.ngram_size)]


def next_prime(n: int) -> int:
    """Return the smallest prime above `n`."""
    n += 1
    while any(n % d == 0 for d in range(2, math.isqrt(n) + 1)):
        n += 1
    return n


class NGramTable(nn.Module):
    """Rows of a table, chosen by the hashes of the last tokens; several heads per n-gram size.

    Parameters
    ----------
    config
        Sizes of the model.
    index
        Which of the layers with such a table this is, from 0.
    """

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.config = config
        heads = (config.ngram_size - 1) * config.heads_per_ngram
        primes = [next_prime(config.ngram_vocab_size_base - 1)]
        while len(primes) < (index + 1) * heads:
            primes.append(next_prime(primes[-1]))
        sizes = primes[index * heads :]
        offsets = [sum(sizes[:i]) for i in range(heads)]
        self.register_buffer("layer_multipliers", torch.tensor(layer_multipliers(config, index), dtype=torch.long))
        self.register_buffer("ngram_heads_vocab_sizes", torch.tensor(sizes, dtype=torch.long))
        self.register_buffer("ngram_heads_offsets", torch.tensor(offsets, dtype=torch.long))
        multiple = config.make_ngram_vocab_size_divisible_by
        rows = (sum(sizes) + multiple - 1) // multiple * multiple
        self.ngram_embedding = nn.Embedding(rows, config.ple_embed_dim // heads)

    def rows(self, ids: Tensor) -> Tensor:
        """Table rows ``(batch, tokens, heads)``. An end-of-text token hides itself and what lies before it."""
        config, n_tokens = self.config, ids.shape[1]
        context, cut, out = [ids], torch.zeros_like(ids, dtype=torch.bool), []
        for shift in range(1, config.ngram_size):
            previous = F.pad(ids, (shift, 0), value=config.eos_token_id)[:, :n_tokens]
            cut = cut | (previous == config.eos_token_id)
            context.append(torch.where(cut, torch.full_like(previous, config.eos_token_id), previous))
        for n in range(2, config.ngram_size + 1):
            mixed = context[0] * self.layer_multipliers[0]
            for place in range(1, n):
                mixed = mixed ^ (context[place] * self.layer_multipliers[place])
            heads = slice((n - 2) * config.heads_per_ngram, (n - 1) * config.heads_per_ngram)
            row = torch.remainder(mixed[..., None], self.ngram_heads_vocab_sizes[heads])
            out.append(row + self.ngram_heads_offsets[heads])
        return torch.cat(out, -1)

    def forward(self, ids: Tensor) -> Tensor:
        """Embed ``(batch, tokens)`` as ``(batch, tokens, ple_embed_dim)``."""
        return self.ngram_embedding(self.rows(ids)).flatten(-2)


class PerLayerEmbedding(nn.Module):
    """Adds the table's rows to the residual, gated by how well they fit it, with a short dilated convolution."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.config, wide = config, config.wide_size
        self.ple_embedding = NGramTable(config, index)
        self.key_proj = Linear(config.ple_embed_dim, wide)
        self.value_proj = Linear(config.ple_embed_dim, config.hidden_size)
        self.norm_key, self.norm_query, self.norm_conv = (
            RMSNorm(wide, config.rms_norm_eps, config.hidden_size) for _ in range(3)
        )
        taps = config.ple_conv_kernel_size
        self.conv1d = nn.Conv1d(wide, wide, taps, groups=wide, dilation=config.ngram_size, bias=False)

    def forward(self, wide: Tensor, ids: Tensor) -> Tensor:
        """Give what is added to the residual, shaped like `wide`."""
        config = self.config
        rows = self.ple_embedding(ids).to(wide.dtype)
        key = self.norm_key(self.key_proj(rows)).unflatten(-1, (config.hc_count, -1))
        query = self.norm_query(wide).unflatten(-1, (config.hc_count, -1))
        fit = (key.float() * query.float()).sum(-1, keepdim=True) / math.sqrt(config.hidden_size)
        fit = fit.abs().clamp_min(1e-6).sqrt() * fit.sign()
        value = (torch.sigmoid(fit) * self.value_proj(rows).unsqueeze(-2)).flatten(-2).to(wide.dtype)
        return value + F.silu(causal_conv(self.norm_conv(value), self.conv1d.weight, config.ngram_size))
