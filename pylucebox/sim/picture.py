"""Pictures that stand alone, for documents: the rules of a suite, and the reliability of the drafts' probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pylucebox._axis import LogAxis
from pylucebox.ab.markup import Html, el
from pylucebox.sim.reliability import Reliability
from pylucebox.sim.results import Result, bounds
from pylucebox.sim.suite import Summary

__all__ = ["reliability_svg", "rules_svg"]

_INK: Final = "#111827"
_SOFT: Final = "#4b5563"
_GRID: Final = "#e5e7eb"
_FONT: Final = "DejaVu Sans, Verdana, Arial, sans-serif"
# Differ in lightness as well as in hue, for readers who see no red and for grey printers.
_ABOVE: Final = "#0b6e4f"
_BELOW: Final = "#c1440e"
_OTHER: Final = "#6b7280"
_BLUE: Final = "#1f4e92"

_WIDTH: Final = 960
_ROW: Final = 30
_TOP: Final = 104
_LEFT: Final = 170
_RIGHT: Final = 700
_LOWEST: Final = 0.45  # ratio at the left end of the axis
_TICK_GAP: Final = 40

_PANEL: Final = 170  # side of a reliability panel
_GAP: Final = 62


def _svg(width: float, height: float, title: str, description: str, *marks: object) -> str:
    drawing = el(
        "svg",
        el("title", title),
        el("desc", description),
        el("rect", width=width, height=height, fill="#ffffff"),
        *marks,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        font_family=_FONT,
        font_size=14,
    )
    return f"{drawing}\n"


def _text(x: float, y: float, content: str, **attributes: object) -> Html:
    return el("text", content, x=f"{x:.1f}", y=f"{y:.1f}", **{"fill": _INK, **attributes})


def _line(start: tuple[float, float], end: tuple[float, float], colour: str, width: float = 1.0) -> Html:
    (x1, y1), (x2, y2) = start, end
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    return el("line", stroke=colour, stroke_width=width, **ends)


def rules_svg(result: Result) -> str:
    """Draw the rules of a suite's first section against the best fixed width of each request.

    Parameters
    ----------
    result
        A suite; its texts may hold any characters.

    Returns
    -------
    str
        A complete SVG document on a white ground.
    """
    section = result.sections[0]
    rows = [each for each in result.summaries if each.section == section]
    cells = [cell for cell in result.cells if cell.section == section]
    best = {row.rule: max(cell.to_best for cell in cells if cell.rule == row.rule) for row in rows}
    limits = bounds(result.cells, section)
    low = max(_LOWEST, min(row.worst for row in rows)) / 1.04
    axis = LogAxis(low, max(1.05, *best.values(), *(each.mean for each in limits)) * 1.04)
    bottom = _TOP + _ROW * (len(rows) + len(limits))

    def x(ratio: float) -> float:
        return _LEFT + axis.share(max(ratio, low)) * (_RIGHT - _LEFT)

    marks: list[object] = [
        _text(20, 34, "How many drafts? Rules against the best fixed width", font_size=20, font_weight="bold"),
        _text(20, 58, _subtitle(result), fill=_SOFT),
        _text(_RIGHT + 22, 90, "mean (worst)", fill=_SOFT),
        _text(_RIGHT + 150, 90, "worst to off", fill=_SOFT),
    ]
    for tick in axis.ticks(_TICK_GAP / (_RIGHT - _LEFT)):
        is_one = tick == 1.0
        marks.append(_line((x(tick), _TOP - 6), (x(tick), bottom), _INK if is_one else _GRID, 1.5 if is_one else 1.0))
        marks.append(_text(x(tick), bottom + 18, f"{tick:g}", text_anchor="middle", fill=_INK if is_one else _SOFT))
    for number, row in enumerate(rows):
        y = _TOP + _ROW * (number + 0.5)
        marks += _rule_marks(row, y, (x(row.worst), x(row.mean), x(best[row.rule])))
    for number, each in enumerate(limits, len(rows)):
        y = _TOP + _ROW * (number + 0.5)
        marks.append(_text(20, y + 5, each.name, fill=_OTHER))
        marks.append(el("path", d=f"M{x(each.mean) - 7:.1f} {y:.1f} l7 -7 l7 7 l-7 7 Z", fill=_OTHER))
        marks.append(_text(_RIGHT + 22, y + 5, f"{each.mean:.3f}", fill=_OTHER))
    notes = (
        "Speed in units of the best fixed width of each request in hindsight: geometric mean, and worst to best.",
        "Informed: knows the probabilities before it drafts. Clairvoyant: knows which drafts hold.",
    )
    marks += [_text(20, bottom + 46 + 20 * number, note, fill=_SOFT, font_size=13) for number, note in enumerate(notes)]
    description = "; ".join(f"{row.rule}: {row.mean:.3f}, worst {row.worst:.3f}" for row in rows)
    return _svg(_WIDTH, bottom + 82, "Rules against the best fixed width", description, *marks)


def _subtitle(result: Result) -> str:
    plan = result.plan
    return f"{len(plan.traces)} texts on {len(plan.curves)} machines, each request with a fresh policy"


def _rule_marks(row: Summary, y: float, places: tuple[float, float, float]) -> list[Html]:
    x_worst, x_mean, x_best = places
    colour = _ABOVE if row.mean >= 1.0 else _BELOW
    return [
        _text(20, y + 5, row.rule),
        _line((x_worst, y), (x_best, y), colour, 2.5),
        *(_line((x, y - 5), (x, y + 5), colour, 1.5) for x in (x_worst, x_best)),
        el("circle", cx=f"{x_mean:.1f}", cy=f"{y:.1f}", r=5, fill=colour),
        _text(_RIGHT + 22, y + 5, f"{row.mean:.3f} ({row.worst:.3f})", fill=colour),
        _text(_RIGHT + 150, y + 5, f"{row.worst_off:.3f}", fill=_SOFT),
    ]


def reliability_svg(found: Sequence[Reliability]) -> str:
    """Draw what the probabilities predict against what holds, a panel for each depth and one for all.

    Parameters
    ----------
    found
        As `pylucebox.sim.reliability.reliability` gives it.

    Returns
    -------
    str
        A complete SVG document on a white ground.
    """
    n_columns = 4
    n_rows = -(-max(1, len(found)) // n_columns)
    width = 48 + n_columns * (_PANEL + _GAP)
    height = 78 + n_rows * (_PANEL + _GAP + 20)
    marks: list[object] = [
        _text(20, 34, "What the drafts' probabilities are worth", font_size=20, font_weight="bold"),
        _text(20, 58, "Across: probability. Up: share that holds, with 95 % intervals. Size: drafts.", fill=_SOFT),
    ]
    for number, each in enumerate(found):
        left = 50 + number % n_columns * (_PANEL + _GAP)
        top = 100 + number // n_columns * (_PANEL + _GAP + 20)
        marks.append(el("g", *_panel(each), transform=f"translate({left} {top})"))
    description = "; ".join(
        f"{_name(each)}: {each.n} drafts, Brier {each.brier:.3f}, skill {each.skill:.2f}, ECE {each.ece:.3f}"
        for each in found
    )
    return _svg(width, height, "Reliability of the drafts' probabilities", description, *marks)


def _name(found: Reliability) -> str:
    return "all depths" if found.depth is None else f"depth {found.depth}"


def _panel(found: Reliability) -> list[Html]:
    def place(p: float, share: float) -> tuple[float, float]:
        return _PANEL * p, _PANEL * (1.0 - share)

    marks = [
        _text(0, -8, _name(found), font_weight="bold"),
        _text(
            0, _PANEL + 34, f"skill {found.skill:.2f}, ECE {found.ece:.3f}, {found.n} drafts", fill=_SOFT, font_size=12
        ),
        el("rect", width=_PANEL, height=_PANEL, fill="none", stroke=_GRID),
        _line(place(0, 0), place(1, 1), _OTHER),
    ]
    for tick in (0.0, 0.5, 1.0):
        x, y = place(tick, tick)
        marks.append(_text(x, _PANEL + 16, f"{tick:g}", text_anchor="middle", fill=_SOFT, font_size=11))
        marks.append(_text(-6, y + 4, f"{tick:g}", text_anchor="end", fill=_SOFT, font_size=11))
    most = max(each.n for each in found.bins)
    for each in found.bins:
        low, high = each.interval()
        marks.append(_line(place(each.predicted, low), place(each.predicted, high), _BLUE, 1.2))
        x, y = place(each.predicted, each.observed)
        radius = 2.0 + 5.0 * (each.n / most) ** 0.5
        label = f"{each.n} drafts: predicted {each.predicted:.2f}, held {each.observed:.2f}"
        marks.append(
            el("circle", el("title", label), cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{radius:.1f}", fill=_BLUE, opacity=0.8)
        )
    return marks
