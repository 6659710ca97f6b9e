"""`lucebox generate --explain`: the picture, the tables and what the policy tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pylucebox._result import Completion, CycleInfo, Step
from pylucebox._spec import SpecReason, spec_active, spec_inactive
from pylucebox._stats import StatsAccumulator
from pylucebox.cli._explain import CycleSeen, cycle_of, explain_lines, picture_lines
from pylucebox.width import WidthTelemetry

Lucebox = Callable[..., int]

TELEMETRY = WidthTelemetry(
    cycles=3,
    tokens=7,
    verified_histogram=(1, 0, 0, 2, 0, 0, 0, 0),
    drafted_histogram=(1, 0, 0, 1, 0, 1, 0, 0),
    conditional_acceptance=(1.0, 0.5, None, None, None, None, None),
    survival_acceptance=(1.0, 0.5, None, None, None, None, None),
    expected_acceptance=(0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3),
    verify_us=(1000.0, 1100.0, 1200.0, 1300.0, 1400.0, 1500.0, 1600.0, 1700.0),
    draft_us=(100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0),
    reject_us=50.0,
    price_tokens_per_ms=1.25,
    uses_confidence=True,
    confidence_brier=0.12,
    counts_brier=0.2,
    credit_us=300.0,
    credit_spent_us=2500.0,
    ledger_us=-4000.0,
    ledger_max_us=1500.0,
    plain_reasons=(("ledger", 1),),
    costs_source="sweep",
)


def completion(telemetry: WidthTelemetry | None = TELEMETRY) -> Completion:
    stats = StatsAccumulator()
    stats.add_cycle(n_tokens=4, n_drafted=3, n_accepted=3, wall_us=1)
    stats.add_cycle(n_tokens=2, n_drafted=5, n_verified=3, n_accepted=1, wall_us=1)
    stats.add_cycle(n_tokens=1, n_drafted=0, n_accepted=0, wall_us=1)
    return Completion(
        text="",
        token_ids=(),
        finish_reason="length",
        stop_sequence=None,
        prompt_tokens=1,
        logprobs=None,
        stats=stats.snapshot(),
        spec=spec_active("there is a block"),
        telemetry=telemetry,
    )


CYCLES = (CycleSeen(4, 3, 3, 4), CycleSeen(4, 5, 1, 2), CycleSeen(1, 0, 0, 1))


def test_picture_shows_width_and_what_came_of_it() -> None:
    lines = picture_lines(CYCLES, drawn=False)
    assert lines[1:] == [
        "  8 |",
        "  7 |",
        "  6 |",
        "  5 |",
        "  4 |####..",
        "  3 |####..",
        "  2 |######",
        "  1 |#######",
        "    +-------",
    ]
    drawn = picture_lines(CYCLES, drawn=True)
    assert drawn[5] == "  4 |████░░"


def test_long_picture_is_as_wide_as_a_terminal_and_has_means() -> None:
    lines = picture_lines((CycleSeen(8, 7, 7, 8), CycleSeen(2, 1, 1, 2)) * 400, drawn=False)
    assert {len(line) for line in lines[1:] if "#" in line} <= {77, *range(70, 77)}
    assert len(lines[-1]) == 77
    assert lines[-2].count("#") == 72  # at least one row everywhere


def test_tables_tell_depths_and_widths() -> None:
    text = "\n".join(explain_lines(completion(), CYCLES, drawn=False))
    rows = {line.strip().split("  ")[0]: line.split()[-7:] for line in text.splitlines()}
    assert rows["held, if all before did"] == ["100%", "50%", "100%", "-", "-", "-", "-"]
    assert rows["held, and all before"] == ["100%", "50%", "50%", "-", "-", "-", "-"]
    assert rows["expected next, if all before"] == ["90%", "80%", "70%", "60%", "50%", "40%", "30%"]
    assert rows["drafted"] == ["0", "0", "1", "0", "1", "0", "0"]
    for part in (
        "from sweep",
        "1.25 tokens/ms",
        "used (Brier score 0.120, of counting 0.200)",
        "2.50 ms spent, 0.30 ms left",
        "-4.00 ms lost now, 1.50 at most",
        "ledger 1",
    ):
        assert part in text
    assert text.isascii()


def test_without_telemetry_and_drafts_there_is_little_to_say() -> None:
    plain = replace(
        completion(None), stats=StatsAccumulator().snapshot(), spec=spec_inactive(SpecReason.NO_SIDECAR, "none there")
    )
    assert explain_lines(plain, [], drawn=False) == ["MTP off: none there"]
    assert "expected next" not in "\n".join(explain_lines(completion(None), CYCLES, drawn=False))


def test_policy_without_brier_scores_or_reasons() -> None:
    telemetry = replace(TELEMETRY, confidence_brier=None, uses_confidence=False, plain_reasons=())
    text = "\n".join(explain_lines(completion(telemetry), CYCLES, drawn=False))
    assert "probabilities of drafts: not used\n" in text
    assert "and why: none" in text


def test_first_token_has_no_cycle() -> None:
    assert cycle_of(Step(text="a", token_ids=(1,))) is None
    info = CycleInfo(
        width=3,
        n_drafted=4,
        n_verified=2,
        n_accepted=1,
        draft_probs=(0.5,) * 4,
        draft_us=1,
        verify_us=1,
        sample_us=1,
        rollback_us=1,
        n_rows=3,
        graph_built=False,
    )
    assert cycle_of(Step(text="a", token_ids=(1, 2), cycle=info)) == CycleSeen(3, 4, 1, 2)


def test_explanation_goes_to_standard_error(lucebox: Lucebox, capsys: pytest.CaptureFixture[str]) -> None:
    assert lucebox("generate", "hello", "--explain", "--max-tokens", "8", "--verify-width", "3") == 0
    captured = capsys.readouterr()
    assert captured.out.count("<") == 8
    assert "Drafts by depth" in captured.err
    assert "MTP on" in captured.err
    lucebox("generate", "hello", "--max-tokens", "8")
    assert "Drafts by depth" not in capsys.readouterr().err


def test_json_has_the_cycles_when_asked_to_explain(lucebox: Lucebox, capsys: pytest.CaptureFixture[str]) -> None:
    assert lucebox("generate", "hello", "--explain", "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["cycles"] == []  # the made-up engine reports none
    assert document["stats"]["conditional_acceptance_per_pos"]
    assert document["completion"]["telemetry"] is None
