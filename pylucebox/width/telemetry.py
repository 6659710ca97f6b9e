"""What a width policy did in a request, and why."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

__all__ = ["WidthTelemetry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthTelemetry:
    """Figures of a policy over the request so far, all its sequences together.

    Attributes
    ----------
    cycles, tokens
        Cycles observed, and tokens they produced.
    verified_histogram, drafted_histogram
        Cycles that verified, and that made, 0 to 7 drafts.
    conditional_acceptance
        For each depth 1 to 7, how often a draft held when all before it had; None where nothing is known.
    survival_acceptance
        For each depth, how often this draft and all before it held.
    expected_acceptance
        What the policy expects of the next cycle, conditional, for each depth.
    verify_us
        Price of a verify step with 1 to 8 rows, in microseconds.
    draft_us
        Price of chains of 1 to 7 drafts, in microseconds.
    reject_us
        Price of a rejection, in microseconds.
    price_tokens_per_ms
        What a millisecond is worth: the speed that time spent otherwise would give.
    uses_confidence
        Whether the probabilities of the drafts decide at present.
    confidence_brier, counts_brier
        Brier scores over recent drafts of the calibrated probabilities, and of the mean acceptance alone. None without
        drafts.
    credit_us
        Time left for exploration, in microseconds.
    credit_spent_us
        Time that exploration took, in microseconds.
    ledger_us, ledger_max_us
        Time lost against decoding without MTP as the ledger counts it, now and at its worst. Negative is gained.
    plain_reasons
        Why cycles verified no draft: reason and number of cycles, most frequent first.
    costs_source
        Where the prices started from.
    """

    cycles: int
    tokens: int
    verified_histogram: tuple[int, ...]
    drafted_histogram: tuple[int, ...]
    conditional_acceptance: tuple[float | None, ...]
    survival_acceptance: tuple[float | None, ...]
    expected_acceptance: tuple[float, ...]
    verify_us: tuple[float, ...]
    draft_us: tuple[float, ...]
    reject_us: float
    price_tokens_per_ms: float
    uses_confidence: bool
    confidence_brier: float | None
    counts_brier: float | None
    credit_us: float
    credit_spent_us: float
    ledger_us: float
    ledger_max_us: float
    plain_reasons: tuple[tuple[str, int], ...]
    costs_source: str

    def as_dict(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        out: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            out[field.name] = list(value) if isinstance(value, tuple) else value
        out["plain_reasons"] = dict(self.plain_reasons)
        return out
