"""The picture of `lucebox demo`: speed ratios with intervals, and acceptance by draft depth, as one SVG.

Written with the standard library only, so that a picture comes out wherever the package runs. Pure: returns text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pylucebox._axis import LogAxis

_WIDTH = 960
_TOP = 120
_ROW = 34
_LABEL_X = 20
_PLOT_LEFT, _PLOT_RIGHT = 120, 440
_VALUE_X = 452
_GRID_LEFT = 620
_CELL = 45
_TICK_GAP = 36
# Differ in lightness as well as in hue, for readers who see no red and for grey printers.
_COLOURS = {"faster": "#0b6e4f", "slower": "#c1440e", "unresolved": "#6b7280"}


@dataclass(frozen=True)
class ChartRow:
    """One line of the chart.

    Attributes
    ----------
    name
        Label.
    ratio, low, high
        Speed with MTP over speed without, with its interval. None leaves the left half of the row empty.
    verdict
        ``"faster"``, ``"slower"`` or ``"unresolved"``; chooses the colour.
    acceptance
        Share of cycles whose draft was accepted at depth 1, 2, ...; 0..1, None where nothing was measured.
    """

    name: str
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str
    acceptance: tuple[float | None, ...]


@dataclass(frozen=True)
class Chart:
    """What the picture shows.

    Attributes
    ----------
    title, subtitle
        Lines above the panels.
    rows
        One per prompt, at least one.
    total
        The line over all prompts, or None.
    noise_floor
        Half width of the band around 1 that the A/A runs leave open, as a fraction.
    notes
        Lines below the panels.
    """

    title: str
    subtitle: str
    rows: tuple[ChartRow, ...]
    total: ChartRow | None
    noise_floor: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Axis:
    """The ratio axis in the units of the picture."""

    scale: LogAxis

    def x(self, ratio: float) -> float:
        return _PLOT_LEFT + self.scale.share(ratio) * (_PLOT_RIGHT - _PLOT_LEFT)

    def ticks(self) -> list[float]:
        """Round values inside the axis, 1 first, none closer than the labels are wide."""
        return self.scale.ticks(_TICK_GAP / (_PLOT_RIGHT - _PLOT_LEFT))


def _axis_for(rows: Sequence[ChartRow], noise_floor: float) -> _Axis:
    edge = max(1.1, 1.0 + noise_floor)
    lows = [row.low for row in rows if row.low is not None]
    highs = [row.high for row in rows if row.high is not None]
    return _Axis(LogAxis(min([*lows, 1.0 / edge]) / 1.04, max([*highs, edge]) * 1.04))


def _text(x: float, y: float, content: str, **attributes: str) -> str:
    extra = "".join(f' {name.replace("_", "-")}="{escape(value)}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(content)}</text>'


def _line(start: tuple[float, float], end: tuple[float, float], colour: str, width: float = 1.0) -> str:
    (x1, y1), (x2, y2) = start, end
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def _box(left: float, top: float, size: tuple[float, float], fill: str, radius: int = 0) -> str:
    width, height = size
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} rx="{radius}" fill="{fill}"/>'


def _ratio_marks(row: ChartRow, y: float, axis: _Axis, *, is_total: bool) -> list[str]:
    if row.ratio is None or row.low is None or row.high is None:
        return [_text(_VALUE_X, y + 5, "not compared", fill=_COLOURS["unresolved"])]
    colour = _COLOURS[row.verdict]
    x, x_low, x_high = axis.x(row.ratio), axis.x(row.low), axis.x(row.high)
    marks = [_line((x_low, y), (x_high, y), colour, 2.5)]
    marks += [_line((end, y - 5), (end, y + 5), colour, 1.5) for end in (x_low, x_high)]
    if is_total:
        marks.append(f'<path d="M{x - 8:.1f} {y:.1f} l8 -8 l8 8 l-8 8 Z" fill="{colour}"/>')
    else:
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>')
    label = f"{row.ratio:.2f}  ({row.low:.2f} to {row.high:.2f})"
    marks.append(_text(_VALUE_X, y + 5, label, fill=colour, font_weight="bold" if is_total else "normal"))
    return marks


def _cells(row: ChartRow, y: float) -> list[str]:
    marks = []
    for depth, share in enumerate(row.acceptance):
        x = _GRID_LEFT + depth * _CELL
        if share is None:
            fill, ink, label = "#f3f4f6", "#6b7280", "-"
        else:
            tone = min(1.0, max(0.0, share))
            # White to dark blue; the ink flips where the cell gets too dark for black.
            fill = f"rgb({round(247 - 216 * tone)},{round(250 - 172 * tone)},{round(255 - 109 * tone)})"
            ink, label = ("#ffffff" if tone > 0.55 else "#111827"), f"{100 * share:.0f}"
        marks.append(_box(x + 1, y - _ROW / 2 + 1, (_CELL - 2, _ROW - 2), fill, radius=3))
        marks.append(_text(x + _CELL / 2, y + 5, label, fill=ink, text_anchor="middle"))
    return marks


def render_svg(chart: Chart) -> str:
    """Draw the chart.

    Parameters
    ----------
    chart
        Content; texts may hold any characters.

    Returns
    -------
    str
        A complete SVG document, 960 units wide, on a white ground.
    """
    lines = [*chart.rows, *([chart.total] if chart.total else [])]
    axis = _axis_for(lines, chart.noise_floor)
    bottom = _TOP + _ROW * len(lines) + (10 if chart.total else 0)
    height = bottom + 62 + 20 * len(chart.notes)
    n_depths = max(len(row.acceptance) for row in chart.rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        ' role="img" font-family="DejaVu Sans, Verdana, Arial, sans-serif" font-size="14">',
        f"<title>{escape(chart.title)}</title>",
        f"<desc>{escape(_description(chart))}</desc>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_LABEL_X, 34, chart.title, font_size="20", font_weight="bold", fill="#111827"),
        _text(_LABEL_X, 58, chart.subtitle, fill="#4b5563"),
        _text(_PLOT_LEFT, 90, "Decode speed, MTP on / MTP off", font_weight="bold", fill="#111827"),
        _text(_GRID_LEFT, 90, "Accepted by depth, % of cycles that deep", font_weight="bold", fill="#111827"),
    ]
    out += [
        _text(_GRID_LEFT + (depth + 0.5) * _CELL, 110, str(depth + 1), text_anchor="middle", fill="#4b5563")
        for depth in range(n_depths)
    ]
    band_left, band_right = axis.x(1.0 / (1.0 + chart.noise_floor)), axis.x(1.0 + chart.noise_floor)
    out.append(_box(band_left, _TOP, (band_right - band_left, bottom - _TOP), "#e5e7eb"))
    for tick in axis.ticks():
        x = axis.x(tick)
        is_one = tick == 1.0
        out.append(_line((x, _TOP), (x, bottom), "#111827" if is_one else "#e5e7eb", 1.5 if is_one else 1.0))
        out.append(_text(x, bottom + 18, f"{tick:g}", text_anchor="middle", fill="#111827" if is_one else "#4b5563"))
    out.append(_text(axis.x(1.0) - 8, bottom + 38, "\u2190 slower", text_anchor="end", fill="#4b5563"))
    out.append(_text(axis.x(1.0) + 8, bottom + 38, "faster \u2192", fill="#4b5563"))
    for index, row in enumerate(lines):
        is_total = row is chart.total
        y = _TOP + (index + 0.5) * _ROW + (10 if is_total else 0)
        if is_total:
            out.append(_line((_LABEL_X, y - _ROW / 2 - 5), (_WIDTH - 20, y - _ROW / 2 - 5), "#9ca3af"))
        out.append(_text(_LABEL_X, y + 5, row.name, fill="#111827", font_weight="bold" if is_total else "normal"))
        out += _ratio_marks(row, y, axis, is_total=is_total)
        out += _cells(row, y)
    out += [
        _text(_LABEL_X, bottom + 66 + 20 * index, note, fill="#4b5563", font_size="13")
        for index, note in enumerate(chart.notes)
    ]
    out.append("</svg>")
    return "\n".join(out) + "\n"


def _description(chart: Chart) -> str:
    """Say the ratios in words, for readers who hear the picture."""
    lines = [*chart.rows, *([chart.total] if chart.total else [])]
    return "; ".join(
        f"{row.name}: {row.ratio:.2f} ({row.verdict})" if row.ratio is not None else f"{row.name}: not compared"
        for row in lines
    )
