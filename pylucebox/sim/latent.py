"""Texts that were never recorded: traces made from published acceptance, one hidden difficulty for each token.

Each token of such a text has a difficulty, which all drafts aimed at it share and which resembles that of the token
before it. How deep the chain already is adds to it; those steps are solved for, so that decoding the very trace with a
fixed number of drafts yields the published number of tokens a cycle. So a trace shows what an average hides: acceptance
that depends on where a cycle begins, and probabilities that tell something about it.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pylucebox.sim.trace import DEPTH, Trace, quantised

__all__ = ["PROFILES", "Profile", "counting", "joined", "latent", "survival_to_tokens"]

_HALVINGS: Final = 14
_REACH: Final = 0.5  # logits on either side that are searched in the end
_NEAR: Final = 24  # points on either side
_LOGIT_RANGE: Final = 12.0


def survival_to_tokens(survival: Sequence[float]) -> tuple[float, ...]:
    """Return tokens a cycle with 1 to 7 drafts from how often the first 1 to 7 drafts all hold."""
    return tuple(1.0 + sum(survival[: depth + 1]) for depth in range(DEPTH))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How well the drafts of a text hold.

    Attributes
    ----------
    name, kind
        Of the trace.
    tokens_per_cycle
        With a fixed number of 1 to 7 drafts.
    source
        Where the figures come from.
    n_tokens
        Length of the text.
    spread
        Standard deviation of the difficulty of tokens, in logits. The default gives the gain that stopping at a
        product of 0.6 had on prose in EXL3.
    memory
        How much of its difficulty a token shares with the one before.
    blur
        Standard deviation of the error of the MTP block's probabilities, in logits.
    seed
        Of the trace.
    """

    name: str
    kind: str
    tokens_per_cycle: tuple[float, ...]
    source: str
    n_tokens: int = 1024
    spread: float = 2.5
    memory: float = 0.6
    blur: float = 0.7
    seed: int = 1


def latent(profile: Profile) -> Trace:
    """Return the trace of a profile; the same one each time."""
    source = random.Random(profile.seed)
    n_positions = profile.n_tokens - 1
    ease = _ease(profile, source)
    chances = [[source.random() for _ in range(DEPTH)] for _ in range(n_positions)]
    errors = [[source.gauss(0.0, profile.blur) for _ in range(DEPTH)] for _ in range(n_positions)]
    lengths = [0] * n_positions
    logits: list[float] = []
    for depth, wanted in enumerate(profile.tokens_per_cycle):
        logits.append(_solve(ease, chances, lengths, depth, wanted))
        lengths = _extended(ease, chances, lengths, depth, logits[-1])
    probs = tuple(
        tuple(
            quantised(_sigmoid(logits[depth] + ease[min(at + depth, n_positions - 1)] + errors[at][depth]))
            for depth in range(DEPTH)
        )
        for at in range(n_positions)
    )
    facts = {"source": f"latent: {profile.source}"}
    return _trace(profile.name, profile.kind, lengths, probs, facts)


def _ease(profile: Profile, source: random.Random) -> list[float]:
    """Draw how easy the token after each position is, in logits."""
    keep = profile.memory
    fresh = math.sqrt(1.0 - keep * keep)
    value, out = source.gauss(0.0, 1.0), []
    for _ in range(profile.n_tokens - 1):
        out.append(profile.spread * value)
        value = keep * value + fresh * source.gauss(0.0, 1.0)
    return out


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x > -700.0 else 0.0


def _extended(
    ease: Sequence[float], chances: Sequence[Sequence[float]], lengths: Sequence[int], depth: int, logit: float
) -> list[int]:
    """Return the match lengths with one depth more: where all drafts before held, this one may, too."""
    last = len(ease)
    return [
        length + (length == depth and at + depth < last and chances[at][depth] < _sigmoid(logit + ease[at + depth]))
        for at, length in enumerate(lengths)
    ]


def _solve(
    ease: Sequence[float], chances: Sequence[Sequence[float]], lengths: Sequence[int], depth: int, wanted: float
) -> float:
    """Find the step of a depth that gives the wanted tokens a cycle with `depth` + 1 drafts.

    One draft more that holds moves all later cycles, so the figure rises with the step only by and large. Halving
    comes close, and a look at the surroundings takes the best.
    """

    def error(step: float) -> float:
        return _tokens_per_cycle(_extended(ease, chances, lengths, depth, step), depth + 1) - wanted

    low, high = -_LOGIT_RANGE, _LOGIT_RANGE
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) < 0 else (low, middle)
    near = (low + _REACH * number / _NEAR for number in range(-_NEAR, _NEAR + 1))
    return min(near, key=lambda step: abs(error(step)))


def _tokens_per_cycle(lengths: Sequence[int], n_drafts: int) -> float:
    at = n_cycles = 0
    while at < len(lengths):
        at += 1 + min(n_drafts, lengths[at])
        n_cycles += 1
    return at / n_cycles


