"""One page that shows a suite: rules against the best fixed width, machine by machine and text by text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from pylucebox._axis import LogAxis
from pylucebox.ab.charts import Band, Interval, Line, Plot, axis_strip, interval_strip, plot
from pylucebox.ab.markup import Html, el
from pylucebox.ab.page import page
from pylucebox.sim.costs import CostCurve, cycle_us
from pylucebox.sim.reliability import Reliability
from pylucebox.sim.results import BEST_FIXED, RELIABILITY_COLUMNS, Bound, Result, bounds, reliability_row
from pylucebox.sim.suite import Cell, Summary
from pylucebox.sim.trace import DEPTH, Trace

__all__ = ["HEADINGS", "reliability_page", "render"]

HEADINGS: Final = {
    "single": "Whole texts, each with a fresh policy",
    "short": "Requests of 128 tokens, each with a fresh policy",
    "rough": "Whole texts on a machine that others use, too",
    "sequence": "All texts in a row with one policy",
    "batch": "Two and four texts at once",
    "prefill": "Answers of 32 tokens after long prompts, prefill included",
}
"""Sections in words."""

_TOLD: Final = ("beats it", "as fast", "slower")
_LOWEST: Final = 0.45  # ratio at the left end of the axis
_SAME: Final = 0.01  # ratios this close to 1 count as the same


def render(result: Result) -> str:
    """Return the page of a suite; its texts may hold any characters."""
    plan = result.plan
    facts = f"suite {plan.name} · {len(plan.traces)} texts · {len(plan.curves)} machines · {len(plan.rules)} rules"
    findings = (
        el(
            "li",
            el("strong", "reached" if each.met else "missed"),
            f": {each.what}: {each.value:.3f}, wanted ",
            _want(each.limit, at_least=each.at_least),
        )
        for each in result.targets
    )
    header = el(
        "header",
        el("h1", "Which rule chooses the width best?"),
        el("p", facts, class_="soft"),
        el("ul", *findings, class_="findings"),
        class_="head",
    )
    return page(
        f"lucebox sim: {plan.name}",
        header,
        *(_section(result, section) for section in result.sections),
        _machines(plan.curves),
        _reliability(result.reliability),
        _texts(plan.traces),
    )


def reliability_page(found: Sequence[Reliability], traces: Sequence[Trace]) -> str:
    """Return a page about the probabilities alone."""
    header = el("header", el("h1", "How far can the drafts' probabilities be trusted?"), class_="head")
    return page("lucebox sim: reliability", header, _reliability(found), _texts(traces))


def _want(limit: float, *, at_least: bool) -> str:
    return f"{limit:g} or {'more' if at_least else 'less'}"


def _section(result: Result, section: str) -> Html:
    rows = [each for each in result.summaries if each.section == section]
    cells = [cell for cell in result.cells if cell.section == section]
    return el(
        "section",
        el("h2", HEADINGS[section]),
        el(
            "p",
            "Speed in units of the best fixed width of each request in hindsight. The mark is the geometric mean, the"
            " line reaches from the worst to the best cell. Informed: knows the probabilities of a chain before it"
            " drafts, the costs, and the best price of time in hindsight. Clairvoyant: knows which drafts hold.",
            class_="soft",
        ),
        _forest(rows, cells, bounds(cells, section)),
        _heat("By machine, geometric mean", rows, [each.by_curve for each in rows]),
        None if section == "batch" else _heat("By text, geometric mean", rows, [each.by_text for each in rows]),
        class_="card",
    )


def _forest(rows: Sequence[Summary], cells: Sequence[Cell], limits: Sequence[Bound]) -> Html:
    best = {row.rule: max(cell.to_best for cell in cells if cell.rule == row.rule) for row in rows}
    # One rule that is far off must not squeeze the others; its line then begins at the edge.
    low = max(_LOWEST, min(row.worst for row in rows))
    axis = LogAxis(low / 1.05, max(1.05, *best.values(), *(each.mean for each in limits)) * 1.05)
    bands = [Band(1.0 - _SAME, 1.0 + _SAME, "band")]
    head = el(
        "tr",
        el("th", "rule", scope="col", class_="narrow"),
        el("th", axis_strip(axis), scope="col", class_="plotcell", aria_label="speed ratio"),
        el("th", "mean (worst)", scope="col", class_="narrow"),
        el("th", "worst to off", scope="col", class_="narrow"),
    )
    drawn = [_forest_row(row, best[row.rule], axis, bands) for row in rows]
    for each in limits:
        interval = Interval(
            each.mean, each.mean, each.mean, "unresolved", f"{each.name}: {each.mean:.3f}", is_total=True
        )
        drawn.append(_line(each.name, interval_strip(axis, interval, bands), f"{each.mean:.3f} ({each.worst:.3f})", ""))
    cols = el("colgroup", el("col", class_="arm"), el("col"), el("col", class_="value"), el("col", class_="verdict"))
    return el("table", cols, el("thead", head), el("tbody", *drawn), class_="forest")


def _forest_row(row: Summary, best: float, axis: LogAxis, bands: Sequence[Band]) -> Html:
    level = 0 if row.mean > 1.0 + _SAME else 1 if row.mean >= 1.0 - _SAME else 2
    style = ("faster", "equivalent", "slower")[level]
    label = f"{row.rule}: {row.mean:.3f}, from {row.worst:.3f} to {best:.3f}, {_TOLD[level]} ({BEST_FIXED})"
    interval = Interval(max(row.mean, axis.low), max(row.worst, axis.low), best, style, label)
    value = el("span", f"{row.mean:.3f} ({row.worst:.3f})", title=f"worst: {row.worst_cell}")
    off = el("span", f"{row.worst_off:.3f}", title=row.worst_off_cell)
    return _line(row.rule, interval_strip(axis, interval, bands), value, off)


def _line(name: str, strip: Html, value: object, off: object) -> Html:
    return el(
        "tr",
        el("th", name, scope="row"),
        el("td", strip, class_="plotcell"),
        el("td", value, class_="value"),
        el("td", off, class_="verdictcell"),
    )


def _heat(title: str, rows: Sequence[Summary], means: Sequence[dict[str, float]]) -> Html:
    names = list(dict.fromkeys(name for mean in means for name in mean))
    head = el("tr", el("th", "", scope="col"), *(el("th", row.rule, scope="col") for row in rows))
    body = [el("tr", el("th", name, scope="row"), *(_heat_cell(mean.get(name)) for mean in means)) for name in names]
    table = el("table", el("caption", title), el("thead", head), el("tbody", *body), class_="heat")
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=title)


def _heat_cell(ratio: float | None) -> Html:
    if ratio is None:
        return el("td", "-")
    # Two thirds of the best fixed speed is white, a fifth more than it is full.
    shade = min(1.0, max(0.0, math.log(ratio / 0.67) / math.log(1.2 / 0.67)))
    return el("td", f"{ratio:.3f}", style=f"--t:{shade:.3f}", class_="full" if shade > 0.75 else None)


def _machines(curves: Sequence[CostCurve]) -> Html:
    figures = []
    for curve in curves:
        plain_us = curve.costs.verify_us[0]
        whole = [cycle_us(curve.costs, drafts + 1, drafts, rejected=False) / plain_us for drafts in range(DEPTH + 1)]
        rows = [us / plain_us for us in curve.costs.verify_us]
        lines = (
            Line("rows only", "a0", _steps(rows)),
            Line("rows and drafts", "a2", _steps(whole)),
        )
        note = f"{curve.name}: one row takes {plain_us / 1000:.1f} ms"
        figures.append(plot(Plot(curve.title, note, "rows", "time in plain steps", lines)))
    sources = (el("li", el("strong", curve.name), f" ({curve.evidence}): {curve.costs.source}") for curve in curves)
    return el(
        "section",
        el("h2", "Machines"),
        el("div", *figures, class_="pair"),
        el("ul", *sources, class_="soft"),
        class_="card",
    )


def _steps(values: Sequence[float]) -> tuple[tuple[float, float, float], ...]:
    return tuple((float(at), at + 1.0, value) for at, value in enumerate(values))


def _reliability(found: Sequence[Reliability]) -> Html | None:
    if not found:
        return None
    figures = [_reliability_plot(each) for each in found]
    head = el("tr", *(el("th", name, scope="col", class_="num") for name in RELIABILITY_COLUMNS))
    rows = (el("tr", *(el("td", text, class_="num") for text in reliability_row(each))) for each in found)
    return el(
        "section",
        el("h2", "What the drafts' probabilities are worth"),
        el(
            "p",
            "For each tenth of the scale: what was predicted and what held, with 95 % intervals. Drafts behind a"
            " rejected one are not counted. Brier: mean squared error; of the mean: that of always predicting the share"
            " that holds; skill: how much of it the probabilities take away; ECE: mean distance from what held.",
            class_="soft",
        ),
        el("div", *figures, class_="pair"),
        el("div", el("table", el("thead", head), el("tbody", *rows)), class_="scroll"),
        class_="card",
        id="reliability",
    )


def _reliability_plot(found: Reliability) -> Html:
    observed = tuple((each.low, each.high, each.observed) for each in found.bins)
    spans = tuple((each.low, each.high, *each.interval()) for each in found.bins)
    predicted = tuple((each.low, each.high, each.predicted) for each in found.bins)
    name = "All depths" if found.depth is None else f"Depth {found.depth}"
    return plot(
        Plot(
            title=name,
            description=f"{name}: {found.n} drafts, Brier score {found.brier:.3f}, calibration error {found.ece:.3f}",
            x_label="probability that the MTP block gives",
            y_label="share that holds",
            lines=(Line("predicted", "a0", predicted), Line("held", "a2", observed, spans)),
            y_range=(0.0, 1.0),
            y_ticks=(0.0, 0.25, 0.5, 0.75, 1.0),
        )
    )


def _texts(traces: Iterable[Trace]) -> Html:
    head = el(
        "tr", *(el("th", name, scope="col") for name in ("text", "kind", "tokens", "holds to depth 1 to 7", "from"))
    )
    rows = []
    for trace in traces:
        n = max(1, len(trace.match))
        survival = " ".join(f"{sum(length >= d for length in trace.match) / n:.2f}" for d in range(1, DEPTH + 1))
        source = trace.facts.get("source") or f"{trace.facts.get('model', '')}, {trace.facts.get('text', '')}"
        cells = (el("td", text) for text in (trace.kind, str(len(trace.tokens)), survival, source))
        rows.append(el("tr", el("th", trace.name, scope="row"), *cells))
    table = el("table", el("thead", head), el("tbody", *rows))
    return el("section", el("h2", "Texts"), el("div", table, class_="scroll"), class_="card")
