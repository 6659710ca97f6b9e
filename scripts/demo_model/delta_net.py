"""The gated delta net: a linear-attention layer with a state per value head, computed in chunks of 64 tokens."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .config import ModelConfig
from .layers import Linear

CHUNK = 64
BLOCK = 16


def inverse_unit_lower(strict: Tensor) -> Tensor:
    """Invert ``I + L`` for strictly lower triangular ``L``, with matrix products alone.

    Diagonal blocks of 16 are inverted by the doubling of the Neumann series (L to the 16th is 0), then pairs of
    blocks are joined until one is left.

    Parameters
    ----------
    strict
        ``L``, ``(..., 64, 64)`` in float32.

    Returns
    -------
    Tensor
        The inverse, of the same shape.
    """
    size = strict.shape[-1]
    starts = range(0, size, BLOCK)
    diagonal = torch.stack([strict[..., i : i + BLOCK, i : i + BLOCK] for i in starts], -3)
    identity = torch.eye(BLOCK, dtype=strict.dtype, device=strict.device)
    power, inverse = -diagonal, identity - diagonal
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    width, blocks = BLOCK, [inverse[..., i, :, :] for i in range(len(starts))]
    while width < size:
        joined = []
        for i in range(0, len(blocks), 2):
            upper, lower = blocks[i], blocks[i + 1]
            corner = strict[..., (i + 1) * width : (i + 2) * width, i * width : (i + 1) * width]
            top = torch.cat((upper, torch.zeros_like(upper)), -1)
            joined.append(torch.cat((top, torch.cat((-(lower @ (corner @ upper)), lower), -1)), -2))
        blocks, width = joined, width * 2
    return blocks[0].reshape(strict.shape)


class _InverseUnitLower(torch.autograd.Function):
    """`inverse_unit_lower` with a backward pass that keeps only the result."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, strict: Tensor) -> Tensor:
        inverse = inverse_unit_lower(strict)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ grad @ inverse.mT).tril(-1)


