"""Pictures of the report as SVG that stretches with its column: no scripts, colours from the page's style sheet.

Marks are placed in per cent of the width, so that they keep their shape on every screen; only lines that are drawn
through many points live in a stretched coordinate system of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pylucebox._axis import LogAxis
from pylucebox.ab.markup import Html, el, join

__all__ = ["Band", "Interval", "Line", "Plot", "axis_strip", "interval_strip", "plot", "sparkline"]

Scale = Callable[[float], float]
"""From a value to its place."""

_STRIP_HEIGHT: Final = 30
_PLOT_HEIGHT: Final = 190
_INNER: Final = 1000  # units of the stretched coordinate systems
_MIN_GAP: Final = 0.085  # share of a strip's width that the label of a tick takes


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with its interval.

    Attributes
    ----------
    ratio, low, high
        Ends and middle.
    style
        CSS class that gives the colour.
    is_total
        Whether it sums up others; drawn as a diamond.
    label
        What it says, in words.
    """

    ratio: float
    low: float
    high: float
    style: str
    label: str
    is_total: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of the axis.

    Attributes
    ----------
    low, high
        Ends.
    style
        CSS class.
    """

    low: float
    high: float
    style: str


@dataclass(frozen=True, slots=True)
class Line:
    """A series of a plot.

    Attributes
    ----------
    name
        Entry of the legend.
    style
        CSS class.
    steps
        (x from, x to, y) of each horizontal piece.
    spans
        (x from, x to, y low, y high) of areas behind the line.
    """

    name: str
    style: str
    steps: tuple[tuple[float, float, float], ...]
    spans: tuple[tuple[float, float, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of step lines.

    Attributes
    ----------
    title, description
        What it shows, for the heading and for readers who hear it.
    x_label, y_label
        Names of the axes with their units.
    lines
        Series, the last on top.
    y_range, y_ticks
        Ends of the vertical axis and what is marked on it; None and nothing fit it to the series.
    """

    title: str
    description: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    y_range: tuple[float, float] | None = None
    y_ticks: tuple[float, ...] = ()


def _at(share: float) -> str:
    return f"{100 * share:.3f}%"


def _strip(height: int, *children: object, **attributes: object) -> Html:
    return el("svg", *children, class_="strip", width="100%", height=height, **attributes)


def _grid(axis: LogAxis, height: int) -> Html:
    lines = (
        el("line", x1=_at(axis.share(tick)), x2=_at(axis.share(tick)), y1=0, y2=height, class_=_tick_class(tick))
        for tick in axis.ticks(_MIN_GAP)
    )
    return join(lines)


def _tick_class(tick: float) -> str:
    return "one" if tick == 1.0 else "grid"


def axis_strip(axis: LogAxis) -> Html:
    """Return the labels of an axis."""
    labels = (
        el("text", f"{tick:g}", x=_at(axis.share(tick)), y=14, text_anchor="middle", class_=_tick_class(tick))
        for tick in axis.ticks(_MIN_GAP)
    )
    return _strip(20, *labels, aria_hidden="true")


def interval_strip(axis: LogAxis, interval: Interval | None, bands: Sequence[Band]) -> Html:
    """Return one row of a forest plot: bands, grid, and the interval if there is one."""
    middle = _STRIP_HEIGHT / 2
    behind = [
        el(
            "rect",
            x=_at(axis.share(band.low)),
            width=_at(axis.share(band.high) - axis.share(band.low)),
            y=0,
            height=_STRIP_HEIGHT,
            class_=band.style,
        )
        for band in bands
    ]
    grid = _grid(axis, _STRIP_HEIGHT)
    if interval is None:
        return _strip(_STRIP_HEIGHT, *behind, grid, aria_hidden="true")
    low, at, high = (_at(axis.share(value)) for value in (interval.low, interval.ratio, interval.high))
    whisker = [
        el("line", x1=low, x2=high, y1=middle, y2=middle, class_="whisker"),
        *(el("line", x1=end, x2=end, y1=middle - 5, y2=middle + 5, class_="cap") for end in (low, high)),
    ]
    if interval.is_total:
        mark = el("svg", el("path", d=f"M-8 {middle} l8 -8 l8 8 l-8 8 Z"), x=at, overflow="visible")
    else:
        mark = el("circle", cx=at, cy=middle, r=5)
    drawn = el("g", el("title", interval.label), *whisker, mark, class_=f"mark {interval.style}")
    return _strip(_STRIP_HEIGHT, *behind, grid, drawn, role="img", aria_label=interval.label)


