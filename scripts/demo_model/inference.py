"""Reference inference without any cache: trunk logits and chained drafts, in float32."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .layers import combine, rotary_tables
from .model import Qwen4Exp
from .sparse_attention import causal_mask

MODES = ("qsa", "share", "dense", "qsa_zero", "dense_zero")


@torch.no_grad()
def trunk_logits(model: Qwen4Exp, ids: Tensor, *, sparse: bool = True) -> tuple[Tensor, Tensor]:
    """Logits and residuals of one sequence.

    Parameters
    ----------
    model
        The reference model.
    ids
        Token ids, ``(tokens,)``.
    sparse
        Sparse attention; False attends to everything.

    Returns
    -------
    tuple of Tensor
        Logits ``(tokens, vocab)`` and the residuals that the MTP block takes, ``(tokens, wide)``.
    """
    out = model.trunk(ids[None], sparse=sparse)
    return model.lm_head(out.hidden)[0], out.wide[0]


@torch.no_grad()
def continue_text(model: Qwen4Exp, ids: Tensor, n_tokens: int, temperature: float = 0.0, seed: int = 0) -> Tensor:
    """Let the trunk go on with a text.

    Parameters
    ----------
    model
        The reference model.
    ids
        Token ids, ``(tokens,)``.
    n_tokens
        New tokens.
    temperature
        0 is greedy; otherwise the 20 best tokens are cut to a total probability of 0.95 and drawn from.
    seed
        Seed of the drawing.

    Returns
    -------
    Tensor
        The text with its continuation.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n_tokens):
        logits = trunk_logits(model, ids)[0][-1]
        if temperature == 0:
            token = logits.argmax()
        else:
            probs, index = (logits / temperature).softmax(-1).topk(20)
            probs = probs * (probs.cumsum(0) - probs < 0.95)
            token = index[torch.multinomial(probs, 1, generator=generator)[0]]
        ids = torch.cat((ids, token.view(1)))
    return ids


@dataclass
class Drafts:
    """Drafts of one chain: logits ``(depth, vocab)``, tokens ``(depth,)`` and the block's residuals."""

    logits: Tensor
    tokens: Tensor
    wide: Tensor


def _run_block(
    model: Qwen4Exp, tokens: Tensor, wide: Tensor, *, sparse: bool, shared: tuple[int, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the MTP block over entries (tokens[i], wide[i]) at positions 0.. -> logits and residual of the last, mask."""
    layer, attention = model.mtp.layers[0], model.mtp.layers[0].self_attn
    n = len(tokens)
    cos, sin = rotary_tables(torch.arange(n, device=tokens.device), model.config)
    x = model.mtp.fuse(model.embed(tokens[None]), wide[None])
    h, gains = layer.attn_hyper_connection(x)
    mask = attention.mask(h, cos, sin, sparse=sparse).clone()
    if shared is not None:
        last, row = shared
        mask[0, last + 1 :, : last + 1] = row
        mask[0, last + 1 :, last + 1 :] = causal_mask(n - last - 1)
    x = combine(x, attention.attend(attention.project(h, cos, sin), mask), gains)
    x, _ = layer.feed_forward(x)
    return model.lm_head(model.mtp.hyper_connection_mixer(x[:, -1:]))[0, 0], x[0, -1], mask[0]


@torch.no_grad()
def draft_chain(
    model: Qwen4Exp, ids: Tensor, wide: Tensor, first_token: int, *, depth: int, mode: str = "qsa"
) -> Drafts:
    """Draft after ``ids`` and one more token, which the trunk has sampled but not yet read.

    Parameters
    ----------
    model
        The reference model.
    ids
        Token ids that the trunk has read, ``(tokens,)``.
    wide
        The trunk's residuals for `ids`, ``(tokens, wide)``.
    first_token
        The token after `ids`.
    depth
        Drafts in the chain.
    mode
        How the block attends. ``qsa``: its indexer chooses for every entry. ``share``: the drafts reuse the choice of
        the last entry before them (sglang's default) and see each other. ``dense``: everything visible. ``qsa_zero``
        and ``dense_zero``: the same with llama.cpp's extra first entry, which joins the first token with a zero
        residual and so moves all others by one position. All agree up to 131 visible entries, but for the extra one.

    Returns
    -------
    Drafts
        The greedy chain.

    Raises
    ------
    ValueError
        If the mode is not one of `MODES`.
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not one of {MODES}")
    tokens = torch.cat((ids[1:], torch.tensor([first_token])))
    if mode.endswith("_zero"):
        tokens, wide = torch.cat((ids[:1], tokens)), torch.cat((torch.zeros_like(wide[:1]), wide))
    last, shared = len(tokens) - 1, None
    logits, wides = [], []
    for _ in range(depth):
        logit, out, mask = _run_block(model, tokens, wide, sparse=not mode.startswith("dense"), shared=shared)
        if mode == "share" and shared is None:
            shared = last, mask[last].clone()
        logits.append(logit)
        wides.append(out)
        tokens = torch.cat((tokens, logit.argmax().view(1)))
        wide = torch.cat((wide, out[None]))
    return Drafts(torch.stack(logits), tokens[last + 1 :], torch.stack(wides))
