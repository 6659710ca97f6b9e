"""Held-out loss, and acceptance of chained drafts per depth, for all positions of a text at once."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .config import END_OF_TEXT
from .layers import rotary_tables
from .model import Qwen4Exp

CATEGORIES = ("code", "prose", "counting", "json", "table", "edit", "chat")
TAIL = 600  # tokens left after the last start of a prompt


@torch.no_grad()
def held_out_loss(model: Qwen4Exp, tokens: Tensor, n_tokens: int, n_windows: int) -> float:
    """Next-token loss of the trunk in nats per token.

    Parameters
    ----------
    model
        The model to evaluate.
    tokens
        Held-out tokens, ``(n,)``.
    n_tokens
        Tokens of a window.
    n_windows
        Windows, from the start of `tokens`.

    Returns
    -------
    float
        The mean over all positions.
    """
    windows = tokens[: len(tokens) // (n_tokens + 1) * (n_tokens + 1)].view(-1, n_tokens + 1)[:n_windows]
    logits = model.lm_head(model.trunk(windows[:, :-1]).hidden).float()
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()


@torch.no_grad()
def draft_everywhere(model: Qwen4Exp, ids: Tensor, depth: int) -> Tensor:
    """Draft a chain from every position, the text itself standing for the drafts (teacher forcing).

    Parameters
    ----------
    model
        The model to evaluate.
    ids
        ``(batch, tokens)``.
    depth
        Depths of the chains.

    Returns
    -------
    Tensor
        ``(depth, batch, tokens)``: entry (k - 1, b, t) is the depth-k prediction made at entry t for token t + 2,
        by the chain that started at entry t - k + 1. A chain's later entries count only while its drafts equal the
        text.
    """
    embedding = model.embed(F.pad(ids[:, 1:], (0, 1)))
    cos, sin = rotary_tables(torch.arange(ids.shape[1], device=ids.device), model.config)
    first = model.mtp.first(embedding, model.trunk(ids).wide, cos, sin)
    wide, previous, out = first.wide, [], []
    for k in range(1, depth + 1):
        if k > 1:
            wide, keys_values, _ = model.mtp.chained(embedding, wide, cos, sin, first=first, previous=previous)
            previous.append(keys_values)
        out.append(model.lm_head(model.mtp.hyper_connection_mixer(wide)).float().argmax(-1))
    return torch.stack(out)


def conditional_acceptance(hits: list[Tensor]) -> list[float]:
    """Give the acceptance of each depth among the chains that were accepted up to the depth before.

    Parameters
    ----------
    hits
        For each depth a boolean tensor over chains.

    Returns
    -------
    list of float
        One share per depth; not a number where no chain is left.
    """
    alive, shares = torch.ones_like(hits[0]), []
    for hit in hits:
        n = alive.sum().item()
        alive = alive & hit
        shares.append(alive.sum().item() / n if n else float("nan"))
    return shares


def prompt_starts(tokens: Tensor, n_prompts: int, *, free_text: bool) -> Tensor:
    """Choose prompts spread evenly over held-out tokens, at the starts of documents.

    Parameters
    ----------
    tokens
        Held-out tokens, ``(n,)``.
    n_prompts
        Prompts to choose.
    free_text
        Also take places inside documents, for text whose documents are few and long.

    Returns
    -------
    Tensor
        Offsets, ``(n_prompts,)``.
    """
    starts = (tokens[:-TAIL] == END_OF_TEXT).nonzero().flatten() + 1
    if free_text or len(starts) < n_prompts:
        step = max(1, (len(tokens) - TAIL) // n_prompts)
        starts = torch.cat((starts, torch.arange(0, len(tokens) - TAIL, step, device=tokens.device)))
    return starts[torch.linspace(0, len(starts) - 1, n_prompts, device=tokens.device).long()]


@torch.no_grad()
def greedy_continuations(model: Qwen4Exp, prompts: Tensor, n_tokens: int) -> Tensor:
    """Let the trunk go on greedily with a batch of prompts ``(batch, tokens)`` for `n_tokens` tokens."""
    n_prompt, n_total = prompts.shape[1], prompts.shape[1] + n_tokens
    ids = F.pad(prompts, (0, n_tokens), value=0)
    for i in range(n_prompt, n_total):
        # lengths in steps of 32, so that few shapes occur; what comes after a token does not change its logits
        seen = min(n_total, (i + 31) // 32 * 32)
        hidden = model.trunk(ids[:, :seen]).hidden
        ids[:, i] = model.lm_head(hidden[:, i - 1]).float().argmax(-1)
    return ids


def greedy_acceptance(
    model: Qwen4Exp, held_out: dict[str, Tensor], *, n_prompts: int = 24, n_prompt: int = 96, n_tokens: int = 96
) -> dict[str, dict[str, object]]:
    """Measure acceptance on the trunk's own greedy continuations of held-out prompts.

    Parameters
    ----------
    model
        The model to evaluate.
    held_out
        Held-out tokens per category.
    n_prompts
        Prompts per category.
    n_prompt, n_tokens
        Tokens of a prompt and of its continuation.

    Returns
    -------
    dict
        Per category ``cond``, the conditional acceptance of depths 1 to 7, and ``mean_accepted_of_7``.
    """
    depth, result = 7, {}
    for category, tokens in held_out.items():
        starts = prompt_starts(tokens, n_prompts, free_text=category == "prose")
        prompts = tokens[starts[:, None] + torch.arange(n_prompt, device=tokens.device)]
        ids = greedy_continuations(model, prompts, n_tokens)
        drafts = draft_everywhere(model, ids, depth)
        entry = torch.arange(n_prompt - 1, ids.shape[1] - depth - 1, device=ids.device)
        hits = [drafts[k - 1][:, entry + k - 1] == ids[:, entry + k + 1] for k in range(1, depth + 1)]
        accepted = torch.stack(hits).long().cumprod(0).sum(0).float().mean().item()
        shares = [round(share, 4) for share in conditional_acceptance(hits)]
        result[category] = {"cond": shares, "mean_accepted_of_7": round(accepted, 3)}
    return result


@torch.no_grad()
def forced_acceptance(
    model: Qwen4Exp, tokens: Tensor, *, n_windows: int = 12, n_tokens: int = 256, depth: int = 7
) -> list[float]:
    """Measure acceptance on held-out text itself: a draft counts if it equals the trunk's argmax there.

    Parameters
    ----------
    model
        The model to evaluate.
    tokens
        Held-out tokens, ``(n,)``.
    n_windows, n_tokens
        Windows, spread evenly, and their length.
    depth
        Depths of the chains.

    Returns
    -------
    list of float
        One share per depth.
    """
    windows = tokens[: len(tokens) // n_tokens * n_tokens].view(-1, n_tokens)
    windows = windows[:: max(1, len(windows) // n_windows)][:n_windows]
    best = model.lm_head(model.trunk(windows).hidden).argmax(-1)
    drafts = draft_everywhere(model, windows, depth)
    entry = torch.arange(32, n_tokens - depth - 1, device=tokens.device)
    hits = [drafts[k - 1][:, entry + k - 1] == best[:, entry + k] for k in range(1, depth + 1)]
    return [round(share, 3) for share in conditional_acceptance(hits)]


def load_held_out(folder: str, device: str = "cpu") -> dict[str, Tensor]:
    """Read the held-out tokens that ``make_corpus.py`` wrote, per category."""
    return {
        category: torch.from_numpy(np.fromfile(f"{folder}/val_{category}.bin", np.uint16).astype(np.int64)).to(device)
        for category in CATEGORIES
    }
