"""Texts that were never written and machines that were never built, to drive policies as an engine does.

Whether the draft at some depth of some position holds is fixed with the text, so a text plays out the same whatever
widths are chosen.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pylucebox.width import (
    MAX_WIDTH,
    CycleContext,
    CycleObservation,
    DraftPolicy,
    WidthCosts,
    WidthPolicy,
)

WRONG = -1  # a draft that never holds


def costs(plain_us: float, row_us: float, draft_us: float, reject_us: float = 0.0, source: str = "sweep") -> WidthCosts:
    """A machine whose rows and drafts all cost the same."""
    return WidthCosts(
        verify_us=tuple(plain_us + row_us * row for row in range(8)),
        draft_us=tuple(draft_us * n for n in range(1, 8)),
        reject_us=reject_us,
        mtp_prefill_us_per_token=0.0,
        n_past=0,
        source=source,
    )


STEEP = costs(45_900, 16_400, 3_000)
MIDDLE = costs(24_000, 3_500, 1_600, 500)
FLAT = costs(12_000, 120, 600)
SMALL = costs(1_000, 350, 180, 50)  # a small model on a CPU
CLIFF = WidthCosts(
    verify_us=(20_000, 21_000, 22_000, 23_000, 34_000, 35_000, 36_000, 37_000),
    draft_us=tuple(1_000.0 * n for n in range(1, 8)),
    reject_us=0,
    mtp_prefill_us_per_token=0,
    n_past=0,
    source="sweep",
)
DEAR = costs(1_000, 1_000, 300)  # a row costs a whole step, so there is nothing to gain, ever
MACHINES = {"steep": STEEP, "middle": MIDDLE, "flat": FLAT, "small": SMALL, "cliff": CLIFF, "dear": DEAR}


@dataclass
class Text:
    """Tokens 0, 1, 2, ...; `holds[t][d]` tells whether the draft at depth d after token t is right."""

    holds: list[list[bool]]
    probs: list[list[float]]

    def __len__(self) -> int:
        return len(self.holds)

    def drafts(self, at: int, n: int) -> tuple[int, ...]:
        return tuple(at + 1 + d if self.holds[at][d] else WRONG for d in range(n))

    def held(self, at: int, n: int) -> int:
        for depth in range(n):
            if not self.holds[at][depth]:
                return depth
        return n


def text(
    *parts: tuple[int, float],
    seed: int = 0,
    telling: bool = True,
) -> Text:
    """Return parts of so many tokens whose drafts hold so often; probabilities foretell it or are noise."""
    rng = random.Random(seed)
    holds, probs = [], []
    for n_tokens, chance in parts:
        for _ in range(n_tokens):
            holds.append([rng.random() < chance for _ in range(7)])
            centres = [(0.93 if held else 0.35) if telling else 0.6 for held in holds[-1]]
            probs.append([min(0.999, max(0.001, rng.gauss(centre, 0.1))) for centre in centres])
    return Text(holds, probs)


class StoppedClock:
    """A clock that stands still, so that no thought is spared."""

    def __call__(self) -> int:
        return 0


@dataclass
class Ran:
    """What became of a run."""

    us: float = 0.0
    n_tokens: int = 0
    cycles: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Position, drafts made, verified, held."""

    @property
    def speed(self) -> float:
        return self.n_tokens / self.us

    def verified(self, start: int = 0, end: int = 10**9) -> list[int]:
        return [k for at, _, k, _ in self.cycles if start <= at < end]


Disturb = Callable[[int, float], float]
"""Makes of the n-th cycle's verify time what the policy sees."""


def drive(
    policy: WidthPolicy,
    said: Text,
    machine: WidthCosts,
    *,
    begin: bool = True,
    noise: float = 0.0,
    builds: bool = False,
    disturb: Disturb = lambda _, us: us,
    seed: int = 0,
    start: int = 0,
    end: int | None = None,
    shows_probs: bool = True,
    logprobs: Sequence[float] = (),
) -> Ran:
    """Run one request over a text, or the part of it from `start` to `end`; the trunk gives its tokens `logprobs`."""
    rng, ran, built_rows = random.Random(seed), Ran(), set[int]()
    if begin:
        policy.begin(1, MAX_WIDTH)
    at, last = start, (len(said) if end is None else end) - 1
    while at < last:
        context = CycleContext(0, 10 + at, last - at, MAX_WIDTH, logprobs=bool(logprobs))
        n_drafted, width = ask(policy, context, said.probs[at])
        k = width - 1
        held = said.held(at, k)
        rejected = held < k
        draft_us = machine.draft_us[n_drafted - 1] if n_drafted else 0.0
        rollback_us = machine.reject_us if rejected else 0.0
        seen_us = disturb(len(ran.cycles), machine.verify_us[k] * math.exp(rng.gauss(0.0, noise)))
        built = builds and width not in built_rows
        built_rows.add(width)
        ran.us += machine.verify_us[k] + draft_us + rollback_us
        ran.n_tokens += held + 1
        ran.cycles.append((at, n_drafted, k, held))
        observation = CycleObservation(
            seq=0,
            width=width,
            n_drafted=n_drafted,
            n_accepted=held,
            draft_probs=tuple(said.probs[at][:n_drafted]) if shows_probs else (),
            draft_us=round(draft_us),
            verify_us=round(seen_us + (machine.verify_us[0] if built else 0)),
            rollback_us=round(rollback_us),
            n_rows=width,
            graph_built=built,
            draft_tokens=said.drafts(at, n_drafted),
            tokens=tuple(range(at + 1, at + 2 + held)),
            logprobs=tuple(logprobs[at + 1 : at + 2 + held]),
        )
        policy.observe(0, observation)
        at += held + 1
    return ran


def ask(policy: WidthPolicy, context: CycleContext, probs: Sequence[float]) -> tuple[int, int]:
    """Return drafts made and rows verified, and check that both are allowed."""
    widest = min(context.max_width, context.max_tokens_left)
    if not isinstance(policy, DraftPolicy):
        width = policy.choose(context.seq, context)
        assert 1 <= width <= widest
        return width - 1, width
    width, n_draft, asks = policy.plan(context.seq, context)
    while asks:
        assert 0 < n_draft <= 7, "asks only about drafts there are"
        width, n_more = policy.decide(context.seq, probs[:n_draft])
        n_draft += n_more
        asks = n_more > 0
    assert 1 <= width <= widest
    assert width - 1 <= n_draft <= min(7, widest - 1)
    return n_draft, width
