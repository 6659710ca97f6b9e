"""One page that shows a session."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pylucebox._axis import LogAxis
from pylucebox.ab import report_data as data
from pylucebox.ab import wording
from pylucebox.ab.charts import Band, Interval, Line, Plot, axis_strip, interval_strip, plot, sparkline
from pylucebox.ab.markup import Html, el, identifier, join
from pylucebox.ab.page import page
from pylucebox.ab.records import CycleRecord, RunRecord
from pylucebox.ab.results import Pooled, Row, Summary, Verdict, WorkloadSummary
from pylucebox.ab.store import Session

__all__ = ["render"]

ReadCycles = Callable[[RunRecord], Sequence[CycleRecord]]

_HASH: Final = re.compile("[0-9a-f]{12,}")
_SHORT_HASH: Final = 16  # digits that fit on a line of any screen
_LONG: Final = 28  # characters of a cell that may be broken anywhere, since a path has no better place
_N_COLOURS: Final = 6
_OPEN_WORKLOADS: Final = 8  # with more, a page that shows everything at once is too long to find anything
_MAX_STEPS: Final = 1500  # cycles drawn of a run; a picture of more has no more to show and takes long to draw


def render(session: Session, cycles: ReadCycles) -> str:
    """Return the page.

    Parameters
    ----------
    session
        A session with its summary. Texts in it may hold any characters.
    cycles
        Reads the cycles of a run; an empty sequence where they were not kept.

    Raises
    ------
    ValueError
        The session has no summary.
    """
    summary = data.summary_of(session)
    title = f"lucebox ab: {', '.join(arm.name for arm in session.plan.arms)}"
    many = len(summary.workloads) > _OPEN_WORKLOADS
    return page(
        title,
        _header(session, summary),
        _warnings(session),
        _forest(session, summary),
        el("h2", "Workload by workload", id="workloads"),
        *(_workload(session, each, cycles, is_open=not many) for each in summary.workloads),
        _validity(session, summary),
        _method(session),
        _environment(session),
        _words(),
        _footer(summary),
    )


def _chip(verdict: str, text: str | None = None, *, is_zero: bool = False) -> Html:
    known = verdict in Verdict.__members__
    mark = f"{wording.MARKS[Verdict(verdict)]} " if known else ""
    style = f"chip {_style(verdict)}" + (" zero" if is_zero else "")
    return el("span", f"{mark}{text or verdict}", class_=style)


def _style(verdict: str) -> str:
    return verdict.lower() if verdict in Verdict.__members__ else "unresolved"


def _header(session: Session, summary: Summary) -> Html:
    plan = session.plan
    started = min((run.started_utc for run in session.runs), default="")
    facts = [
        data.model_name(plan),
        f"suite {plan.suite.name}",
        f"{plan.n_pairs} pairs per row",
        f"{summary.n_runs} runs in {wording.duration(3600 * summary.wall_hours)}",
        *([f"started {wording.time_text(started)}"] if started else []),
    ]
    counts = [
        el("li", _chip(verdict, f"{verdict} {count}", is_zero=not count))
        for verdict, count in summary.verdict_counts.items()
    ]
    links = (
        ("#verdicts", "Verdicts"),
        ("#workloads", "Workloads"),
        ("#validity", "Validity"),
        ("#method", "Method"),
        ("#environment", "Environment"),
        ("#words", "What the words mean"),
    )
    return el(
        "header",
        el("h1", "Which setting decodes faster?"),
        el("p", " · ".join(facts), class_="soft"),
        el("ul", *(el("li", sentence) for sentence in data.headline(session)), class_="findings"),
        el("ul", *counts, aria_label="Rows by verdict"),
        el("nav", *(el("a", text, href=target) for target, text in links), aria_label="Sections"),
        class_="head",
    )


def _warnings(session: Session) -> Html | None:
    warnings = data.warnings_of(session)
    if not warnings:
        return None
    return el(
        "section",
        el("h2", "Before you read the figures"),
        el("ul", *(el("li", text) for text in warnings)),
        class_="card warning",
    )


def _drawable(row: Row | Pooled) -> bool:
    fine = row.verdict not in (Verdict.DIVERGED.value, Verdict.INVALID.value)
    return fine and row.ratio is not None and row.low is not None and row.high is not None


def _axis(session: Session, summary: Summary) -> LogAxis:
    rows = [row for each in summary.workloads for row in each.rows if _drawable(row)]
    margin = max(session.plan.equivalence, summary.noise.floor if summary.noise else 0.0)
    lows = [row.low for row in rows if row.low is not None]
    highs = [row.high for row in rows if row.high is not None]
    edge = max(1.05, 1.0 + 1.5 * margin)
    return LogAxis(min([*lows, 1.0 / edge]) / 1.03, max([*highs, edge]) * 1.03)


def _forest(session: Session, summary: Summary) -> Html:
    plan = session.plan
    axis = _axis(session, summary)
    bands = [Band(1.0 - plan.equivalence, 1.0 + plan.equivalence, "band")]
    keys = [("band", f"counts as the same: within {wording.percent(plan.equivalence)}")]
    if summary.noise is not None:
        floor = 1.0 + summary.noise.floor
        bands.insert(0, Band(1.0 / floor, floor, "noise"))
        keys.append(("noise", f"noise floor: {wording.percent(summary.noise.floor, 2)} without any difference"))
    head = el(
        "tr",
        el("th", "arm", scope="col", class_="narrow", role="columnheader"),
        el("th", axis_strip(axis), scope="col", class_="plotcell", role="columnheader", aria_label="speed ratio"),
        el("th", "ratio (95 % interval)", scope="col", class_="narrow", role="columnheader"),
        el("th", "verdict", scope="col", class_="narrow", role="columnheader"),
        role="row",
    )
    groups = [_forest_group(each, axis, bands) for each in summary.workloads]
    total = [_forest_row(pooled, axis, bands, is_total=True) for pooled in summary.pooled]
    if total:
        heading = el("th", "All workloads with the same text", scope="rowgroup", colspan=4, role="rowheader")
        groups.append(el("tbody", el("tr", heading, role="row"), *total, class_="total", role="rowgroup"))
    cols = el("colgroup", el("col", class_="arm"), el("col"), el("col", class_="value"), el("col", class_="verdict"))
    table = el("table", cols, el("thead", head, role="rowgroup"), *groups, class_="forest", role="table")
    swatches = (el("li", el("span", class_=f"swatch {style}"), text) for style, text in keys)
    return el(
        "section",
        el("h2", f"Decode speed against {plan.baseline}"),
        el("p", "Right of 1 the arm is faster. The axis is logarithmic; lines are 95 % intervals.", class_="soft"),
        table,
        el("ul", *swatches, class_="keys"),
        _details("The same as a table", _table(data.comparison_sheet(plan, summary.workloads))),
        class_="card",
        id="verdicts",
    )


def _forest_group(each: WorkloadSummary, axis: LogAxis, bands: Sequence[Band]) -> Html:
    link = el("a", each.workload, href=f"#{identifier('w', each.workload)}")
    heading = el("th", link, " ", el("span", each.title, class_="why"), scope="rowgroup", colspan=4, role="rowheader")
    rows = [_forest_row(row, axis, bands) for row in each.rows]
    return el("tbody", el("tr", heading, role="row"), *rows, role="rowgroup")


def _forest_row(row: Row | Pooled, axis: LogAxis, bands: Sequence[Band], *, is_total: bool = False) -> Html:
    interval = None
    value: object = wording.row_text(row)
    if _drawable(row) and row.ratio is not None and row.low is not None and row.high is not None:
        label = f"{row.arm}: {wording.row_text(row)}, {row.verdict}"
        interval = Interval(row.ratio, row.low, row.high, _style(row.verdict), label, is_total=is_total)
    elif isinstance(row, Row) and row.verdict == Verdict.DIVERGED.value:
        value = row.identity
    return el(
        "tr",
        el("th", row.arm, scope="row", role="rowheader"),
        el("td", interval_strip(axis, interval, bands), class_="plotcell", role="cell"),
        el("td", value, class_="value", role="cell"),
        el("td", _chip(row.verdict), class_="verdictcell", title=row.reason, role="cell"),
        role="row",
    )


def _table(sheet: data.Sheet, style: str = "") -> Html:
    head = (el("th", name, scope="col", class_=_align(sheet, at)) for at, name in enumerate(sheet.columns))
    rows = (el("tr", *(_cell(sheet, at, text) for at, text in enumerate(row))) for row in sheet.rows)
    table = el(
        "table", el("caption", sheet.title), el("thead", el("tr", *head)), el("tbody", *rows), class_=style or None
    )
    # A region that scrolls must be reachable by keyboard.
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=sheet.title)


def _align(sheet: data.Sheet, at: int) -> str | None:
    is_prose = at < sheet.n_labels or (sheet.is_wide and at == len(sheet.columns) - 1)
    return None if is_prose else "num"


def _cell(sheet: data.Sheet, at: int, text: str) -> Html:
    if at == 0:
        return el("th", text, scope="row")
    if sheet.columns[at] == "verdict":
        return el("td", _chip(text))
    if _HASH.fullmatch(text):
        return el("td", text, class_="mono short" if len(text) <= _SHORT_HASH else "mono")
    return el("td", text, class_=_align(sheet, at) or ("long" if len(text) > _LONG else None))


def _details(summary: str, *content: object, is_open: bool = False) -> Html:
    return el("details", el("summary", summary), *content, class_="more", open=is_open)


def _workload(session: Session, each: WorkloadSummary, cycles: ReadCycles, *, is_open: bool) -> Html:
    chips = (el("span", f"{row.arm} ", _chip(row.verdict)) for row in each.rows)
    reasons = (el("li", el("strong", row.arm), f": {row.verdict}, {_why(row)}.") for row in each.rows)
    ratios = data.block_ratio_sheet(each)
    figures = [_times_plot(session, each), *_width_plots(session, each, cycles)]
    tables = [_table(data.speed_sheet(each)), _table(ratios) if ratios else None]
    return el(
        "details",
        el("summary", el("h3", each.workload), el("span", each.title, class_="soft"), *chips),
        el("ul", *reasons),
        el("p", f"Positive control of the text check: {each.control}.", class_="soft"),
        el("div", *(figure for figure in figures if figure), class_="pair"),
        *_acceptance(each),
        _details("Speeds", *(table for table in tables if table is not None)),
        class_="card work",
        id=identifier("w", each.workload),
        open=is_open,
    )


def _why(row: Row) -> str:
    parts = [row.reason]
    if row.verdict == Verdict.UNRESOLVED.value and row.mde is not None:
        parts.append(f"an effect of {wording.percent(row.mde)} would have been found")
    if row.identity not in row.reason:
        parts.append(row.identity)
    return "; ".join(parts)


def _colour(session: Session, arm: str) -> str:
    names = [each.name for each in session.plan.arms]
    return f"a{names.index(arm) % _N_COLOURS}"


def _times_plot(session: Session, each: WorkloadSummary) -> Html:
    lines = []
    for arm, blocks in data.block_times(session, each.workload).items():
        steps = tuple((float(block.first), float(block.last), block.median) for block in blocks)
        spans = tuple((float(block.first), float(block.last), block.low, block.high) for block in blocks)
        lines.append(Line(arm, _colour(session, arm), steps, spans))
    described = "; ".join(
        f"{line.name}: {', '.join(wording.ms_text(value) for _, _, value in line.steps)}" for line in lines
    )
    return plot(
        Plot(
            title="Time per token at equal token index",
            description=f"Milliseconds per token in blocks of 64 tokens. {described}",
            x_label="token index",
            y_label="ms; line: median of the runs, area: all of them",
            lines=tuple(lines),
        )
    )


def _width_plots(session: Session, each: WorkloadSummary, cycles: ReadCycles) -> Iterable[Html]:
    for figures in each.figures:
        if len(session.plan.arm(figures.arm).widths) == 1:
            continue  # a fixed width has no course to show
        run = data.traced_run(session, each.workload, figures.arm)
        steps = data.width_steps(cycles(run)) if run is not None else ()
        if steps:
            yield _width_plot(figures.arm, _colour(session, figures.arm), steps)


def _width_plot(arm: str, colour: str, steps: Sequence[data.Step]) -> Html:
    shown = steps[:_MAX_STEPS]
    cut = "" if len(shown) == len(steps) else f", first {len(shown)} of {len(steps)} cycles"
    widths = Line("rows verified", colour, tuple((step.start_ms, step.end_ms, float(step.width)) for step in shown))
    gained = tuple((step.start_ms, step.end_ms, 0.0, float(step.n_tokens)) for step in shown)
    total = Line("tokens gained", f"{colour} gained", ((0.0, shown[-1].end_ms, 0.0),), gained)
    counts = ", ".join(
        f"width {width}: {sum(step.width == width for step in steps)}" for width in sorted({s.width for s in steps})
    )
    return plot(
        Plot(
            title=f"Width over time: {arm}",
            description=f"Rows verified in each cycle of the run of median speed. Cycles by width: {counts}",
            x_label="ms since the first token",
            y_label=f"per cycle, run of median speed{cut}",
            lines=(total, widths),
            y_range=(0.0, 8.5),
            y_ticks=(0.0, 2.0, 4.0, 6.0, 8.0),
        )
    )


def _acceptance(each: WorkloadSummary) -> Iterable[Html]:
    survival = data.acceptance_sheet(each)
    if survival is None:
        return
    yield _heat(survival, each)
    conditional = data.acceptance_sheet(each, conditional=True)
    if conditional is not None:
        yield _details("The same, each draft given those before it", _table(conditional))


def _heat(sheet: data.Sheet, each: WorkloadSummary) -> Html:
    shares = {figures.arm: figures.survival for figures in each.figures}
    rows = []
    for row in sheet.rows:
        cells = [
            el(
                "td",
                text,
                style=f"--t:{share or 0.0:.3f}",
                class_="full" if share is not None and share > 0.75 else None,
            )
            for text, share in zip(row[1:], (*shares[row[0]], *[None] * len(row)), strict=False)
        ]
        rows.append(el("tr", el("th", row[0], scope="row"), *cells))
    head = el("tr", *(el("th", name, scope="col") for name in sheet.columns))
    table = el("table", el("caption", sheet.title), el("thead", head), el("tbody", *rows), class_="heat")
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=sheet.title)


def _validity(session: Session, summary: Summary) -> Html:
    issues, invalid = data.issues_sheet(session), data.invalid_sheet(session)
    parts: list[Html | None] = [
        el(
            "p",
            f"{summary.n_runs - summary.n_invalid} of {summary.n_runs} runs count. Invalid ones are kept and shown.",
        )
    ]
    if issues.rows:
        parts += [_table(issues), _details("Every invalid run", _table(invalid))]
    if summary.sentinel is not None:
        sentinel = summary.sentinel
        state = "steady" if sentinel.ok else "not steady"
        text = (
            f"The machine was {state}: the sentinel, a short run of the baseline that was repeated through the session,"
            f" moved by {wording.percent(sentinel.spread, 2)}; {wording.percent(sentinel.limit, 2)} are allowed."
        )
        speeds = ", ".join(wording.speed_text(value) for value in sentinel.values)
        parts += [el("p", text), sparkline(sentinel.values, f"Sentinel speeds in order, tok/s: {speeds}")]
        parts.append(el("p", f"Sentinel speeds in order, tok/s: {speeds}", class_="soft"))
    return el("section", el("h2", "Validity"), *parts, class_="card", id="validity")


def _method(session: Session) -> Html:
    return el(
        "section",
        el("h2", "Method"),
        _table(data.method_sheet(session)),
        _table(data.arms_sheet(session.plan)),
        _table(data.workloads_sheet(session.plan)),
        class_="card",
        id="method",
    )


def _environment(session: Session) -> Html:
    sheets = [sheet for sheet in data.environment_sheets(session.env) if sheet.rows]
    tables = (_details(sheet.title, _table(sheet), is_open=number == 0) for number, sheet in enumerate(sheets))
    return el("section", el("h2", "Environment"), *tables, class_="card", id="environment")


def _words() -> Html:
    words = join(
        join([el("dt", _chip(verdict.value)), el("dd", meaning)]) for verdict, meaning in wording.MEANINGS.items()
    )
    more = (
        ("ratio", "Median over the pairs of the arm's decode speed over the baseline's. A pair is one run of each,"
         " close in time, in processes of their own."),
        ("p, p Holm", "Exact sign-flip test over the pairs, and the same after Holm's correction for the number of"
         " rows."),
        ("MDE", "Smallest effect that so many pairs with this scatter find in four of five sessions."),
        ("noise floor", "The median of as many pairs of the baseline against itself stays below it in 95 % of cases."),
        ("median of 3", "Median of the first three runs, for comparison with figures that were published that way. It"
         " proves nothing."),
    )  # fmt: skip
    rest = join(join([el("dt", el("strong", word)), el("dd", text)]) for word, text in more)
    return el(
        "section", el("h2", "What the words mean"), el("dl", words, rest, class_="words"), class_="card", id="words"
    )


def _footer(summary: Summary) -> Html:
    return el(
        "footer",
        f"Written by pylucebox {summary.version}. Raw data: plan.json, runs.jsonl, cycles, tokens and summary.json"
        f" (schema {summary.schema}) in the folder of this page. Figures of different sessions cannot be"
        " compared by eye; use lucebox ab compare.",
    )
