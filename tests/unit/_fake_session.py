"""A session without a model: it says a given reply and drafts it right where it is told to.

Cycles follow the rules of the native ones: widths are cut to the tokens wanted, the cells left and eight rows in all;
drafts are accepted while they equal the reply; end token, limit and a full context end a cycle. What is proposed waits
for the next cycle, which verifies as much of it as its width allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pylucebox._errors import (
    CancelledError,
    ClosedError,
    ContextFullError,
    InvalidArgumentError,
    SamplingError,
    SequenceStateError,
)
from pylucebox._sampling import SamplingParams
from pylucebox._session import (
    FINISH_CONTEXT,
    FINISH_EOG,
    FINISH_FAILED,
    FINISH_LIMIT,
    FINISH_NONE,
    Ask,
    CycleTimes,
    MoreDrafts,
    Progress,
    Proposal,
    SeqCycle,
)

EOG = 256
N_VOCAB = 257
LOGPROB = -0.25  # that the trunk gives to each token
MAX_ROWS = 8
MAX_DRAFT = 7
WRONG = 0  # a draft that never holds: replies must not contain it
STUCK = 1  # in a reply: here the sampler can choose no token
NO_TOKEN = "the grammar allows no token"

Holds = Callable[[int], bool]


def token_bytes(token: int) -> bytes:
    """Bytes of a token: 0 to 255 are bytes, the end token has none."""
    return bytes([token]) if token < EOG else b""


@dataclass
class FakeSampler:
    """What `prefill` was given, and whether it was used up."""

    params: SamplingParams
    chat_json: str | None
    used: bool = False
    rng: str = "gumbel"


@dataclass
class _Sequence:
    reply: list[int]
    n_past: int
    use_mtp: bool
    n_said: int = 1
    rows: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    failed: bool = False


class FakeSession:
    """`Session` that says ``reply(prompt)`` and then the end token.

    Parameters
    ----------
    reply
        Bytes to say after a prompt.
    holds
        Whether the draft of the n-th token of a reply is right; the first one comes from prefill and has none.
    on_call
        Called with ``"prefill"``, ``"propose"`` or ``"cycle"`` at the start of each such call.
    """

    def __init__(
        self,
        reply: bytes | Callable[[Sequence[int]], bytes],
        *,
        holds: Holds = lambda _n: True,
        n_ctx: int = 1024,
        n_seq: int = 1,
        max_width: int = 8,
        on_call: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self.n_ctx = n_ctx
        self.n_seq = n_seq
        self.max_width = max_width
        self.asked: list[tuple[Ask, ...]] = []
        self.proposed: list[tuple[MoreDrafts, ...]] = []
        self.samplers: list[FakeSampler] = []
        self.cleared: list[int] = []
        self._reply = (lambda _prompt: reply) if isinstance(reply, bytes) else reply
        self._holds = holds
        self._prob = 0.5
        self._on_call = on_call
        self._sequences: dict[int, _Sequence] = {}
        self._aborted = False
        self._closed = False

    @property
    def busy(self) -> list[int]:
        """Sequences that are not clear."""
        return sorted(self._sequences)

    def open_sampler(self, params: SamplingParams, chat_json: str | None) -> FakeSampler:
        if params.grammar == "bad":
            raise InvalidArgumentError(argument="sampling", value="bad", allowed="a grammar")
        self.samplers.append(FakeSampler(params, chat_json))
        return self.samplers[-1]

    def prefill(
        self, seq: int, tokens: Sequence[int], sampler: Any, *, use_mtp: bool, progress: Progress | None = None
    ) -> tuple[int, int]:
        self._enter("prefill")
        assert not sampler.used
        sampler.used = True
        if seq in self._sequences:
            raise SequenceStateError(f"sequence {seq} is in use")
        if len(tokens) > self.n_ctx:
            raise ContextFullError(n_ctx=self.n_ctx, n_needed=len(tokens))
        if self._aborted or (progress is not None and progress(1.0) is False):
            raise CancelledError("prefill was cancelled")
        reply = [*self._reply(tokens), EOG]
        if reply[0] == STUCK:
            raise SamplingError("cannot run the prompt", seen=NO_TOKEN)
        self._sequences[seq] = _Sequence(reply, len(tokens), use_mtp, rows=reply[:1])
        return reply[0], self._finish(self._sequences[seq], reply[0], FINISH_NONE)

    def propose(self, asks: Sequence[MoreDrafts]) -> tuple[list[Proposal], int]:
        self._enter("propose")
        self.proposed.append(tuple(asks))
        if self._aborted:
            for ask in asks:
                self._sequences[ask.seq].failed = True
            raise CancelledError("drafting was cancelled")
        proposals = []
        for ask in asks:
            sequence = self._sequences[ask.seq]
            assert 0 <= ask.n_more <= MAX_DRAFT
            assert not sequence.failed
            self._draft(sequence, len(sequence.drafts) + ask.n_more)
            probs = (self._prob,) * len(sequence.drafts)
            proposals.append(Proposal(ask.seq, tuple(sequence.drafts), probs))
        return proposals, 10

    def _draft(self, sequence: _Sequence, n_wanted: int) -> None:
        n_wanted = min(n_wanted, MAX_DRAFT, self.n_ctx - sequence.n_past) if sequence.use_mtp else 0
        while len(sequence.drafts) < n_wanted:
            at = sequence.n_said + len(sequence.drafts)
            right = at < len(sequence.reply) and self._holds(at)
            sequence.drafts.append(sequence.reply[at] if right else WRONG)

    def cycle(self, asks: Sequence[Ask]) -> tuple[list[SeqCycle], CycleTimes]:
        self._enter("cycle")
        self.asked.append(tuple(asks))
        if self._aborted:
            for ask in asks:
                self._sequences[ask.seq].failed = True
            raise CancelledError("the cycle was cancelled")
        widths = self._widths(asks)
        for sequence in self._sequences.values():
            sequence.rows = []
        results = [self._cycle(ask, width) for ask, width in zip(asks, widths, strict=True)]
        return results, CycleTimes(30, 100, 5, 2, sum(widths), sum(widths), max(widths) - 1, False, False)

    def _widths(self, asks: Sequence[Ask]) -> list[int]:
        widths = []
        for ask in asks:
            assert 1 <= ask.width <= self.max_width
            assert ask.max_tokens >= 1
            sequence = self._sequences[ask.seq]
            assert not sequence.failed
            room = self.n_ctx - sequence.n_past
            widths.append(min(ask.width, ask.max_tokens, room) if sequence.use_mtp else 1)
        while sum(widths) > MAX_ROWS:
            widths[widths.index(max(widths))] -= 1
        return widths

    def _cycle(self, ask: Ask, width: int) -> SeqCycle:
        sequence = self._sequences[ask.seq]
        self._draft(sequence, width - 1)
        drafts, sequence.drafts = sequence.drafts, []
        tokens: list[int] = []
        n_accepted = 0
        finish = FINISH_NONE
        for row in range(width):
            token = sequence.reply[sequence.n_said]
            if token == STUCK:
                sequence.failed = True
                finish = FINISH_FAILED
                break
            sequence.n_said += 1
            tokens.append(token)
            held = row < width - 1 and drafts[row] == token
            n_accepted += held
            if token == EOG:
                finish = FINISH_EOG
            elif len(tokens) >= ask.max_tokens:
                finish = FINISH_LIMIT
            if not held or finish != FINISH_NONE:
                break
        sequence.n_past += len(tokens)
        sequence.rows = tokens
        if finish != FINISH_FAILED:
            finish = self._finish(sequence, tokens[-1], finish)
        probs = (self._prob,) * len(drafts)
        logprobs = (LOGPROB,) * len(tokens) if ask.logprobs else ()
        said, drafted = tuple(tokens), tuple(drafts)
        return SeqCycle(ask.seq, said, len(drafts), n_accepted, finish, probs, width - 1, drafted, logprobs)

    def _finish(self, sequence: _Sequence, last: int, finish: int) -> int:
        if last == EOG:
            return FINISH_EOG
        return FINISH_CONTEXT if finish == FINISH_NONE and sequence.n_past >= self.n_ctx else finish

    def failure(self, seq: int) -> str:
        return NO_TOKEN if self._sequences[seq].failed else ""

    def n_past(self, seq: int) -> int:
        return self._sequences[seq].n_past

    def logits(self, seq: int, row: int) -> npt.NDArray[np.float32]:
        """Logits that favour the token drawn, and depend on it alone."""
        token = self._sequences[seq].rows[row]
        values = np.linspace(-1, 1, N_VOCAB, dtype=np.float32)
        values[token] = 3.0
        return values

    def clear(self, seq: int) -> None:
        self.cleared.append(seq)
        self._sequences.pop(seq, None)

    def abort(self) -> None:
        self._aborted = True

    def abort_reset(self) -> None:
        self._enter("abort_reset")
        self._aborted = False

    def close(self) -> None:
        self._closed = True

    def _enter(self, name: str) -> None:
        self._on_call(name)
        if self._closed:
            raise ClosedError(what="engine")
