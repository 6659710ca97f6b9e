"""The seam between generation and the native library.

Generation, batching and cancellation know sessions only as `Session`, so they are tested with a scripted one. The real
one is `NativeSession`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pylucebox._sampling import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FINISH_NONE: Final = 0
FINISH_EOG: Final = 1
FINISH_LIMIT: Final = 2
FINISH_CONTEXT: Final = 3
FINISH_FAILED: Final = 4
"""``enum lucebox_finish``; the numbers are the native ones."""

Progress = Callable[[float], bool | None]
"""Called with a fraction from 0 to 1; returning False stops the work."""


class Ask(NamedTuple):
    """What a sequence wants of a cycle: `width` 1 to 8 rows, and at most `max_tokens` new tokens.

    With `logprobs` also how probable the trunk held each new token.
    """

    seq: int
    width: int
    max_tokens: int
    logprobs: bool = False


class MoreDrafts(NamedTuple):
    """How many further drafts a sequence wants, 0 to 7."""

    seq: int
    n_more: int


class Proposal(NamedTuple):
    """The drafts of a sequence that wait for its next cycle, with the MTP block's probability of each."""

    seq: int
    tokens: tuple[int, ...]
    probs: tuple[float, ...]


class SeqCycle(NamedTuple):
    """What a sequence got from a cycle.

    Token i was sampled from row i; the first `n_accepted` tokens equal their drafts. `finish` is a ``FINISH_`` number;
    after FINISH_EOG the last token is the end token; with FINISH_FAILED there may be none. `draft_probs` and
    `draft_tokens` have `n_drafted` entries, of which the first `n_verified` were rows of the verify step. `logprobs`,
    if they were asked for, are natural logarithms of the trunk's own probabilities of the tokens, NaN where the logits
    are not on the host.
    """

    seq: int
    tokens: tuple[int, ...]
    n_drafted: int
    n_accepted: int
    finish: int
    draft_probs: tuple[float, ...]
    n_verified: int
    draft_tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()


class CycleTimes(NamedTuple):
    """``lucebox_cycle_stats`` without its size: times in microseconds and rows, over all sequences of the cycle.

    What concerns drafts includes the proposals since the last cycle.
    """

    draft_us: int
    verify_us: int
    sample_us: int
    rollback_us: int
    n_rows: int
    n_draft_rows: int
    n_draft_steps: int
    graph_built: bool
    draft_graph_built: bool
    n_draft_waits: int = 0
    n_passes: int = 1


class Session(Protocol):
    """Sequences that share a context. One thread at a time, except `abort` and `close`."""

    n_ctx: int
    n_seq: int
    max_width: int

    def open_sampler(self, params: SamplingParams, chat_json: str | None) -> Any:
        """Return a sampler for one `prefill` or `state_load`."""

    def prefill(
        self, seq: int, tokens: Sequence[int], sampler: Any, *, use_mtp: bool, progress: Progress | None = None
    ) -> tuple[int, int]:
        """Run a prompt in a cleared sequence; return its first token and a ``FINISH_`` number."""

    def propose(self, asks: Sequence[MoreDrafts]) -> tuple[list[Proposal], int]:
        """Make further drafts for the next cycle; return all that wait, in the order of `asks`, and the microseconds.

        There are never more than 7, nor more than the context can still take: what is asked beyond is left out.
        """

    def cycle(self, asks: Sequence[Ask]) -> tuple[list[SeqCycle], CycleTimes]:
        """Draft, verify and sample for the sequences asked for; results come in the order of `asks`.

        The drafts that wait are verified first to last and the missing ones made. Those that wait beyond the width are
        reported, but neither verified nor kept.
        """

    def failure(self, seq: int) -> str:
        """Return why a sequence ended with FINISH_FAILED; it must then be cleared."""

    def n_past(self, seq: int) -> int:
        """Return the tokens of a sequence that are in the context."""

    def logits(self, seq: int, row: int) -> npt.NDArray[np.float32]:
        """Return a copy of the logits, shape (n_vocab,), that token `row` of the last call was sampled from."""

    def clear(self, seq: int) -> None:
        """Forget a sequence; does nothing on a closed session."""

    def abort(self) -> None:
        """Make the running or next prefill, proposal or cycle raise CancelledError. Any thread."""

    def abort_reset(self) -> None:
        """Take an `abort` back."""

    def close(self) -> None:
        """Stop what runs, wait for it and free everything. Any thread, any number of times."""