Scan = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def scan_chunks(u: Tensor, w: Tensor, k_decayed: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Carry the state over the chunks, one after the other.

    Parameters
    ----------
    u
        ``(n, chunks, 64, value_dim)``: what each chunk would write to an empty state.
    w
        ``(n, chunks, 64, key_dim)``: how much of the old state each token takes back.
    k_decayed
        ``(n, chunks, 64, key_dim)``: keys, decayed to the end of their chunk.
    decay
        ``(n, chunks)``: decay of the state over a whole chunk.

    Returns
    -------
    tuple of Tensor
        The values written, shaped like `u`, and the state before each chunk, ``(n, chunks, key_dim, value_dim)``.
    """
    state = torch.zeros(u.shape[0], w.shape[-1], u.shape[-1], dtype=u.dtype, device=u.device)
    written, states = [], []
    for i in range(u.shape[1]):
        states.append(state)
        written.append(u[:, i] - w[:, i] @ state)
        state = state * decay[:, i, None, None] + k_decayed[:, i].mT @ written[-1]
    return torch.stack(written, 1), torch.stack(states, 1)


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, *, scan: Scan) -> Tensor:
    """Run the gated delta rule over a sequence, in float32.

    Parameters
    ----------
    q, k
        ``(batch, tokens, key_heads, key_dim)``; normalised to length 1 here.
    v
        ``(batch, tokens, value_heads, value_dim)``.
    log_decay, beta
        ``(batch, tokens, value_heads)``: log of the state's decay, and the write strength.
    scan
        `scan_chunks`, or a faster version of it.

    Returns
    -------
    Tensor
        Shaped and typed like `v`.
    """
    n_batch, n_tokens, n_key_heads, key_dim = q.shape
    n_heads = v.shape[2]
    dtype = v.dtype
    q, k, v, log_decay, beta = (x.float() for x in (q, k, v, log_decay, beta))
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * key_dim**-0.5
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    repeat = n_heads // n_key_heads
    q, k = (
        x[:, :, :, None, :].expand(-1, -1, -1, repeat, -1).reshape(n_batch, n_tokens, n_heads, key_dim) for x in (q, k)
    )
    pad = -n_tokens % CHUNK
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, pad)) for x in (q, k, v))
        log_decay, beta = (F.pad(x, (0, 0, 0, pad)) for x in (log_decay, beta))
    n = (n_tokens + pad) // CHUNK
    q, k, v = (
        x.reshape(n_batch, n, CHUNK, n_heads, -1).permute(0, 3, 1, 2, 4).reshape(n_batch * n_heads, n, CHUNK, -1)
        for x in (q, k, v)
    )
    log_decay, beta = (
        x.reshape(n_batch, n, CHUNK, n_heads).permute(0, 3, 1, 2).reshape(n_batch * n_heads, n, CHUNK)
        for x in (log_decay, beta)
    )
    total = log_decay.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    difference = total[..., :, None] - total[..., None, :]
    decay = torch.where(lower, difference, torch.zeros_like(difference)).exp() * lower
    overlap = (((k * beta[..., None]) @ k.mT) * decay).tril(-1)
    inverse = _InverseUnitLower.apply(overlap)
    u = inverse @ (v * beta[..., None])
    w = inverse @ (k * beta[..., None] * total.exp()[..., None])
    k_decayed = k * (total[..., -1:] - total).exp()[..., None]
    written, states = scan(u.contiguous(), w.contiguous(), k_decayed.contiguous(), total[..., -1].exp().contiguous())
    out = (q * total.exp()[..., None]) @ states + ((q @ k.mT) * decay) @ written
    out = out.reshape(n_batch, n_heads, n * CHUNK, -1).transpose(1, 2)[:, :n_tokens]
    return out.to(dtype)


class _GatedNorm(nn.Module):
    """RMS norm with a plain gain (not 1 + weight) and a sigmoid gate."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * y * torch.sigmoid(gate.float())).to(x.dtype)


def causal_conv(x: Tensor, weight: Tensor, dilation: int = 1) -> Tensor:
    """Depthwise causal convolution as a sum of shifted inputs.

    Parameters
    ----------
    x
        ``(batch, tokens, channels)``.
    weight
        ``(channels, 1, taps)``, the layout of ``nn.Conv1d``.
    dilation
        Tokens between two taps.

    Returns
    -------
    Tensor
        Shaped like `x`.
    """
    taps = weight[:, 0].to(x.dtype)
    n = taps.shape[-1]
    padded = F.pad(x, (0, 0, (n - 1) * dilation, 0))
    return sum(padded[:, i * dilation : i * dilation + x.shape[1]] * taps[:, i] for i in range(n))


class GatedDeltaNet(nn.Module):
    """The linear-attention layer: short convolution, gated delta rule, gated norm."""

    scan: Scan = staticmethod(scan_chunks)  # train.py puts the Triton version here

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.key_size = config.linear_num_key_heads * config.linear_key_head_dim
        self.value_size = config.linear_num_value_heads * config.linear_value_head_dim
        n_heads, channels = config.linear_num_value_heads, 2 * self.key_size + self.value_size
        self.conv1d = nn.Conv1d(channels, channels, config.linear_conv_kernel_dim, groups=channels, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(n_heads))
        self.A_log = nn.Parameter(torch.empty(n_heads).uniform_(0.01, 16).log())
        self.norm = _GatedNorm(config.linear_value_head_dim, config.rms_norm_eps)
        self.out_proj = Linear(self.value_size, config.hidden_size)
        self.in_proj_qkv = Linear(config.hidden_size, channels)
        self.in_proj_z = Linear(config.hidden_size, self.value_size)
        self.in_proj_b = Linear(config.hidden_size, n_heads)
        self.in_proj_a = Linear(config.hidden_size, n_heads)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(batch, tokens, hidden)`` to the same shape."""
        config = self.config
        mixed = F.silu(causal_conv(self.in_proj_qkv(x), self.conv1d.weight))
        q, k, v = mixed.split((self.key_size, self.key_size, self.value_size), -1)
        q, k = (t.unflatten(-1, (config.linear_num_key_heads, -1)) for t in (q, k))
        v = v.unflatten(-1, (config.linear_num_value_heads, -1))
        beta = torch.sigmoid(self.in_proj_b(x).float())
        log_decay = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        out = gated_delta_rule(q, k, v, log_decay, beta, scan=self.scan)
        gate = self.in_proj_z(x).unflatten(-1, (config.linear_num_value_heads, -1))
        return self.out_proj(self.norm(out, gate).flatten(-2))
