"""Counts and times of generation, per request and summed up.

Names follow vLLM's metrics of speculative decoding. `num_drafts` counts cycles that drafted at all, so
``mean_acceptance_length = 1 + num_accepted_tokens / num_drafts`` is the mean number of tokens such a cycle produced.
A draft counts as accepted when it equals the token the trunk sampled in its place, even if a stop string in the same
cycle cut that token off again. Drafts that were made but not verified are counted by themselves: whether they would
have held shows later, if at all.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

__all__ = ["MAX_DRAFT", "RequestStats", "SpecStats", "StatsAccumulator"]

MAX_DRAFT: Final = 7
"""Most drafts of a cycle; LUCEBOX_MAX_DRAFT of the native library."""

_ZEROS: Final = (0,) * MAX_DRAFT
_NO_CYCLES: Final = (0,) * (MAX_DRAFT + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counters:
    """Fields and figures that both kinds of statistics share.

    Attributes
    ----------
    prompt_tokens, completion_tokens
        Tokens of the prompt, and tokens delivered.
    decode_tokens
        Tokens that cycles produced: all but each request's first one, which prefill samples, and including those that a
        stop string cut off.
    cycles
        Draft-verify cycles, with or without drafts.
    num_drafts, num_draft_tokens, num_accepted_tokens
        Cycles that verified drafts, drafts verified, drafts that held.
    num_draft_tokens_per_pos, num_accepted_tokens_per_pos
        The same by depth; entry 0 is the first draft of a cycle. Always `MAX_DRAFT` entries.
    num_reached_per_pos
        By depth, the cycles that verified a draft there and in which all drafts before it held.
    num_shadow_draft_tokens
        Drafts made and not verified.
    verified_histogram, drafted_histogram
        Cycles that verified, and that made, 0, 1, ... 7 drafts.
    prefill_ms, decode_ms
        Time of the prompt and of all cycles, measured around the native calls, in milliseconds.
    draft_ms, verify_ms, sample_ms, rollback_ms
        Parts of `decode_ms` as the native library measured them.
    graphs_built
        Cycles that had to build the verify graph.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    decode_tokens: int = 0
    cycles: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_draft_tokens_per_pos: tuple[int, ...] = _ZEROS
    num_accepted_tokens_per_pos: tuple[int, ...] = _ZEROS
    num_reached_per_pos: tuple[int, ...] = _ZEROS
    num_shadow_draft_tokens: int = 0
    verified_histogram: tuple[int, ...] = _NO_CYCLES
    drafted_histogram: tuple[int, ...] = _NO_CYCLES
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    sample_ms: float = 0.0
    rollback_ms: float = 0.0
    graphs_built: int = 0

    @property
    def mean_acceptance_length(self) -> float | None:
        """Mean tokens of a cycle with drafts, 1 to 8; None when nothing was drafted."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def acceptance_rate(self) -> float | None:
        """Share of verified drafts that held, 0 to 1; None when nothing was verified."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def acceptance_per_pos(self) -> tuple[float | None, ...]:
        """Survival by depth: of the cycles that verified so deep, the share in which this draft and all before it held.

        None for a depth that was never verified.
        """
        return _shares(self.num_accepted_tokens_per_pos, self.num_draft_tokens_per_pos)

    @property
    def conditional_acceptance_per_pos(self) -> tuple[float | None, ...]:
        """Of the cycles that verified so deep with all drafts before held, the share in which this one held as well.

        None for a depth that was never reached.
        """
        return _shares(self.num_accepted_tokens_per_pos, self.num_reached_per_pos)

    @property
    def tokens_per_s(self) -> float | None:
        """Decode speed: `decode_tokens` over `decode_ms`; None before the first cycle."""
        return self.decode_tokens * 1000 / self.decode_ms if self.decode_ms > 0 else None

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt speed; None when no time was measured."""
        return self.prompt_tokens * 1000 / self.prefill_ms if self.prefill_ms > 0 else None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields and derived figures for JSON; every key is always there, unknown figures are None."""
        out: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            out[field.name] = list(value) if isinstance(value, tuple) else value
        out["mean_acceptance_length"] = self.mean_acceptance_length
        out["acceptance_rate"] = self.acceptance_rate
        out["acceptance_per_pos"] = list(self.acceptance_per_pos)
        out["conditional_acceptance_per_pos"] = list(self.conditional_acceptance_per_pos)
        out["tokens_per_s"] = self.tokens_per_s
        out["prefill_tokens_per_s"] = self.prefill_tokens_per_s
        return out