def _trace(
    name: str,
    kind: str,
    lengths: Sequence[int],
    probs: tuple[tuple[float, ...], ...],
    facts: dict[str, str],
) -> Trace:
    """Dress match lengths up as a text: its tokens are even numbers, and a draft that does not hold is odd."""
    n_tokens = len(lengths) + 1
    tokens = tuple(2 * (at % 1000) for at in range(n_tokens + DEPTH))
    drafts = tuple(
        tuple(tokens[at + 1 + depth] + (depth >= length) for depth in range(DEPTH)) for at, length in enumerate(lengths)
    )
    return Trace(
        name=name,
        kind=kind,
        tokens=tokens[:n_tokens],
        drafts=drafts,
        probs=probs,
        n_prompt=0,
        max_tokens=n_tokens,
        facts=facts,
    )


def counting(*, name: str, n_tokens: int, unforeseen: int) -> Trace:
    """Return a text whose drafts all hold but for one token.

    Parameters
    ----------
    name
        Of the trace.
    n_tokens
        Its length.
    unforeseen
        Index of the token that no draft foresees.
    """
    lengths = [min(DEPTH, (unforeseen if at < unforeseen else n_tokens) - 1 - at) for at in range(n_tokens - 1)]
    row = (quantised(0.995),) * DEPTH
    facts = {"source": "latent: 445 of 446 drafts held over 512 tokens of counting"}
    return _trace(name, "count", lengths, (row,) * (n_tokens - 1), facts)


def joined(name: str, kind: str, traces: Sequence[Trace]) -> Trace:
    """Return texts one behind the other; no draft foresees that the next begins."""
    lengths: list[int] = []
    probs: list[tuple[float, ...]] = []
    for trace in traces:
        # What follows the last token of a text was not drafted at all.
        lengths += [*trace.match, 0]
        probs += [*trace.probs, (quantised(0.5),) * DEPTH]
    facts = {"source": "latent: " + ", ".join(trace.name for trace in traces)}
    return _trace(name, kind, lengths[:-1], tuple(probs[:-1]), facts)


_SEED_PR: Final = "pull request 'feat(qwen4exp): MTP speculative decoding'"
_EXL3: Final = "EXL3's acceptance by depth on this model"

PROFILES: Final = (
    Profile(
        name="seed-code-16k",
        kind="code",
        tokens_per_cycle=(1.90, 2.718, 3.393, 4.013, 4.52, 4.95, 5.31),
        seed=3,
        source=f"{_SEED_PR}: 32.1, 32.6 and 32.5 tok/s with 2, 3 and 4 drafts at 16K; a smooth fit beside them",
    ),
    Profile(
        name="seed-code-64k",
        kind="code",
        tokens_per_cycle=(1.80, 2.420, 2.931, 3.444, 3.79, 4.07, 4.30),
        seed=6,
        source=f"{_SEED_PR}: 28.0, 27.7 and 27.5 tok/s with 2, 3 and 4 drafts at 64K; a smooth fit beside them",
    ),
    Profile(
        name="latent-code",
        kind="code",
        tokens_per_cycle=survival_to_tokens((0.91, 0.85, 0.76, 0.65, 0.54, 0.45, 0.37)),
        source=f"{_EXL3}, code; the last two continue it",
    ),
    Profile(
        name="latent-prose",
        kind="prose",
        tokens_per_cycle=survival_to_tokens((0.68, 0.38, 0.20, 0.09, 0.02, 0.01, 0.005)),
        source=f"{_EXL3}, prose; the last two continue it",
    ),
    Profile(
        name="latent-temperature-1",
        kind="sampled",
        tokens_per_cycle=survival_to_tokens((0.61, 0.37, 0.22, 0.13, 0.08, 0.05, 0.03)),
        source=f"{_SEED_PR}: 0.61 of the drafts hold when sampling as the model card says; depths below constructed",
    ),
    Profile(
        name="latent-hopeless",
        kind="noise",
        tokens_per_cycle=survival_to_tokens((0.15, 0.02, 0.004, 0.001, 0.0, 0.0, 0.0)),
        source="constructed: text that cannot be foreseen",
        spread=1.0,
    ),
    Profile(
        name="latent-depth-2",
        kind="code",
        tokens_per_cycle=survival_to_tokens((0.92, 0.83, 0.25, 0.08, 0.03, 0.01, 0.0)),
        source="constructed: a head that is good for two drafts",
    ),
)
"""Texts with published or constructed acceptance."""


@functools.cache
def texts() -> tuple[Trace, ...]:
    """Return all latent texts: those of `PROFILES`, the counting cell of the pull request, and a mixed one."""
    single = tuple(latent(profile) for profile in PROFILES)
    by_name = {trace.name: trace for trace in single}
    parts = [by_name[name].cut(256) for name in ("latent-code", "latent-prose", "latent-hopeless", "seed-code-16k")]
    # A cycle that drafts seven from the 30th cycle on would have the unforeseen token as its last draft.
    return (
        *single,
        counting(name="seed-count-66k", n_tokens=512, unforeseen=22 + 8 * 30 + 7),
        joined("latent-drift", "mixed", parts),
    )
