"""The chart of `lucebox demo`."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from pylucebox.cli._chart import Chart, ChartRow, render_svg

SVG = "{http://www.w3.org/2000/svg}"
FULL = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.0)


def row(name: str, ratio: float | None, *, verdict: str = "unresolved", half: float = 0.02) -> ChartRow:
    low = high = None
    if ratio is not None:
        low, high = ratio * (1 - half), ratio * (1 + half)
    return ChartRow(name, ratio, low, high, verdict, FULL)


def chart(*rows: ChartRow, total: ChartRow | None = None) -> Chart:
    return Chart("Title", "Subtitle", rows, total, 0.01, ("A note",))


def parse(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def texts(root: ET.Element) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def mark_x(root: ET.Element) -> list[float]:
    return [float(element.attrib["cx"]) for element in root.iter(f"{SVG}circle")]


def line_of_one(root: ET.Element) -> float:
    return next(
        float(e.attrib["x1"])
        for e in root.iter(f"{SVG}line")
        if e.attrib["stroke-width"] == "1.5" and e.attrib["x1"] == e.attrib["x2"] and e.attrib["stroke"] == "#111827"
    )


def test_chart_is_well_formed_and_shows_every_row_and_note() -> None:
    root = parse(render_svg(chart(row("code", 0.8), row("prose", 1.2), total=row("all prompts", 1.0))))
    shown = texts(root)
    for expected in ("Title", "Subtitle", "code", "prose", "all prompts", "A note"):
        assert expected in shown


def test_texts_with_markup_characters_stay_texts() -> None:
    root = parse(render_svg(chart(row('<b>&"', 1.0))))
    assert '<b>&"' in texts(root)


def test_marks_lie_on_the_side_of_one_that_their_ratio_says() -> None:
    root = parse(render_svg(chart(row("slow", 0.5), row("same", 1.0), row("fast", 2.0))))
    slow, same, fast = mark_x(root)
    one = line_of_one(root)
    assert same == pytest.approx(one)
    assert one - slow == pytest.approx(fast - one, abs=0.2)
    assert slow < one < fast


def test_intervals_stay_inside_the_plot_however_far_they_reach() -> None:
    root = parse(render_svg(chart(row("wild", 1.0, half=0.9), row("huge", 40.0))))
    xs = [float(e.attrib[name]) for e in root.iter(f"{SVG}line") for name in ("x1", "x2")]
    assert min(xs) >= 20
    assert max(xs) <= 940
    assert all(120 <= x <= 440 for x in mark_x(root))


def test_row_without_a_ratio_says_so_and_draws_no_mark() -> None:
    root = parse(render_svg(chart(row("broken", None))))
    assert "not compared" in texts(root)
    assert mark_x(root) == []


def test_acceptance_is_shown_in_per_cent_by_depth_and_gaps_as_a_dash() -> None:
    gaps = ChartRow("short", 1.0, 0.9, 1.1, "unresolved", (0.875, None))
    shown = texts(parse(render_svg(chart(gaps))))
    assert shown[shown.index("short") :].count("88") == 1
    assert "-" in shown


def test_description_tells_the_ratios_in_words() -> None:
    root = parse(render_svg(chart(row("code", 0.8, verdict="slower"))))
    description = root.find(f"{SVG}desc")
    assert description is not None
    assert description.text == "code: 0.80 (slower)"