def nice_ticks(low: float, high: float, n_wanted: int = 5) -> list[float]:
    """Return round numbers from `low` to `high`, about `n_wanted` of them."""
    raw = (high - low) / max(1, n_wanted - 1)
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _fitted(lines: Iterable[Line]) -> tuple[float, float]:
    """Return an axis around all values, at least a fifth of them long, so that noise is not blown up."""
    values = [y for line in lines for _, _, y in line.steps]
    values += [y for line in lines for _, _, *ends in line.spans for y in ends]
    low, high = min(values), max(values)
    pad = max(0.08 * (high - low), 0.1 * high - 0.5 * (high - low), 1e-9)
    return max(0.0, low - pad), high + pad


def _tick_text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def plot(content: Plot) -> Html:
    """Return a figure with its legend; nothing when no series has a point."""
    lines = [line for line in content.lines if line.steps]
    if not lines:
        return Html("")
    x_high = max(end for line in lines for _, end, _ in line.steps)
    y_low, y_high = content.y_range or _fitted(lines)

    def x_share(value: float) -> float:
        return value / x_high if x_high else 0.0

    def y_share(value: float) -> float:
        return 1.0 - (value - y_low) / (y_high - y_low)

    x_ticks, y_ticks = nice_ticks(0.0, x_high), content.y_ticks or nice_ticks(y_low, y_high)
    grid = [el("line", x1="0%", x2="100%", y1=_at(y_share(y)), y2=_at(y_share(y)), class_="grid") for y in y_ticks]
    grid += [el("line", x1=_at(x_share(x)), x2=_at(x_share(x)), y1="0%", y2="100%", class_="grid") for x in x_ticks]
    drawn = [_drawn(line, lambda x: _INNER * x_share(x), lambda y: _INNER * y_share(y)) for line in lines]
    inner = el("svg", *drawn, viewBox=f"0 0 {_INNER} {_INNER}", preserveAspectRatio="none", width="100%", height="100%")
    area = el(
        "svg",
        *grid,
        inner,
        class_="area",
        width="100%",
        height=_PLOT_HEIGHT,
        role="img",
        aria_label=content.description,
    )
    y_labels = [el("span", _tick_text(y), style=f"top:{_at(y_share(y))}") for y in y_ticks]
    x_labels = [el("span", _tick_text(x), style=f"left:{_at(x_share(x))}") for x in x_ticks]
    legend = el("ul", *(el("li", line.name, class_=line.style) for line in lines), class_="legend")
    return el(
        "figure",
        el("figcaption", el("strong", content.title), el("span", content.y_label, class_="unit")),
        el("div", el("div", *y_labels, class_="y", aria_hidden="true"), area, class_="canvas"),
        el("div", *x_labels, class_="x", aria_hidden="true"),
        el("p", content.x_label, class_="xname"),
        legend if len(lines) > 1 or lines[0].name else None,
        class_="plot",
    )  # fmt: skip


def _drawn(line: Line, x: Scale, y: Scale) -> Html:
    spans = "".join(
        f"M{x(left):.1f} {y(high):.1f}H{x(right):.1f}V{y(low):.1f}H{x(left):.1f}Z"
        for left, right, low, high in line.spans
    )
    path, pen = [], ("", "")
    for left, right, value in line.steps:
        start, end = (f"{x(left):.1f}", f"{y(value):.1f}"), (f"{x(right):.1f}", f"{y(value):.1f}")
        path.append((f"V{start[1]}" if pen[0] == start[0] else f"M{start[0]} {start[1]}") + f"H{end[0]}")
        pen = end
    behind = el("path", d=spans, class_="fill") if spans else None
    drawn = el("path", d="".join(path), vector_effect="non-scaling-stroke")
    return el("g", behind, drawn, class_=f"line {line.style}")


def sparkline(values: Sequence[float], description: str) -> Html:
    """Return values in order as dots on a line; nothing for fewer than two."""
    if len(values) < 2:
        return Html("")
    low, high = min(values), max(values)
    pad = max(0.15 * (high - low), 0.01 * high)
    low, high = low - pad, high + pad
    xs = [0.02 + 0.96 * number / (len(values) - 1) for number in range(len(values))]
    ys = [1.0 - (value - low) / (high - low) for value in values]
    points = " ".join(f"{_INNER * x:.1f},{_INNER * y:.1f}" for x, y in zip(xs, ys, strict=True))
    inner = el(
        "svg",
        el("polyline", points=points, vector_effect="non-scaling-stroke"),
        viewBox=f"0 0 {_INNER} {_INNER}", preserveAspectRatio="none", width="100%", height="100%",
    )  # fmt: skip
    dots = [el("circle", cx=_at(x), cy=_at(y), r=3) for x, y in zip(xs, ys, strict=True)]
    return el("svg", inner, *dots, class_="spark", width="100%", height=64, role="img", aria_label=description)
