"""What `lucebox demo` says: sentences and tables. Pure."""

from __future__ import annotations

import statistics

from pylucebox._result import Completion
from pylucebox.cli._demo_report import ALL_PROMPTS, DemoReport
from pylucebox.cli._demo_run import PROBE_WIDTH, cost_of
from pylucebox.cli._measure import CONFIDENCE, MIN_PAIRS, CycleCost, Estimate, Noise
from pylucebox.cli._table import Table

_DIGEST_SHOWN = 12
_RARELY = 10  # per cent of the cycles; fewer are trials


def _interval(value: Estimate) -> str:
    return f"{value.low:.2f} to {value.high:.2f}"


def noise_sentence(noise: Noise) -> str:
    """Say what the comparison cannot tell apart."""
    median = 100 * (noise.estimate.ratio - 1)
    return (
        f"noise: MTP off against itself, {noise.estimate.n_pairs} pairs: median {median:+.1f} %;"
        f" the median of {noise.n_pairs} pairs stays within {100 * noise.floor:.1f} % by chance"
    )


def identity_sentence(report: DemoReport) -> str:
    """Say whether the texts are the same, and where not."""
    differing = [each for each in report.prompts if each.runs.differs_at is not None]
    if not differing:
        return f"Same text: in all runs of all {len(report.prompts)} prompts MTP on gave the tokens of MTP off."
    lines = []
    for each in differing:
        index = each.runs.differs_at or 0
        off, on = (_token_at(completion, index) for completion in (each.runs.off.completion, each.differing))
        lines.append(f"{each.runs.prompt.name}: token {index} is {off} with MTP off and {on} in a later run")
    return "DIFFERENT TEXT, so no speed-up is stated. " + "; ".join(lines) + ". Please report this."


def _token_at(completion: Completion, index: int) -> str:
    return str(completion.token_ids[index]) if index < len(completion.token_ids) else "absent"


def summary_sentences(report: DemoReport) -> list[str]:
    """Say what came out and why, in whole sentences."""
    if report.total is None:
        return []
    ratio = f"{report.total.ratio:.2f} times as fast as MTP off ({_interval(report.total)})"
    headline = {
        "faster": f"Over all prompts MTP on is {ratio}.",
        "slower": f"SLOWER than MTP off: over all prompts MTP on is {ratio}.",
        "unresolved": f"No difference beyond the noise: over all prompts MTP on is {ratio}.",
    }[report.total_verdict]
    slower = [each.runs.prompt.name for each in report.prompts if each.verdict == "slower"]
    if report.total.coverage < CONFIDENCE:
        n_pairs = report.total.n_pairs
        headline = f"Over all prompts MTP on is {ratio}; {n_pairs} pairs are too few to tell, {MIN_PAIRS} would do."
    sentences = [headline]
    if slower and report.total_verdict != "slower":
        sentences.append(f"Slower than MTP off on: {', '.join(slower)}.")
    width = report.runs.plan.width
    if width:
        return sentences + _cost_sentences(report.cost, f"Why: a cycle of width {width}")
    always = f"If it always drafted as deep as it can, a cycle of width {PROBE_WIDTH}"
    return [*sentences, *_choice_sentences(report), *_cost_sentences(report.probe_cost, always)]


def _choice_sentences(report: DemoReport) -> list[str]:
    """Say what the engine made of its free choice of width."""
    stats = report.stats_on
    if stats.num_drafts == 0:
        cost = report.cost
        return [
            f"The engine chose never to draft. Being ready to makes a cycle cost {cost.cycle_steps:.2f} plain steps"
            f" (MTP block {cost.draft_steps:.2f}, verify {cost.verify_steps:.2f}, other {cost.other_steps:.2f})."
        ]
    share = 100 * stats.num_drafts / stats.cycles
    if share < _RARELY:  # the mean cycle then tells of plain decoding, not of drafts
        return [f"The engine drafted in {share:.1f} % of its cycles: it tried, and found that it does not pay."]
    return _cost_sentences(report.cost, f"The engine chose to draft in {share:.0f} % of its cycles. Why: a cycle")


def _cost_sentences(cost: CycleCost, subject: str) -> list[str]:
    verb = "pays" if cost.tokens_per_cycle > cost.cycle_steps else "does not pay"
    sentences = [
        f"{subject} costs {cost.cycle_steps:.2f} plain steps (draft {cost.draft_steps:.2f},"
        f" verify {cost.verify_steps:.2f}, other {cost.other_steps:.2f}) and brings {cost.tokens_per_cycle:.2f} tokens,"
        f" so it {verb}: {cost.rows_per_cycle:.1f} verified rows cost {cost.verify_row_steps:.2f} of a step each."
    ]
    if cost.cycle_steps >= cost.rows_per_cycle:
        sentences.append("Even if every draft held, it would not.")
    return sentences


# ---- tables ---------------------------------------------------------------------------------------------------------


def tables(report: DemoReport) -> list[Table]:
    """Return the tables: texts, speeds, acceptance."""
    return [_identity_table(report), _speed_table(report), _acceptance_table(report)]


def _identity_table(report: DemoReport) -> Table:
    rows = []
    for each in report.prompts:
        shown = [each.runs.off.completion.digest[:_DIGEST_SHOWN], each.differing.digest[:_DIGEST_SHOWN]]
        same = "same" if each.runs.differs_at is None else f"differ at token {each.runs.differs_at}"
        rows.append((each.runs.prompt.name, each.decoding, str(len(each.runs.off.completion.token_ids)), *shown, same))
    columns = ("prompt", "decoding", "tokens", "digest off", "digest on", "texts")
    return Table("Is it the same text?", columns, tuple(rows))


def _speed_table(report: DemoReport) -> Table:
    rows = []
    for each in report.prompts:
        runs = each.runs
        cost = cost_of(runs.stats_on, runs.step_us())
        rows.append(
            (
                runs.prompt.name,
                f"{statistics.median(runs.tok_s_off):.0f}",
                f"{statistics.median(runs.tok_s_on):.0f}",
                f"{each.speedup.ratio:.2f}" if each.speedup else "-",
                _interval(each.speedup) if each.speedup else "-",
                each.verdict,
                f"{cost.tokens_per_cycle:.2f}",
            )
        )
    if report.total:
        total = (f"{report.total.ratio:.2f}", _interval(report.total), report.total_verdict)
        rows.append((ALL_PROMPTS, "", "", *total, f"{report.cost.tokens_per_cycle:.2f}"))
    columns = ("prompt", "tok/s off", "tok/s on", "ratio", "interval", "verdict", "tok/cycle")
    title = f"How fast is it? (medians of {report.runs.plan.n_rounds} pairs, {100 * report.coverage:.0f} % intervals)"
    return Table(title, columns, tuple(rows), has_total=report.total is not None)


def _acceptance_table(report: DemoReport) -> Table:
    rows = tuple(
        (each.runs.prompt.name, *(_per_cent(share) for share in each.runs.probe.completion.stats.acceptance_per_pos))
        for each in report.prompts
    )
    columns = ("prompt", *(f"depth {depth}" for depth in range(1, PROBE_WIDTH)))
    return Table(f"Accepted drafts by depth, % of the cycles that drafted so deep (width {PROBE_WIDTH})", columns, rows)


def _per_cent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}"
