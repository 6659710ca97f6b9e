"""What `lucebox demo` says about its measurements: figures, JSON and the chart. Pure."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from pylucebox._result import Completion
from pylucebox._stats import SpecStats
from pylucebox.cli._chart import Chart, ChartRow
from pylucebox.cli._demo_run import PROBE_WIDTH, DemoRuns, PromptRuns, cost_of
from pylucebox.cli._measure import CycleCost, Estimate, Noise, estimate, median_interval, pooled, verdict

SCHEMA = 1
ALL_PROMPTS = "all prompts"
_NOTE_CHARS = 128


@dataclass(frozen=True)
class PromptReport:
    """Figures of one prompt.

    Attributes
    ----------
    runs
        The measurements.
    speedup
        Speed on over speed off; None when the texts differ, since a speed-up on another text is none.
    verdict
        ``"faster"``, ``"slower"`` or ``"unresolved"``; ``"differs"`` without a speed-up.
    """

    runs: PromptRuns
    speedup: Estimate | None
    verdict: str

    @property
    def decoding(self) -> str:
        """How the tokens were chosen."""
        prompt = self.runs.prompt
        return f"temperature {prompt.temperature:g}, seed {prompt.seed}" if prompt.temperature else "greedy"

    @property
    def differing(self) -> Completion:
        """A run with MTP whose tokens differ from those of MTP off, if there is one, else the first run with MTP."""
        return self.runs.mismatch or self.runs.on


@dataclass(frozen=True)
class DemoReport:
    """Figures of the whole demo.

    Attributes
    ----------
    runs
        The measurements.
    prompts
        Per prompt, in the order of the plan.
    total
        Speed-up over the prompts whose texts are the same; None when there are none.
    total_verdict
        As `PromptReport.verdict`.
    cost
        Cycles of the compared runs with MTP.
    probe_cost
        Cycles at the widest width, the engine drafting as deep as it can.
    """

    runs: DemoRuns
    prompts: tuple[PromptReport, ...]
    total: Estimate | None
    total_verdict: str
    cost: CycleCost
    probe_cost: CycleCost
    stats_on: SpecStats

    @property
    def noise(self) -> Noise:
        """MTP off against itself."""
        return self.runs.noise

    @property
    def coverage(self) -> float:
        """Coverage of the prompts' intervals; it depends on the number of pairs alone."""
        _, _, coverage = median_interval(self.runs.prompts[0].log_ratios)
        return coverage


def report_on(runs: DemoRuns) -> DemoReport:
    """Work out the figures.

    Parameters
    ----------
    runs
        Measurements of at least one prompt.
    """
    floor = runs.noise.floor
    prompts = []
    for each in runs.prompts:
        speedup = estimate(each.log_ratios) if each.differs_at is None else None
        prompts.append(PromptReport(each, speedup, verdict(speedup, floor) if speedup else "differs"))
    same = [each.log_ratios for each in runs.prompts if each.differs_at is None]
    total = pooled(same) if same else None
    stats_on, stats_probe = SpecStats(), SpecStats()
    for each in runs.prompts:
        stats_on = stats_on.merge(each.stats_on)
        stats_probe = stats_probe.merge(each.probe.completion.stats)
    # Each cost is measured in steps of the runs that were interleaved with it: the machine may have changed since.
    step_us = statistics.fmean(each.step_us() for each in runs.prompts)
    probe_step_us = statistics.fmean(1e6 / each.off.tok_s for each in runs.prompts)
    return DemoReport(
        runs=runs,
        prompts=tuple(prompts),
        total=total,
        total_verdict=verdict(total, floor) if total else "differs",
        cost=cost_of(stats_on, step_us),
        probe_cost=cost_of(stats_probe, probe_step_us),
        stats_on=stats_on,
    )


