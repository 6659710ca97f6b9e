"""What runs of one request at several widths tell about exactness. Numbers only: no engine, no printing.

A run at a width is compared with one that decoded token by token. Where they part first, the fault is one of three:

*sampler*
    The logits are the same in every bit and the token is another: the request's random stream or penalties went wrong.
*numerics*
    A row of a verify step has other bits than alone: a kernel treats several rows in another way. That is proved by a
    difference before any draft was taken back, and shown by runs that part at the same token although they took drafts
    back at different places.
*rollback*
    Nothing differs until drafts are taken back, although several rows ran together before. Then it begins with the very
    next token at every width, or at a token that depends on the width.

Runs that part at the same later token after they took drafts back at the same place cannot tell the last two apart;
more prompts or tokens will.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Fault(str, Enum):
    """What is wrong; the values appear in JSON."""

    NONE = "none"
    SAMPLER = "sampler"
    NUMERICS = "numerics"
    ROLLBACK = "rollback"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Drawn:
    """A token and the logits it was drawn from.

    Attributes
    ----------
    token
        The token; an end token counts.
    digest
        SHA-256 of the logits, hex.
    logits
        Shape (n_vocab,), float32.
    n_rollbacks
        Cycles before this token's own in which drafts were taken back.
    """

    token: int
    digest: str
    logits: npt.NDArray[np.float32]
    n_rollbacks: int


@dataclass(frozen=True)
class Trace:
    """A run.

    Attributes
    ----------
    width
        What was asked for: 1 to 8, or 0 for adaptive.
    drawn
        Its tokens in order.
    n_drafted, n_accepted
        Drafts made, and drafts that held.
    n_rollbacks
        Cycles in which drafts were taken back.
    first_rollback
        Index of the first token that came instead of a draft; None if all drafts held.
    """

    width: int
    drawn: tuple[Drawn, ...]
    n_drafted: int
    n_accepted: int
    n_rollbacks: int
    first_rollback: int | None


@dataclass(frozen=True)
class Divergence:
    """Where a run first differs from decoding token by token.

    Attributes
    ----------
    width
        Width of the run.
    index
        Index of the first token that is another, or was drawn from other logits.
    same_bits
        Whether the logits are the same there, so that only the token differs.
    token_index
        Index of the first token that is another; None if the text is the same.
    token_expected, token_seen
        The tokens there; None where a run had ended.
    logit_gap
        Distance of the two highest logits at the first token that is another, or else at `index`, when decoding token
        by token: how close the choice was. None where that run had ended.
    max_difference
        Largest difference of a logit at `index`; None where a run had ended.
    after_rollback
        Whether drafts had been taken back before.
    first_rollback
        As in `Trace`.
    """

    width: int
    index: int
    same_bits: bool
    token_index: int | None
    token_expected: int | None
    token_seen: int | None
    logit_gap: float | None
    max_difference: float | None
    after_rollback: bool
    first_rollback: int | None


@dataclass(frozen=True)
class CaseVerdict:
    """What the runs of one request tell.

    Attributes
    ----------
    divergences
        One for each width that differs, narrowest first, adaptive last.
    fault
        What is wrong.
    same_index
        Whether the fixed widths among them begin at the same token; None if these are fewer than two. Adaptive is left
        out: which width it has at a token depends on how fast the machine is.
    """

    divergences: tuple[Divergence, ...]
    fault: Fault
    same_index: bool | None


def compare(reference: Trace, other: Trace) -> Divergence | None:
    """Find where a run first differs from decoding token by token; None if it does not, in any bit."""
    expected, seen = reference.drawn, other.drawn
    n_both = min(len(expected), len(seen))
    differing = (at for at in range(n_both) if _differs(expected[at], seen[at]))
    index = next(differing, n_both)
    if index == n_both == max(len(expected), len(seen)):
        return None
    other_tokens = (at for at in range(index, n_both) if expected[at].token != seen[at].token)
    token_index = next(other_tokens, n_both if len(expected) != len(seen) else None)
    place = index if token_index is None else token_index
    both = index < n_both
    return Divergence(
        width=other.width,
        index=index,
        same_bits=both and expected[index].digest == seen[index].digest,
        token_index=token_index,
        token_expected=None if token_index is None else _token(expected, token_index),
        token_seen=None if token_index is None else _token(seen, token_index),
        logit_gap=logit_gap(expected[place].logits) if place < len(expected) else None,
        max_difference=max_difference(expected[index].logits, seen[index].logits) if both else None,
        after_rollback=seen[min(index, len(seen) - 1)].n_rollbacks > 0,
        first_rollback=other.first_rollback,
    )


def _differs(one: Drawn, other: Drawn) -> bool:
    return one.token != other.token or one.digest != other.digest


def _token(drawn: Sequence[Drawn], index: int) -> int | None:
    return drawn[index].token if index < len(drawn) else None


def logit_gap(logits: npt.NDArray[np.float32]) -> float:
    """Return the distance of the two highest logits."""
    import numpy as np  # noqa: PLC0415 - `lucebox --help` does without

    second, first = np.partition(logits, -2)[-2:]
    return float(first) - float(second)


def max_difference(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    """Return the largest distance of two logits of the same token; logits that are the same infinity do not differ."""
    import numpy as np  # noqa: PLC0415 - `lucebox --help` does without

    where = one != other
    return float(np.abs(one[where].astype(np.float64) - other[where]).max(initial=0.0))


def judge(divergences: Iterable[Divergence]) -> CaseVerdict:
    """Say what is wrong with the runs of one request, by where they differ."""
    found = tuple(sorted(divergences, key=lambda divergence: divergence.width or len(WIDTHS)))
    fixed = [divergence.index for divergence in found if divergence.width]
    same_index = len(set(fixed)) == 1 if len(fixed) > 1 else None
    return CaseVerdict(found, _fault(found, same_index=same_index), same_index)


WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 0)
"""All widths in the order of reports; 0 is adaptive."""


def _fault(found: Sequence[Divergence], *, same_index: bool | None) -> Fault:
    if not found:
        return Fault.NONE
    if any(divergence.same_bits for divergence in found):
        return Fault.SAMPLER
    if not all(divergence.after_rollback for divergence in found):
        return Fault.NUMERICS
    fixed = [divergence for divergence in found if divergence.width] or found
    if not same_index or all(divergence.index == (divergence.first_rollback or 0) + 1 for divergence in fixed):
        return Fault.ROLLBACK
    return Fault.NUMERICS if len({divergence.first_rollback for divergence in fixed}) > 1 else Fault.UNDECIDED


# What one request proves holds for all: a row with other bits before any rollback explains every later difference.
_BY_WEIGHT = (Fault.SAMPLER, Fault.NUMERICS, Fault.ROLLBACK, Fault.UNDECIDED)


def overall(verdicts: Iterable[CaseVerdict]) -> Fault:
    """Say what is wrong over all requests."""
    seen = {verdict.fault for verdict in verdicts}
    return next((fault for fault in _BY_WEIGHT if fault in seen), Fault.NONE)
