"""Rules that a run must keep to count. Each has a code, so that a report names what went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pylucebox.ab.outcome import Outcome
from pylucebox.ab.records import Arm, CycleRecord, Issue, Request, RunRecord

__all__ = ["CODES", "check_clocks", "check_machine", "check_outcome", "differs", "same_text"]

CODES: Final[Mapping[str, str]] = {
    "start_failed": "the engine or server could not be started",
    "not_healthy": "the server did not become ready in time",
    "died": "the process ended while it was measured",
    "timeout": "there was no answer in time",
    "bad_reply": "the answer could not be used",
    "dropped": "the arm had failed before and was not run again",
    "cached_prompt": "part of the prompt came from a cache",
    "unfinished": "the generation ended for another reason than its length or an end of text",
    "too_short": "fewer than two tokens came, which have no decode speed",
    "wrong_width": "a verify width was used that is not the arm's",
    "clock_jump": "the time of day and the monotonic clock disagree: the clock was set, or the machine slept",
    "clock_contradiction": "the engine reports more time than passed",
    "too_hot": "the machine did not cool down in time",
    "clock_limit": "the processor's highest frequency was changed during the session",
}
"""Codes of `Issue`, and what each means."""

CLOCK_TOLERANCE_S: Final = 0.1
"""Disagreement of the two clocks that slewing and reading them one after the other may cause."""

CLOCK_TOLERANCE: Final = 0.002
"""The same as a share of the run: NTP slews by at most 0.05 %."""


def check_clocks(wall_s: float, monotonic_s: float) -> list[Issue]:
    """Compare what passed on the time of day and on the monotonic clock, both in seconds."""
    if abs(wall_s - monotonic_s) <= CLOCK_TOLERANCE_S + CLOCK_TOLERANCE * monotonic_s:
        return []
    return [Issue(code="clock_jump", detail=f"{wall_s:.3f} s by the time of day, {monotonic_s:.3f} s by the other")]


def check_machine(at_start: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Issue]:
    """Compare the highest frequency allowed with that at the start of the session."""
    limits = [state.get("cpu_limit_mhz") for state in (at_start, before, after)]
    if None in limits or len(set(limits)) == 1:
        return []
    return [Issue(code="clock_limit", detail=f"{limits[0]} MHz at the start, {limits[1]} to {limits[2]} MHz now")]


def check_outcome(arm: Arm, requests: Sequence[Request], outcome: Outcome) -> list[Issue]:
    """Judge what an arm reported, without reference to other runs."""
    issues = []
    for number, raw in enumerate(outcome.sequences):
        if raw.n_cached:
            detail = f"{raw.n_cached} of {raw.n_prompt} prompt tokens of request {number}"
            issues.append(Issue(code="cached_prompt", detail=detail))
        if raw.finish_reason not in ("length", "stop"):
            issues.append(Issue(code="unfinished", detail=f"request {number} ended with {raw.finish_reason!r}"))
        elif raw.n_tokens < min(2, requests[number].max_tokens):
            issues.append(Issue(code="too_short", detail=f"request {number} gave {raw.n_tokens} tokens"))
        # The first token may reach us late, so only the whole time since sending bounds what the engine may report.
        passed_ms = raw.arrivals[-1][1] if raw.arrivals else 0.0
        if raw.decode_ms is not None and len(outcome.sequences) == 1 and raw.decode_ms > 1.02 * passed_ms + 20.0:
            detail = f"{raw.decode_ms:.1f} ms of decoding, {passed_ms:.1f} ms after the request was sent"
            issues.append(Issue(code="clock_contradiction", detail=detail))
    return [*issues, *_check_widths(arm, requests, outcome.cycles)]


def _check_widths(arm: Arm, requests: Sequence[Request], cycles: Sequence[CycleRecord]) -> list[Issue]:
    if not arm.widths:
        return []
    n_left = {seq: request.max_tokens - 1 for seq, request in enumerate(requests)}
    for cycle in cycles:
        limit = max(1, n_left.get(cycle.seq, 1))
        # The last cycles of a request are narrower, because no more tokens are wanted than are left.
        if cycle.width not in arm.widths and not (cycle.width == limit < max(arm.widths)):
            allowed = ", ".join(map(str, arm.widths))
            detail = f"width {cycle.width} with {limit} tokens to go; the arm has {allowed}"
            return [Issue(code="wrong_width", detail=detail)]
        n_left[cycle.seq] = limit - cycle.n_tokens
    return []


def same_text(a: RunRecord, b: RunRecord) -> bool:
    """Tell whether two runs gave the same tokens, or, where one does not tell its tokens, the same text."""
    return len(a.sequences) == len(b.sequences) and differs(a, b) is None


def differs(a: RunRecord, b: RunRecord) -> int | None:
    """Return the first sequence in which two runs of the same requests differ; None when none does."""
    for number, (left, right) in enumerate(zip(a.sequences, b.sequences, strict=False)):
        if left.token_sha256 is not None and right.token_sha256 is not None:
            if left.token_sha256 != right.token_sha256:
                return number
        elif left.text_sha256 != right.text_sha256:
            return number
    return None
