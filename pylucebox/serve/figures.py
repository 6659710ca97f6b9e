"""What a server says of itself, as figures to show. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pylucebox.width import MAX_WIDTH

__all__ = ["Metrics", "SlotView", "View", "parse_metrics", "view_of"]

_SAMPLE: Final = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')

Metrics = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by name and labels."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot.

    Attributes
    ----------
    number
        Its number.
    busy
        Whether it answers a request.
    n_prompt, n_generated
        Tokens of the request's prompt, and of its reply so far.
    """

    number: int
    busy: bool
    n_prompt: int = 0
    n_generated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A server at one moment.

    Attributes
    ----------
    slots
        All of them.
    n_queued
        Requests that wait for one.
    tokens_per_s
        Tokens that all slots generated, over the time since the view before; None without one.
    acceptance
        Share of the drafts that held, by depth, since the server was started; None where none was verified.
    passes_by_width
        Passes since the server was started, of 1 to 8 rows.
    effective, reason
        Whether drafts are made, and why or why not.
    policy
        State of the width policy.
    """

    slots: tuple[SlotView, ...] = ()
    n_queued: int = 0
    tokens_per_s: float | None = None
    acceptance: tuple[float | None, ...] = ()
    passes_by_width: tuple[int, ...] = ()
    effective: bool = False
    reason: str = ""
    policy: str = ""
    _n_tokens: float = field(default=0.0, repr=False)
    _time_s: float = field(default=0.0, repr=False)


def parse_metrics(text: str) -> Metrics:
    """Read Prometheus' text format."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.fullmatch(line.strip())
        if match:
            found[match["name"], frozenset(_LABEL.findall(match["labels"] or ""))] = float(match["value"])
    return found


def view_of(
    metrics: Metrics,
    slots: Sequence[Mapping[str, Any]],
    health: Mapping[str, Any],
    *,
    time_s: float,
    before: View | None = None,
) -> View:
    """Make a view of what a server's endpoints said.

    Parameters
    ----------
    metrics
        From ``/metrics``.
    slots
        From ``/slots``.
    health
        From ``/health``.
    time_s
        When that was, on any clock.
    before
        The view before, for what is counted over time.
    """
    spec = health.get("speculative", {})
    policy = spec.get("policy", {})
    passes = [_total(metrics, "lucebox_verify_width_bucket", le=str(width)) for width in range(1, MAX_WIDTH + 1)]
    n_passes = passes[-1] if passes else 0.0
    n_tokens = _total(metrics, "lucebox_accepted_length_sum")
    return View(
        slots=tuple(_slot(entry) for entry in slots),
        n_queued=int(_total(metrics, "llamacpp:requests_deferred")),
        tokens_per_s=_rate(before, n_tokens, time_s),
        acceptance=tuple(_acceptance(metrics, depth, n_passes - passes[depth]) for depth in range(MAX_WIDTH - 1)),
        passes_by_width=tuple(int(b - a) for a, b in zip([0.0, *passes[:-1]], passes, strict=True)),
        effective=bool(spec.get("effective")),
        reason=str(spec.get("reason", "")),
        policy=str(policy.get("reason") or policy.get("state", "")),
        _n_tokens=n_tokens,
        _time_s=time_s,
    )


def _total(metrics: Metrics, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value for (found, marks), value in metrics.items() if found == name and wanted <= marks)


def _rate(before: View | None, n_tokens: float, time_s: float) -> float | None:
    if before is None or time_s <= before._time_s or n_tokens < before._n_tokens:  # or it was started again
        return None
    return (n_tokens - before._n_tokens) / (time_s - before._time_s)


def _acceptance(metrics: Metrics, depth: int, n_verified: float) -> float | None:
    if not n_verified:
        return None
    held = _total(metrics, "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", position=str(depth))
    return min(1.0, held / n_verified)


def _slot(entry: Mapping[str, Any]) -> SlotView:
    tokens = entry.get("next_token") or [{}]
    return SlotView(
        number=int(entry["id"]),
        busy=bool(entry["is_processing"]),
        n_prompt=int(entry.get("n_prompt_tokens", 0)),
        n_generated=int(tokens[0].get("n_decoded", 0)),
    )
