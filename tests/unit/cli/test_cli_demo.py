"""`lucebox demo` on a made-up engine."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylucebox.cli import _demo_report as reports
from pylucebox.cli import _demo_run as runs
from pylucebox.cli import _demo_text as words
from pylucebox.cli._demo_prompts import PROMPTS, DemoPrompt

Lucebox = Callable[..., int]
SMALL = ("--prompts", "3", "--tokens", "20", "--repeats", "6")


def plan(**changes: Any) -> runs.DemoPlan:
    prompts = (DemoPrompt("one", "first"), DemoPrompt("two", "second", temperature=0.7, seed=3))
    settings = {"max_tokens": 25, "width": 4, "n_rounds": 6, "n_noise_rounds": 4, "n_threads": 1}
    return runs.DemoPlan(prompts=prompts, **{**settings, **changes})


def measured(factory: Any, clock: Any, **changes: Any) -> reports.DemoReport:
    done = runs.measure(plan(**changes), factory, progress=lambda _: None, announce=lambda *_: None, clock=clock)
    return reports.report_on(done)


def test_off_really_is_without_mtp_and_on_requires_it(factory: Any, clock: Any) -> None:
    measured(factory, clock)
    assert [(e.options.mtp, e.options.spec, e.options.verify_width) for e in factory.opened] == [
        ("off", "auto", 0),
        ("auto", "require", runs.PROBE_WIDTH),
        ("auto", "require", 4),
    ]
    assert all(engine.closed for engine in factory.opened)


def test_number_of_runs_is_the_planned_one(factory: Any, clock: Any) -> None:
    seen: list[str] = []
    asked = plan()
    runs.measure(asked, factory, progress=seen.append, announce=lambda *_: None, clock=clock)
    assert len(seen) == asked.n_runs == sum(len(engine.calls) for engine in factory.opened)


def test_noise_is_announced_before_the_comparison(factory: Any, clock: Any) -> None:
    events: list[str] = []
    runs.measure(plan(), factory, progress=events.append, announce=lambda *_: events.append("announced"), clock=clock)
    at = events.index("announced")
    assert any(event.startswith("off against off") for event in events[:at])
    assert not any(event.startswith("off against on") for event in events[:at])
    assert any(event.startswith("off against on") for event in events[at:])


def test_sampled_prompts_run_with_their_seed_on_both_sides(factory: Any, clock: Any) -> None:
    measured(factory, clock)
    for engine in factory.opened:
        seeds = {call["prompt"]: call["sampling"] and call["sampling"].seed for call in engine.calls}
        assert seeds == {"first": None, "second": 3}


def test_ratio_is_the_ratio_of_the_decode_speeds(factory: Any, clock: Any) -> None:
    """24 tokens after the first: 8 cycles with 3 drafts each, 2 of which hold, against 24 steps of 1000 us."""
    report = measured(factory, clock)
    expected = 24 * 1000 / (8 * (1000 + 3 * (500 + 600)))
    for each in report.prompts:
        assert each.speedup is not None
        assert each.speedup.ratio == pytest.approx(expected, rel=0.05)
        assert each.verdict == "slower"
    assert report.total_verdict == "slower"


def test_a_machine_that_slows_down_half_way_does_not_change_the_verdict(factory: Any, clock: Any) -> None:
    steady = measured(factory, clock, n_rounds=8)
    factory.settings["slow_from_s"] = clock.now_s + 0.5
    clock_before = clock.now_s
    slowed = measured(factory, clock, n_rounds=8)
    assert clock.now_s - clock_before > 0.5
    assert steady.total is not None
    assert slowed.total is not None
    assert slowed.total.ratio == pytest.approx(steady.total.ratio, rel=0.02)


def test_prefill_is_no_part_of_the_decode_speed(factory: Any, clock: Any) -> None:
    report = measured(factory, clock)
    assert report.prompts[0].runs.tok_s_off == pytest.approx([1000.0] * 6)


def test_cost_explains_the_slowness_in_plain_steps(factory: Any, clock: Any) -> None:
    report = measured(factory, clock, max_tokens=301)
    assert report.cost.verify_row_steps == pytest.approx((1000 + 3 * 600) / 4 / 1000, rel=0.02)
    assert report.cost.tokens_per_cycle == pytest.approx(3.0, rel=0.02)
    text = " ".join(words.summary_sentences(report))
    assert "SLOWER than MTP off" in text
    assert "does not pay" in text


def test_even_full_acceptance_is_ruled_out_when_a_cycle_costs_more_than_its_width(factory: Any, clock: Any) -> None:
    report = measured(factory, clock)
    assert report.cost.cycle_steps > 4
    assert "Even if every draft held, it would not" in " ".join(words.summary_sentences(report))


def test_few_pairs_give_a_ratio_but_no_verdict(factory: Any, clock: Any) -> None:
    report = measured(factory, clock, n_rounds=3)
    assert report.total_verdict == "unresolved"
    assert all(each.verdict == "unresolved" for each in report.prompts)
    assert "too few to tell" in " ".join(words.summary_sentences(report))


def test_adaptive_width_tells_how_often_it_drafted(factory: Any, clock: Any) -> None:
    text = " ".join(words.summary_sentences(measured(factory, clock, width=0)))
    assert "chose to draft in" in text
    assert f"width {runs.PROBE_WIDTH}" in text


def test_an_engine_that_chose_never_to_draft_is_said_to(factory: Any, clock: Any) -> None:
    def shun_drafts(engine: Any) -> None:
        if engine.options.verify_width == 0:
            engine.options = replace(engine.options, verify_width=1)

    factory.adjust = shun_drafts
    text = " ".join(words.summary_sentences(measured(factory, clock, width=0)))
    assert "chose never to draft" in text
    assert "No difference beyond the noise" in text


def test_a_difference_in_any_run_is_found_with_its_index_and_states_no_speedup(factory: Any, clock: Any) -> None:
    factory.settings["broken_after"] = 7
    report = measured(factory, clock)
    assert not report.runs.identical
    assert [each.runs.differs_at for each in report.prompts] == [7, 7]
    assert all(each.speedup is None and each.verdict == "differs" for each in report.prompts)
    assert report.total is None
    assert "token 7" in words.identity_sentence(report)


def test_a_run_that_differs_only_later_is_found(factory: Any, clock: Any) -> None:
    def spoil_last_run(engine: Any) -> None:
        honest = engine.stream

        def stream(*args: Any, **settings: Any) -> Any:
            engine.broken_after = 3 if len(engine.calls) == 2 + 12 - 1 else None
            return honest(*args, **settings)

        engine.stream = stream

    factory.adjust = spoil_last_run
    done = runs.measure(plan(), factory, progress=lambda _: None, announce=lambda *_: None, clock=clock)
    report = reports.report_on(done)
    wrong = [each for each in report.prompts if each.runs.differs_at is not None]
    assert [each.runs.differs_at for each in wrong] == [3]
    document = reports.prompt_document(wrong[0])
    assert document["digest_on"] != document["digest_off"]


def test_json_is_one_document_with_the_promised_fields(lucebox: Lucebox, capsys: pytest.CaptureFixture[str]) -> None:
    assert lucebox("demo", "--json", *SMALL) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert document["model"] == "made-up"
    assert document["spec"]["effective"] is True
    assert document["chart"] == "lucebox-demo.svg"
    assert len(document["prompts"]) == 3
    for prompt in document["prompts"]:
        assert prompt["digest_off"] == prompt["digest_on"]
        assert prompt["tokens"] == 20
        assert prompt["speedup_low"] <= prompt["speedup"] <= prompt["speedup_high"]
        assert len(prompt["num_accepted_tokens_per_pos"]) == 7
        assert prompt["tok_s_off"] > 0
        assert prompt["tok_s_on"] > 0
    assert {"median", "floor", "pairs"} <= document["aa_noise"].keys()


def test_digests_of_different_prompts_differ_so_they_can_tell_texts_apart(
    lucebox: Lucebox, capsys: pytest.CaptureFixture[str]
) -> None:
    lucebox("demo", "--json", *SMALL)
    digests = [prompt["digest_off"] for prompt in json.loads(capsys.readouterr().out)["prompts"]]
    assert len(set(digests)) == len(digests)


def test_differing_texts_give_exit_status_1_and_the_index(
    lucebox: Lucebox, factory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    factory.settings["broken_after"] = 5
    assert lucebox("demo", "--json", *SMALL) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["identical"] is False
    for prompt in document["prompts"]:
        assert prompt["first_differing_token"] == 5
        assert prompt["digest_off"] != prompt["digest_on"]
        assert prompt["speedup"] is None


def test_differing_texts_are_named_in_the_text_output(
    lucebox: Lucebox, factory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    factory.settings["broken_after"] = 5
    assert lucebox("demo", *SMALL) == 1
    shown = capsys.readouterr().out
    assert "DIFFERENT TEXT" in shown
    assert "differ at token 5" in shown


def test_text_output_prints_the_noise_first_then_digests_ratios_and_acceptance(
    lucebox: Lucebox, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lucebox("demo", *SMALL) == 0
    shown = capsys.readouterr().out
    places = [shown.index(part) for part in ("noise:", "digest off", "tok/s off", "depth 7", "Same text", "chart:")]
    assert places == sorted(places)
    assert "MTP on: the MTP file fits" in shown


def test_progress_goes_to_standard_error_in_lines(lucebox: Lucebox, capsys: pytest.CaptureFixture[str]) -> None:
    lucebox("demo", *SMALL)
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("lucebox demo:")]
    assert len(lines) == 10
    assert "71 of 71 runs" in lines[-1]
    assert "of 71 runs" not in captured.out


def test_chart_is_written_where_asked(lucebox: Lucebox, tmp_path: Path) -> None:
    lucebox("demo", *SMALL, "--chart", "other.svg")
    root = ET.parse(tmp_path / "other.svg").getroot()
    shown = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {prompt.name for prompt in PROMPTS[:3]} <= set(shown)
    assert not (tmp_path / "lucebox-demo.svg").exists()


def test_no_chart_is_written_when_none_is_wanted(
    lucebox: Lucebox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lucebox("demo", *SMALL, "--chart", "none", "--json")
    assert list(tmp_path.iterdir()) == []
    assert json.loads(capsys.readouterr().out)["chart"] is None


def test_a_chart_that_cannot_be_written_costs_neither_result_nor_status(
    lucebox: Lucebox, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").mkdir()
    assert lucebox("demo", *SMALL, "--chart", "taken", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["chart"] is None
    assert "taken" in captured.err


def test_a_missing_chart_directory_is_refused_before_anything_runs(lucebox: Lucebox, factory: Any) -> None:
    assert lucebox("demo", "--chart", "nowhere/chart.svg") == 2
    assert factory.opened == []


@pytest.mark.parametrize(
    "flags",
    [("--width", "1"), ("--width", "9"), ("--tokens", "1"), ("--prompts", "0"), ("--repeats", "0"), ("--threads", "0")],
)
def test_values_out_of_range_are_usage_errors(
    lucebox: Lucebox, factory: Any, capsys: pytest.CaptureFixture[str], flags: tuple[str, str]
) -> None:
    assert lucebox("demo", *flags) == 2
    assert flags[0] in capsys.readouterr().err
    assert factory.opened == []


def test_one_thread_unless_told_otherwise(lucebox: Lucebox, factory: Any) -> None:
    lucebox("demo", "--prompts", "1", "--tokens", "4", "--repeats", "1")
    assert {engine.options.n_threads for engine in factory.opened} == {1}
    factory.opened.clear()
    lucebox("demo", "--prompts", "1", "--tokens", "4", "--repeats", "1", "--threads", "2")
    assert {engine.options.n_threads for engine in factory.opened} == {2}


def test_a_model_that_ends_at_once_is_an_error_and_not_a_division_by_zero(
    lucebox: Lucebox, factory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    factory.settings["ends_at_once"] = True
    assert lucebox("demo", *SMALL) == 1
    assert "ended at its first token" in capsys.readouterr().err


def test_prompts_of_the_package_have_distinct_names_and_texts() -> None:
    assert len({prompt.name for prompt in PROMPTS}) == len({prompt.text for prompt in PROMPTS}) == len(PROMPTS)
    assert any(prompt.temperature for prompt in PROMPTS)
    assert any(not prompt.temperature for prompt in PROMPTS)


def test_interval_of_a_perfectly_steady_machine_is_narrow(factory: Any, clock: Any) -> None:
    report = measured(factory, clock)
    assert report.total is not None
    assert math.isclose(report.total.low, report.total.high, rel_tol=1e-6)