def prompt_document(each: PromptReport) -> dict[str, object]:
    """Return the JSON object of one prompt."""
    runs = each.runs
    cost = cost_of(runs.stats_on, runs.step_us())
    stats = runs.stats_on
    return {
        "name": runs.prompt.name,
        "temperature": runs.prompt.temperature,
        "seed": runs.prompt.seed if runs.prompt.temperature else None,
        "prompt_tokens": runs.off.completion.prompt_tokens,
        "tokens": len(runs.off.completion.token_ids),
        "digest_off": runs.off.completion.digest,
        "digest_on": each.differing.digest,
        "identical": runs.differs_at is None,
        "first_differing_token": runs.differs_at,
        "verdict": each.verdict,
        "speedup": each.speedup.ratio if each.speedup else None,
        "speedup_low": each.speedup.low if each.speedup else None,
        "speedup_high": each.speedup.high if each.speedup else None,
        "pairs": len(runs.log_ratios),
        "tok_s_off": statistics.median(runs.tok_s_off),
        "tok_s_on": statistics.median(runs.tok_s_on),
        "prefill_ms_off": statistics.median(runs.prefill_ms_off),
        "prefill_ms_on": statistics.median(runs.prefill_ms_on),
        "tokens_per_cycle": cost.tokens_per_cycle,
        "cycle_cost": _cost_document(cost),
        "cycles": stats.cycles,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "num_draft_tokens_per_pos": stats.num_draft_tokens_per_pos,
        "num_accepted_tokens_per_pos": stats.num_accepted_tokens_per_pos,
        "acceptance_by_depth": runs.probe.completion.stats.acceptance_per_pos,
        "raw": {"tok_s_off": runs.tok_s_off, "tok_s_on": runs.tok_s_on},
    }


def _cost_document(cost: CycleCost) -> dict[str, float]:
    return {
        "step_us": cost.step_us,
        "draft_steps": cost.draft_steps,
        "verify_steps": cost.verify_steps,
        "other_steps": cost.other_steps,
        "cycle_steps": cost.cycle_steps,
        "verify_row_steps": cost.verify_row_steps,
    }


def document(report: DemoReport) -> dict[str, object]:
    """Return the measured part of the JSON document.

    Returns
    -------
    dict
        Ratios are speed with MTP over speed without; ``aa_noise.floor`` is a fraction; ``acceptance_by_depth`` is the
        share of cycles at `PROBE_WIDTH` in which the draft of that depth and all before it held.
    """
    plan, noise = report.runs.plan, report.noise
    return {
        "width": plan.width,
        "max_tokens": plan.max_tokens,
        "threads": plan.n_threads,
        "pairs_per_prompt": plan.n_rounds,
        "identical": report.runs.identical,
        "aa_noise": {
            "median": noise.estimate.ratio,
            "low": noise.estimate.low,
            "high": noise.estimate.high,
            "pairs": noise.estimate.n_pairs,
            "floor": noise.floor,
        },
        "total": {
            "verdict": report.total_verdict,
            "speedup": report.total.ratio if report.total else None,
            "speedup_low": report.total.low if report.total else None,
            "speedup_high": report.total.high if report.total else None,
            "coverage": report.total.coverage if report.total else None,
            "tokens_per_cycle": report.cost.tokens_per_cycle,
            "cycle_cost": _cost_document(report.cost),
        },
        "full_width": {
            "width": PROBE_WIDTH,
            "tokens_per_cycle": report.probe_cost.tokens_per_cycle,
            "cycle_cost": _cost_document(report.probe_cost),
        },
        "prompts": [prompt_document(each) for each in report.prompts],
    }


def chart(report: DemoReport, model: str, sentences: Sequence[str]) -> Chart:
    """Return the content of the chart.

    Parameters
    ----------
    report
        Figures.
    model
        Name of the model.
    sentences
        What the figures say, to be written below the panels.
    """
    plan = report.runs.plan
    width = "the engine chooses the verify width" if plan.width == 0 else f"verify width {plan.width}"
    rows = []
    for each in report.prompts:
        shares = each.runs.probe.completion.stats.acceptance_per_pos
        rows.append(_chart_row(each.runs.prompt.name, each.speedup, each.verdict, shares))
    notes = [
        f"Grey band: what {plan.n_rounds} pairs cannot tell from noise. Bars: {100 * report.coverage:.0f} % intervals"
        f" of the median. Acceptance: drafts at width {PROBE_WIDTH}.",
        " ".join(sentences),
    ]
    return Chart(
        title="lucebox demo: MTP on against MTP off",
        subtitle=f"{model}, {width}, {plan.max_tokens} tokens, threads: {plan.n_threads},"
        f" {plan.n_rounds} pairs per prompt",
        rows=tuple(rows),
        total=_chart_row(ALL_PROMPTS, report.total, report.total_verdict, ()) if report.total else None,
        noise_floor=report.noise.floor,
        notes=tuple(line for note in notes for line in textwrap.wrap(note, _NOTE_CHARS)),
    )


def _chart_row(name: str, speedup: Estimate | None, verdict_: str, shares: tuple[float | None, ...]) -> ChartRow:
    if speedup is None:
        return ChartRow(name, None, None, None, verdict_, shares)
    return ChartRow(name, speedup.ratio, speedup.low, speedup.high, verdict_, shares)