def _shares(parts: tuple[int, ...], wholes: tuple[int, ...]) -> tuple[float | None, ...]:
    return tuple(part / whole if whole else None for part, whole in zip(parts, wholes, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats(_Counters):
    """Statistics of one request; the fields are described in the base class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStats(_Counters):
    """Statistics summed over requests.

    Attributes
    ----------
    requests
        Requests that were added.
    """

    requests: int = 0

    def merge(self, other: RequestStats | SpecStats) -> SpecStats:
        """Return the sum of both.

        With several sequences in one batch the times of a cycle are counted in each of its requests, so the summed
        times can exceed the time on the clock.
        """
        n_requests = other.requests if isinstance(other, SpecStats) else 1
        names = [field.name for field in fields(_Counters)]
        summed = {name: _add(getattr(self, name), getattr(other, name)) for name in names}
        return SpecStats(requests=self.requests + n_requests, **summed)


_T = TypeVar("_T", int, float, tuple[int, ...])


def _add(left: _T, right: _T) -> _T:
    if isinstance(left, tuple):
        return tuple(a + b for a, b in zip(left, right, strict=True))
    return left + right


class StatsAccumulator:
    """Collects the figures of one request while it runs. Not thread-safe."""

    def __init__(self) -> None:
        self._sum: dict[str, Any] = {field.name: 0 for field in fields(_Counters)}
        self._drafted = [0] * MAX_DRAFT
        self._accepted = [0] * MAX_DRAFT
        self._reached = [0] * MAX_DRAFT
        self._n_verified = [0] * (MAX_DRAFT + 1)
        self._n_drafted = [0] * (MAX_DRAFT + 1)

    def add_prefill(self, *, n_tokens: int, wall_us: float) -> None:
        """Count a prompt of `n_tokens` that took `wall_us` microseconds."""
        self._sum["prompt_tokens"] += n_tokens
        self._sum["prefill_ms"] += wall_us / 1000

    def add_cycle(
        self,
        *,
        n_tokens: int,
        n_drafted: int,
        n_accepted: int,
        wall_us: float,
        n_verified: int | None = None,
        draft_us: float = 0,
        verify_us: float = 0,
        sample_us: float = 0,
        rollback_us: float = 0,
        graph_built: bool = False,
    ) -> None:
        """Count one cycle of the request.

        Parameters
        ----------
        n_tokens
            Tokens it produced, before any are cut off by a stop string.
        n_drafted, n_accepted
            Drafts made and drafts that held.
        wall_us
            Time of the native calls in microseconds, as seen by the caller.
        n_verified
            Drafts that were verified; None: all.
        draft_us, verify_us, sample_us, rollback_us, graph_built
            As the native library reports them.

        Raises
        ------
        ValueError
            The counts contradict each other. That is a defect of the caller, and statistics that show more accepted
            than drafted tokens are worse than none.
        """
        verified = n_drafted if n_verified is None else n_verified
        if not 0 <= n_accepted <= verified <= n_drafted <= MAX_DRAFT or not 1 <= n_tokens <= n_accepted + 1:
            raise ValueError(
                f"impossible cycle: {n_tokens} tokens, {n_accepted} of {verified} of {n_drafted} drafts accepted"
            )
        total = self._sum
        total["cycles"] += 1
        total["decode_tokens"] += n_tokens
        total["num_drafts"] += verified > 0
        total["num_draft_tokens"] += verified
        total["num_shadow_draft_tokens"] += n_drafted - verified
        total["num_accepted_tokens"] += n_accepted
        total["decode_ms"] += wall_us / 1000
        total["draft_ms"] += draft_us / 1000
        total["verify_ms"] += verify_us / 1000
        total["sample_ms"] += sample_us / 1000
        total["rollback_ms"] += rollback_us / 1000
        total["graphs_built"] += graph_built
        for depth in range(verified):
            self._drafted[depth] += 1
            self._accepted[depth] += depth < n_accepted
            self._reached[depth] += depth <= n_accepted
        self._n_verified[verified] += 1
        self._n_drafted[n_drafted] += 1

    def add_delivered(self, n_tokens: int) -> None:
        """Count tokens handed to the caller."""
        self._sum["completion_tokens"] += n_tokens

    def snapshot(self) -> RequestStats:
        """Return the figures so far."""
        return RequestStats(
            **{
                **self._sum,
                "num_draft_tokens_per_pos": tuple(self._drafted),
                "num_accepted_tokens_per_pos": tuple(self._accepted),
                "num_reached_per_pos": tuple(self._reached),
                "verified_histogram": tuple(self._n_verified),
                "drafted_histogram": tuple(self._n_drafted),
            }
        )
