"""What an engine tells a width policy, what it asks of it, and what a machine's widths cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from pylucebox._errors import InvalidArgumentError
from pylucebox._stats import MAX_DRAFT
from pylucebox.width.hints import TextHints
from pylucebox.width.telemetry import WidthTelemetry

__all__ = [
    "MAX_WIDTH",
    "CycleContext",
    "CycleObservation",
    "CyclePlan",
    "DraftPolicy",
    "TextListener",
    "WidthCosts",
    "WidthPolicy",
    "check_choice",
    "check_policy",
    "widest_possible",
]

MAX_WIDTH: Final = MAX_DRAFT + 1


class CycleContext(NamedTuple):
    """What is known before a cycle.

    Attributes
    ----------
    seq
        The sequence.
    n_past
        Its tokens in the context.
    max_tokens_left
        Tokens it may still produce, at least 1.
    max_width
        Widest step possible now, 1 to 8.
    n_active
        Sequences that take part in the cycle.
    hints
        What is known of the text beforehand, the same object in all cycles of a request; None for nothing.
    logprobs
        Whether `CycleObservation.logprobs` will tell how probable the trunk held what it writes.
    """

    seq: int
    n_past: int
    max_tokens_left: int
    max_width: int
    n_active: int = 1
    hints: TextHints | None = None
    logprobs: bool = False


class CyclePlan(NamedTuple):
    """What a cycle should do for a sequence.

    Attributes
    ----------
    width
        Rows to verify, 1 to 8, if nothing is asked back.
    n_draft
        Drafts to make first, at least ``width - 1`` and at most 7. Those that are not verified are shadow drafts: later
        tokens tell whether they would have held.
    ask
        Call `DraftPolicy.decide` with the probabilities of these drafts before anything is verified.
    """

    width: int
    n_draft: int
    ask: bool = False


class CycleObservation(NamedTuple):
    """What a cycle turned out to be.

    Attributes
    ----------
    seq
        The sequence.
    width
        Width it ran with.
    n_drafted, n_accepted
        Its drafts, shadow drafts included, and how many of the verified ones held.
    draft_probs
        The MTP block's probability of each draft; `n_drafted` entries.
    draft_us, verify_us, rollback_us
        Times of the whole cycle in microseconds, over all its sequences.
    n_rows
        Rows of the verify step over all sequences.
    graph_built
        Whether a graph had to be built, so that the times are not those of a later cycle of this width.
    draft_tokens
        The drafts, `n_drafted` token ids; empty when the caller does not know them.
    tokens
        What the sequence got from the cycle.
    n_active
        Sequences that took part.
    draft_graph_built
        Whether a graph of the MTP block had to be built.
    shared_prefill
        Whether the cycle shared its time with the prompt of another sequence.
    logprobs
        Natural logarithm of the probability that the trunk itself gave each of `tokens`, NaN where it is not known;
        empty when the caller does not know them.
    """

    seq: int
    width: int
    n_drafted: int
    n_accepted: int
    draft_probs: tuple[float, ...]
    draft_us: int
    verify_us: int
    rollback_us: int
    n_rows: int
    graph_built: bool
    draft_tokens: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    n_active: int = 1
    draft_graph_built: bool = False
    shared_prefill: bool = False
    logprobs: tuple[float, ...] = ()

    @property
    def n_verified(self) -> int:
        """Drafts of this sequence that were verified."""
        return self.width - 1


@runtime_checkable
class WidthPolicy(Protocol):
    """Chooses the width of each sequence's next cycle.

    One engine owns one policy and calls it from one thread at a time. Per cycle it calls `choose` for every sequence
    that takes part, runs the cycle, then calls `observe` for each of them. A cycle that is cancelled is not observed.
    """

    def begin(self, n_seq: int, max_width: int) -> None:
        """Start of a request or a batch of requests, over `n_seq` sequences and widths 1 to `max_width`."""

    def choose(self, seq: int, context: CycleContext) -> int:
        """Return the width of the next cycle, from 1 to the smaller of `max_width` and `max_tokens_left`."""

    def observe(self, seq: int, observation: CycleObservation) -> None:
        """Learn from a finished cycle."""


@runtime_checkable
class DraftPolicy(WidthPolicy, Protocol):
    """A policy that also decides how deep to draft, and may look at the drafts before they are verified.

    The engine calls `plan` in place of `choose`, and after it, if the plan asks, `decide` until that asks for no more.
    """

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:
        """Return what the next cycle should do for a sequence."""

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:
        """Look at the drafts made so far.

        Parameters
        ----------
        seq
            The sequence.
        probs
            The MTP block's probability of each draft, as many as were drafted.
        tokens
            The drafts; empty when the caller does not know them.

        Returns
        -------
        tuple
            Rows to verify, and further drafts to make before asking again; 0 means verify now.
        """

    def worth_drafting(self, prompt_tokens: int, max_tokens: int) -> str | None:
        """Return None, or why a request of this size should do without MTP. Called before its prompt is run."""

    def telemetry(self) -> WidthTelemetry:
        """Return the figures of the request so far."""


@runtime_checkable
class TextListener(Protocol):
    """A policy that learns from how probable the trunk holds the tokens of a text."""

    def wants_logprobs(self, *, drafts: bool) -> bool:
        """Tell whether it wants logprobs on this machine: of requests that may draft, or of those that it refused.

        Callers that can give them ask before each request.
        """

    def rests(self, seq: int) -> int:
        """Return for how many cycles of a sequence that is alone in them it need not be asked, since none will draft.

        They are observed together, as one with all their tokens.
        """

    def overhear(self, logprobs: Sequence[float], n_tokens: int) -> None:
        """Take the logarithms of probabilities of a text that was written without MTP, as the policy advised.

        Parameters
        ----------
        logprobs
            Of some of its tokens, at even distances.
        n_tokens
            Tokens that it has.
        """


@dataclass(frozen=True, slots=True)
class WidthCosts:
    """What cycles cost on a machine, all in microseconds.

    Attributes
    ----------
    verify_us
        Verify step of 1 to 8 rows; entry 0 is one row, a plain step.
    draft_us
        Chain of 1 to 7 drafts, each entry the whole chain; entry 0 is one draft.
    reject_us
        What a cycle costs more when a draft is rejected.
    mtp_prefill_us_per_token
        What a prompt costs more with MTP than without, per token.
    n_past
        Context length at which this was measured, in tokens.
    source
        Where it comes from: ``"sweep"``, ``"file"``, ``"published: ..."``.
    on_gpu
        Whether a GPU took these times: each launch of drafts has a price of its own there, and plain steps take the
        same time behind any others.

    Raises
    ------
    InvalidArgumentError
        A tuple has another length, or a figure is negative or no number.
    """

    verify_us: tuple[float, ...]
    draft_us: tuple[float, ...]
    reject_us: float
    mtp_prefill_us_per_token: float
    n_past: int
    source: str
    on_gpu: bool = False

    def __post_init__(self) -> None:
        """Refuse figures that are none."""
        for name, length in (("verify_us", MAX_WIDTH), ("draft_us", MAX_DRAFT)):
            figures = getattr(self, name)
            if len(figures) != length or not all(_is_time(figure) and figure > 0 for figure in figures):
                raise InvalidArgumentError(argument=name, value=figures, allowed=f"{length} positive times")
        for name in ("reject_us", "mtp_prefill_us_per_token", "n_past"):
            if not _is_time(getattr(self, name)):
                raise InvalidArgumentError(argument=name, value=getattr(self, name), allowed="a number, 0 or more")

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "verify_us": list(self.verify_us),
            "draft_us": list(self.draft_us),
            "reject_us": self.reject_us,
            "mtp_prefill_us_per_token": self.mtp_prefill_us_per_token,
            "n_past": self.n_past,
            "source": self.source,
            "on_gpu": self.on_gpu,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> WidthCosts:
        """Return the costs that `as_dict` described; further keys are ignored.

        Raises
        ------
        InvalidArgumentError
            A key is missing or what it holds is none of this.
        """
        try:
            return cls(
                verify_us=tuple(stored["verify_us"]),
                draft_us=tuple(stored["draft_us"]),
                reject_us=stored["reject_us"],
                mtp_prefill_us_per_token=stored["mtp_prefill_us_per_token"],
                n_past=stored["n_past"],
                source=str(stored["source"]),
                on_gpu=bool(stored.get("on_gpu", False)),
            )
        except (KeyError, TypeError) as error:
            allowed = "a dictionary as WidthCosts.as_dict makes it"
            raise InvalidArgumentError(argument="stored", value=stored, allowed=allowed) from error


def _is_time(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return isfinite(value) and float(value) >= 0


def check_policy(policy: object) -> None:
    """Raise InvalidArgumentError unless `policy` is a `WidthPolicy` or None."""
    # A class has the methods of its instances too, but nobody to call them on.
    if policy is not None and (isinstance(policy, type) or not isinstance(policy, WidthPolicy)):
        allowed = "an object with the methods begin, choose and observe of WidthPolicy, or None"
        raise InvalidArgumentError(argument="width_policy", value=policy, allowed=allowed)


def check_choice(width: Any, widest: int) -> int:
    """Return the width that a policy chose as an int; NumPy integers are integers.

    Raises
    ------
    InvalidArgumentError
        It is no integer from 1 to `widest`.
    """
    number = 0 if isinstance(width, bool) or not isinstance(width, Integral) else int(width)
    if not 1 <= number <= widest:
        allowed = f"a policy that chooses widths, integers from 1 to {widest} here"
        raise InvalidArgumentError(argument="width_policy", value=width, allowed=allowed)
    return number


def widest_possible(context: CycleContext) -> int:
    """Return the widest step that the limits of a cycle leave, at least 1."""
    return max(1, min(context.max_width, context.max_tokens_left))
