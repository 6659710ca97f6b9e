"""Why a request took the widths it took: a picture of width over tokens, and tables. Pure: returns text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from pylucebox._result import Completion, Step
from pylucebox._stats import MAX_DRAFT, RequestStats
from pylucebox.cli._table import Table, plain_lines
from pylucebox.width import MAX_WIDTH, WidthTelemetry

_COLUMNS: Final = 72
_GAINED, _LOST, _NONE = "█", "░", " "
_PLAIN: Final = {_GAINED: "#", _LOST: ".", _NONE: " "}


@dataclass(frozen=True, slots=True)
class CycleSeen:
    """A cycle, as far as the picture needs it.

    Attributes
    ----------
    width
        Rows verified.
    n_drafted
        Drafts made.
    n_accepted
        Drafts that held.
    n_tokens
        Tokens delivered.
    """

    width: int
    n_drafted: int
    n_accepted: int
    n_tokens: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def cycle_of(step: Step) -> CycleSeen | None:
    """Return the cycle of a step; None for the first token, which prefill samples."""
    cycle = step.cycle
    if cycle is None:
        return None
    return CycleSeen(cycle.width, cycle.n_drafted, cycle.n_accepted, len(step.token_ids))


def explain_lines(completion: Completion, cycles: Sequence[CycleSeen], *, drawn: bool) -> list[str]:
    """Explain a request.

    Parameters
    ----------
    completion
        What it gave.
    cycles
        Its cycles.
    drawn
        Whether block characters can be shown.
    """
    spec = completion.spec
    lines = [f"MTP {'on' if spec.effective else 'off'}: {spec.reason}"]
    if cycles:
        lines += ["", *picture_lines(cycles, drawn=drawn)]
    if completion.stats.num_draft_tokens or completion.stats.num_shadow_draft_tokens:
        lines += ["", *plain_lines(_counts(completion.stats))]
        lines += ["", *plain_lines(_depths(completion.stats, completion.telemetry))]
    if completion.telemetry is not None:
        lines += ["", *_reasoning(completion.telemetry)]
    return lines


def picture_lines(cycles: Sequence[CycleSeen], *, drawn: bool) -> list[str]:
    """Draw width over tokens: the height is the width, the solid part the tokens that came of it.

    Parameters
    ----------
    cycles
        At least one.
    drawn
        Whether block characters can be shown.
    """
    per_token = [cycle for cycle in cycles for _ in range(cycle.n_tokens)]
    n_columns = min(_COLUMNS, max(1, len(per_token)))
    edges = [round(column * len(per_token) / n_columns) for column in range(n_columns + 1)]
    columns = [_mean(per_token[low:high] or cycles[-1:]) for low, high in pairwise(edges)]
    marks = {mark: mark if drawn else _PLAIN[mark] for mark in _PLAIN}
    lines = [f"Width over {len(per_token)} tokens: {marks[_GAINED]} rows that gave a token, {marks[_LOST]} rows lost"]
    for height in range(MAX_WIDTH, 0, -1):
        row = (_GAINED if height <= gained else _LOST if height <= width else _NONE for width, gained in columns)
        lines.append(f"  {height} |{''.join(marks[mark] for mark in row)}".rstrip())
    lines.append(f"    +{'-' * n_columns}")
    return lines


def _mean(cycles: Sequence[CycleSeen]) -> tuple[int, int]:
    """Return the mean width, and the mean number of rows that gave a token."""
    width = sum(cycle.width for cycle in cycles) / len(cycles)
    gained = sum(min(cycle.width, cycle.n_accepted + 1) for cycle in cycles) / len(cycles)
    return round(width), round(gained)


def _counts(stats: RequestStats) -> Table:
    rows = (
        ("verified", *map(str, stats.verified_histogram)),
        ("drafted", *map(str, stats.drafted_histogram)),
    )
    return Table("Cycles by their number of drafts", ("", *map(str, range(MAX_DRAFT + 1))), rows)


def _depths(stats: RequestStats, telemetry: WidthTelemetry | None) -> Table:
    rows = [
        ("verified", *map(str, stats.num_draft_tokens_per_pos)),
        ("held, if all before did", *map(_percent, stats.conditional_acceptance_per_pos)),
        ("held, and all before", *map(_percent, stats.acceptance_per_pos)),
    ]
    if telemetry is not None:
        rows.append(("expected next, if all before", *map(_percent, telemetry.expected_acceptance)))
    return Table("Drafts by depth", ("", *map(str, range(1, MAX_DRAFT + 1))), tuple(rows))


def _reasoning(telemetry: WidthTelemetry) -> list[str]:
    prices = Table(
        f"What the policy reckons with, in ms (from {telemetry.costs_source}; a rejection {_ms(telemetry.reject_us)})",
        ("", *map(str, range(MAX_WIDTH))),
        (
            ("verify so many drafts", *map(_ms, telemetry.verify_us)),
            ("make so many drafts", "0.00", *map(_ms, telemetry.draft_us)),
        ),
    )
    confidence = "used" if telemetry.uses_confidence else "not used"
    if telemetry.confidence_brier is not None and telemetry.counts_brier is not None:
        confidence += f" (Brier score {telemetry.confidence_brier:.3f}, of counting {telemetry.counts_brier:.3f})"
    reasons = ", ".join(f"{reason} {count}" for reason, count in telemetry.plain_reasons) or "none"
    return [
        *plain_lines(prices),
        "",
        f"price of time: {telemetry.price_tokens_per_ms:.3g} tokens/ms; probabilities of drafts: {confidence}",
        f"exploration: {_ms(telemetry.credit_spent_us)} ms spent, {_ms(telemetry.credit_us)} ms left",
        f"against no MTP: {_ms(telemetry.ledger_us)} ms lost now, {_ms(telemetry.ledger_max_us)} at most",
        f"cycles without drafts, and why: {reasons}",
    ]


def _ms(time_us: float) -> str:
    return f"{time_us / 1000:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"
