"""Small modules shared by the trunk and the MTP block: norms, hyper-connections, rotary embedding, experts.

Attribute names are the real checkpoint's, so ``state_dict()`` needs no renaming. Tensors are ``(batch, tokens, ...)``.
"""

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from torch import Tensor, nn

from .config import ModelConfig


class Linear(nn.Module):
    """A projection without bias: float32 weight, computed in the type of the activations."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in))

    def forward(self, x: Tensor) -> Tensor:
        """Project the last axis."""
        return F.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    """Root mean square norm in float32 with the gain ``1 + weight``.

    Parameters
    ----------
    size
        Values per token.
    eps
        Added to the mean square.
    group
        Normalise groups of this many values on their own; None takes all of them together.
    """

    def __init__(self, size: int, eps: float, group: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.group, self.eps = group, eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        y = x.float()
        if self.group:
            y = y.unflatten(-1, (-1, self.group))
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y.reshape(x.shape) * (1.0 + self.weight.float())).to(x.dtype)


class GatedResidual(nn.Module):
    """Hyper-connections: read one block's input from the residual streams, and say how its output goes back.

    Parameters
    ----------
    config
        Sizes of the model.
    injects
        False for the mixer in front of the head, which writes nothing back.
    """

    def __init__(self, config: ModelConfig, *, injects: bool = True) -> None:
        super().__init__()
        self.config, wide = config, config.wide_size
        self.hc_norm = RMSNorm(wide, config.rms_norm_eps, config.hidden_size)
        self.input_mix_weight_down = Linear(wide, config.hc_lowrank)
        self.input_mix_weight_up = Linear(config.hc_lowrank, wide)
        self.block_inject_weight = Linear(wide, config.hc_count) if injects else None

    def forward(self, wide: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Mix the streams ``(..., hc_count * hidden)`` to ``(..., hidden)``; with `injects` also give the gains."""
        count = self.config.hc_count
        normed = self.hc_norm(wide)
        low = F.silu(self.input_mix_weight_down(normed) / count)
        gate = torch.sigmoid(self.input_mix_weight_up(low))
        mixed = (gate * normed).unflatten(-1, (count, self.config.hidden_size)).mean(-2)
        if self.block_inject_weight is None:
            return mixed
        return mixed, 2 * torch.sigmoid(self.block_inject_weight(normed) / count)


def combine(wide: Tensor, block_output: Tensor, gains: Tensor) -> Tensor:
    """Add a block's output to every stream of the residual, scaled per stream.

    Parameters
    ----------
    wide
        The residual before its norm, ``(..., hc_count * hidden)``.
    block_output
        ``(..., hidden)``.
    gains
        ``(..., hc_count)``.

    Returns
    -------
    Tensor
        The new residual.
    """
    update = block_output.unsqueeze(-2) * gains.unsqueeze(-1).to(block_output.dtype)
    return wide + update.flatten(-2).to(wide.dtype)


def rotary_tables(positions: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles; text only, where the three M-RoPE axes agree.

    Parameters
    ----------
    positions
        ``(tokens,)``.
    config
        Sizes of the model.

    Returns
    -------
    tuple of Tensor
        Two tensors ``(tokens, rotary dimensions)``.
    """
    size = int(config.head_dim * config.partial_rotary_factor)
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device=positions.device) / size
    angles = positions.float()[..., None] * (1.0 / config.rope_theta**exponents)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first dimensions of ``(batch, tokens, heads, head_dim)`` by the angles of `rotary_tables`."""
    size = cos.shape[-1]
    head, rest = x[..., :size].float(), x[..., size:]
    first, second = head[..., : size // 2], head[..., size // 2 :]
    head = head * cos[:, None, :] + torch.cat((-second, first), -1) * sin[:, None, :]
    return torch.cat((head.to(x.dtype), rest), -1)


class _Experts(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        n, size = config.num_experts, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(n, 2 * size, config.hidden_size))
        self.down_proj = nn.Parameter(torch.empty(n, config.hidden_size, size))


class _SharedExpert(nn.Module):
    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = Linear(hidden, size), Linear(hidden, size)
        self.down_proj = Linear(size, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Router(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.num_experts, config.hidden_size))


class MoE(nn.Module):
    """Routed experts with renormalised softmax weights, and one shared expert behind a scalar gate."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.gate, self.experts = _Router(config), _Experts(config)
        self.shared_expert = _SharedExpert(config.hidden_size, config.shared_expert_intermediate_size)
        self.shared_expert_gate = Linear(config.hidden_size, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the load-balance loss (1 when all experts are used alike)."""
        config = self.config
        n, size = config.num_experts, config.moe_intermediate_size
        probs = F.linear(x.float(), self.gate.weight).softmax(-1)
        top, index = probs.topk(config.num_experts_per_tok, -1)
        weights = torch.zeros_like(probs).scatter(-1, index, top / top.sum(-1, keepdim=True))
        # every expert is computed and the unused ones are weighted 0: cheapest at this size
        h = F.linear(x, self.experts.gate_up_proj.flatten(0, 1).to(x.dtype)).unflatten(-1, (n, 2, size))
        h = F.silu(h[..., 0, :]) * h[..., 1, :] * weights[..., None].to(h.dtype)
        y = F.linear(h.flatten(-2), self.experts.down_proj.permute(1, 0, 2).flatten(1).to(x.dtype))
        y = y + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        used = (weights > 0).float().flatten(0, -2).mean(0) / config.num_experts_per_tok
        balance = n * (used * probs.flatten(0, -2).mean(0)).sum()
        return y, balance
