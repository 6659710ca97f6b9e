"""The chunk scan of the gated delta rule as two Triton kernels: one program per sequence and head.

Same result as `delta_net.scan_chunks`, with a backward pass. The state stays in registers over all chunks.
"""

# ruff: noqa: N803, N806, PLR0917 (constexpr arguments and matrices carry their usual capitals; kernels take many)

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward_kernel(u, w, kd, g, vn, s, n: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    rc, rk, rv = tl.arange(0, C), tl.arange(0, K), tl.arange(0, V)
    S = tl.zeros([K, V], tl.float32)
    for i in range(n):
        b = pid * n + i
        tl.store(s + b * K * V + rk[:, None] * V + rv[None, :], S)
        ui = tl.load(u + b * C * V + rc[:, None] * V + rv[None, :])
        wi = tl.load(w + b * C * K + rc[:, None] * K + rk[None, :])
        kt = tl.load(kd + b * C * K + rc[None, :] * K + rk[:, None])
        gi = tl.load(g + b)
        v = ui - tl.dot(wi, S, input_precision="ieee")
        tl.store(vn + b * C * V + rc[:, None] * V + rv[None, :], v)
        S = S * gi + tl.dot(kt, v, input_precision="ieee")


@triton.jit
def _backward_kernel(
    w, kd, g, vn, s, dvn, ds, du, dw, dkd, dg,
    n: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    rc, rk, rv = tl.arange(0, C), tl.arange(0, K), tl.arange(0, V)
    D = tl.zeros([K, V], tl.float32)  # gradient of the state after chunk i
    for j in range(n):
        b = pid * n + (n - 1 - j)
        cv = b * C * V + rc[:, None] * V + rv[None, :]
        ck = b * C * K + rc[:, None] * K + rk[None, :]
        kv = b * K * V + rk[:, None] * V + rv[None, :]
        gi = tl.load(g + b)
        Si = tl.load(s + kv)
        St = tl.load(s + b * K * V + rk[None, :] * V + rv[:, None])
        kdi = tl.load(kd + ck)
        dv = tl.load(dvn + cv) + tl.dot(kdi, D, input_precision="ieee")
        tl.store(du + cv, dv)
        tl.store(dw + ck, -tl.dot(dv, St, input_precision="ieee"))
        vi = tl.load(vn + cv)
        tl.store(dkd + ck, tl.dot(vi, tl.trans(D), input_precision="ieee"))
        tl.store(dg + b, tl.sum(Si * D))
        wt = tl.load(w + b * C * K + rc[None, :] * K + rk[:, None])
        D = D * gi + tl.load(ds + kv) - tl.dot(wt, dv, input_precision="ieee")


@torch.library.custom_op("demo_model::scan_forward", mutates_args=())
def scan(u: Tensor, w: Tensor, k_decayed: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Run the scan on the GPU; arguments and results are those of `delta_net.scan_chunks`."""
    n_seq, n, C, V = u.shape
    K = w.shape[-1]
    u, w, k_decayed, decay = (t.contiguous() for t in (u, w, k_decayed, decay))
    written, states = torch.empty_like(u), u.new_empty(n_seq, n, K, V)
    _forward_kernel[(n_seq,)](u, w, k_decayed, decay, written, states, n, C, K, V, num_warps=4)
    return written, states


@scan.register_fake
def _(u, w, k_decayed, decay):  # noqa: ARG001
    n_seq, n, _, V = u.shape
    return torch.empty_like(u, memory_format=torch.contiguous_format), u.new_empty(n_seq, n, w.shape[-1], V)


@torch.library.custom_op("demo_model::scan_backward", mutates_args=())
def _scan_backward(
    w: Tensor, k_decayed: Tensor, decay: Tensor, written: Tensor, states: Tensor, d_written: Tensor, d_states: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n_seq, n, C, V = written.shape
    K = w.shape[-1]
    inputs = [t.contiguous() for t in (w, k_decayed, decay, written, states, d_written, d_states)]
    grads = torch.empty_like(written), torch.empty_like(w), torch.empty_like(k_decayed), torch.empty_like(decay)
    _backward_kernel[(n_seq,)](*inputs, *grads, n, C, K, V, num_warps=4)
    return grads


@_scan_backward.register_fake
def _(w, k_decayed, decay, written, states, d_written, d_states):  # noqa: ARG001
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (written, w, k_decayed, decay))


def _save(ctx, inputs, output):
    _, w, k_decayed, decay = inputs
    ctx.save_for_backward(w, k_decayed, decay, *output)


def _backward(ctx, d_written, d_states):
    return _scan_backward(*ctx.saved_tensors, d_written, d_states)


scan.register_autograd(_backward, setup_context=_save)
