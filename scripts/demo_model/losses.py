"""Training losses of the trunk and of the chained MTP depths."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .layers import rotary_tables
from .model import Qwen4Exp

MTP_WEIGHT, CHAIN_WEIGHT = 0.3, 0.12  # depth 1, and each deeper one
BALANCE_WEIGHT, INDEXER_WEIGHT = 0.01, 0.1
SOFT_SHARE = 0.6  # of the MTP target: the trunk's distribution; the rest is its argmax


def next_token_loss(hidden: Tensor, head: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy in nats per token.

    Parameters
    ----------
    hidden
        ``(batch, tokens, hidden)``.
    head
        Weight of the head, ``(vocab, hidden)``.
    labels
        The token after each one, ``(batch, tokens)``.

    Returns
    -------
    tuple of Tensor
        Mean loss, and the logits ``(batch, tokens, vocab)``.
    """
    logits = F.linear(hidden, head.to(hidden.dtype))
    wide = logits.float()
    return (wide.logsumexp(-1) - wide.gather(-1, labels[..., None])[..., 0]).mean(), logits


def draft_loss(hidden: Tensor, head: Tensor, trunk_logits: Tensor, skip: int) -> tuple[Tensor, Tensor]:
    """Cross entropy of a draft depth to what the trunk itself says one position later.

    Parameters
    ----------
    hidden
        ``(batch, tokens, hidden)``; entry t is to predict what the trunk predicts at t + 1.
    head
        Weight of the head, ``(vocab, hidden)``.
    trunk_logits
        Detached logits of the trunk, ``(batch, tokens, vocab)``.
    skip
        First entries that have no chain behind them.

    Returns
    -------
    tuple of Tensor
        Mean loss, and the share of drafts that equal the trunk's argmax.
    """
    logits = F.linear(hidden, head.to(hidden.dtype)).float()
    # a roll instead of a slice: inductor of torch 2.11 read out of bounds in an argmax over an odd-sized slice
    target = trunk_logits.roll(-1, 1).float()
    position = torch.arange(hidden.shape[1], device=hidden.device)
    weight = ((position >= skip) & (position < hidden.shape[1] - 1)).float()
    best = target.argmax(-1)
    soft = (target.softmax(-1) * logits).sum(-1)
    hard = logits.gather(-1, best[..., None])[..., 0]
    loss = logits.logsumexp(-1) - SOFT_SHARE * soft - (1 - SOFT_SHARE) * hard
    n = weight.sum() * hidden.shape[0]
    return (loss * weight).sum() / n, ((logits.argmax(-1) == best).float() * weight).sum() / n


@dataclass
class StepLosses:
    """Losses of one step.

    Attributes
    ----------
    total
        What is minimised.
    next_token, draft, indexer
        Trunk loss, draft loss of depth 1, and the indexers' loss, without weights and detached.
    accepted
        Share of drafts that equal the trunk's argmax, ``(depths,)``.
    """

    total: Tensor
    next_token: Tensor
    draft: Tensor
    indexer: Tensor
    accepted: Tensor


class JointLoss:
    """Trunk and MTP losses of a batch; the two parts of it may be replaced by compiled versions."""

    def __init__(self, model: Qwen4Exp) -> None:
        self.model = model
        self.next_token_loss, self.draft_loss = next_token_loss, draft_loss

    def __call__(self, ids: Tensor, labels: Tensor, *, sparse: bool, depth: int, loss_rows: int) -> StepLosses:
        """Compute the losses.

        Parameters
        ----------
        ids, labels
            ``(batch, tokens)``; `labels` is `ids` moved by one token.
        sparse
            Sparse attention in the trunk and in depth 1.
        depth
            Draft depths that are trained.
        loss_rows
            Sequences of the batch that the indexers' loss is computed on.

        Returns
        -------
        StepLosses
            All losses of the batch.
        """
        model, head = self.model, self.model.lm_head.weight
        trunk = model.trunk(ids, sparse=sparse, loss_rows=loss_rows)
        next_token, logits = self.next_token_loss(trunk.hidden, head, labels)
        logits = logits.detach()
        embedding = model.embed(labels)
        cos, sin = rotary_tables(torch.arange(ids.shape[1], device=ids.device), model.config)
        first = model.mtp.first(embedding, trunk.wide, cos, sin, sparse=sparse, loss_rows=loss_rows)
        draft, share = self.draft_loss(model.mtp.hyper_connection_mixer(first.wide), head, logits, 0)
        drafts, accepted = MTP_WEIGHT * draft, [share]
        wide, previous = first.wide, []
        for k in range(2, depth + 1):
            wide, keys_values, _ = model.mtp.chained(embedding, wide, cos, sin, first=first, previous=previous)
            previous = [*previous, keys_values]
            loss, share = self.draft_loss(model.mtp.hyper_connection_mixer(wide), head, logits, k - 1)
            drafts = drafts + CHAIN_WEIGHT * loss
            accepted.append(share)
        balance = (trunk.balance + first.balance) / (model.config.num_hidden_layers + 1)
        indexer = trunk.indexer_loss + first.indexer_loss
        total = next_token + drafts + BALANCE_WEIGHT * balance + INDEXER_WEIGHT * indexer
        return StepLosses(total, next_token.detach(), draft.detach(), indexer.detach(), torch.stack(accepted).detach())
