"""The page of a session: complete, well-formed, needs nothing from elsewhere, and holds hostile texts as texts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pylucebox.ab import report_data, report_html
from pylucebox.ab.charts import Line, Plot, nice_ticks, plot, sparkline
from pylucebox.ab.markup import Html, el, identifier
from pylucebox.ab.records import Arm, CycleRecord, RunRecord
from pylucebox.ab.results import Verdict
from pylucebox.ab.store import Session

from ._report_sessions import ARMS, EFFECTS, ENV, WORKLOADS, Effect, example, session, workload

HOSTILE = '<script>alert("x")</script>&\'`\x1b[31m\u2028\ud800]]>-->'
Made = tuple[Session, Callable[[RunRecord], Sequence[CycleRecord]]]


class Page(HTMLParser):
    """Reads a page as a browser would: elements, their attributes, and the text that is shown."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], "elements are left open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        return [
            attributes
            for name, attributes in self.elements
            if name == tag and all(attributes.get(key) == value for key, value in wanted.items())
        ]


@pytest.fixture(scope="module")
def made() -> Made:
    return example()


@pytest.fixture(scope="module")
def html(made: Made) -> str:
    return report_html.render(*made)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_page_is_well_formed_xml_too(html: str) -> None:
    root = ET.fromstring(html.removeprefix("<!DOCTYPE html>\n"))
    assert root.tag == "html"
    assert root.attrib["lang"] == "en"


def test_page_loads_nothing_and_runs_nothing(html: str, page: Page) -> None:
    assert not re.search(r"https?:|//[a-z]|url\(|@import|srcset|javascript:", html)
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "form"})
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")


def test_links_lead_to_what_is_there_and_ids_are_unique(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert {attributes["href"][1:] for attributes in page.all("a")} <= set(ids)


def test_every_workload_arm_and_verdict_is_shown(made: Made, page: Page) -> None:
    plan = made[0].plan
    for each in plan.suite.workloads:
        assert each.name in page.text
        assert each.title in page.text
        assert page.all("details", id=identifier("w", each.name))
    for arm in plan.arms:
        assert arm.name in page.text
    for verdict in Verdict:
        assert verdict.value in page.text


def test_forest_plot_has_a_row_per_comparison_and_marks_only_what_can_be_compared(made: Made, page: Page) -> None:
    summary = made[0].summary
    assert summary is not None
    rows = [row for each in summary.workloads for row in each.rows]
    strips = page.all("svg", **{"class": "strip"})
    assert len(strips) == 1 + len(rows) + len(summary.pooled)  # the axis is one, too
    said = [strip["aria-label"] for strip in strips if "aria-label" in strip]
    drawn = [row for row in rows if row.verdict not in ("DIVERGED", "INVALID")]
    assert len(said) == len(drawn) + len(summary.pooled)
    assert any("k3: 1.42" in text and "FASTER" in text for text in said)


def test_pictures_are_described_and_tables_have_captions_and_heads(html: str) -> None:
    root = ET.fromstring(html.removeprefix("<!DOCTYPE html>\n"))
    for picture in root.iter("svg"):
        if picture.get("role") == "img":
            assert picture.get("aria-label")
    for figure in root.iter("figure"):
        assert figure.find("figcaption") is not None
    for table in root.iter("table"):
        if table.get("class") != "forest":
            assert table.find("caption") is not None
        assert table.find("thead") is not None
        heads = [head.get("scope") for head in table.iter("th")]
        assert set(heads) <= {"col", "row", "rowgroup"}


def test_width_over_time_is_drawn_for_arms_that_may_change_it(page: Page) -> None:
    assert "Width over time: adaptive" in page.text
    assert "Width over time: k3" not in page.text
    assert "Width over time: off" not in page.text


def test_invalid_runs_are_listed_with_their_reason(page: Page) -> None:
    assert "cached_prompt" in page.text
    assert "16 of 120 prompt tokens" in page.text
    assert "part of the prompt came from a cache" in page.text


def test_environment_is_shown_field_by_field(page: Page) -> None:
    for expected in ("package.series", "cd160f", "A processor with eight cores", "power_cap_w"):
        assert expected in page.text


def test_hostile_texts_stay_texts() -> None:
    work = replace(workload(f"w{HOSTILE}"), title=f"t{HOSTILE}")
    arms = (replace(ARMS[0], name=f"off{HOSTILE}"), replace(ARMS[2], name=f"a{HOSTILE}", options={HOSTILE: HOSTILE}))
    done, cycles = session({}, workloads=[work], arms=arms, model=f"/home/somebody/{HOSTILE}")
    env: dict[str, Any] = {**ENV, "comparable": {HOSTILE: HOSTILE}}
    text = report_html.render(replace(done, env=env), cycles)
    assert "<script" not in text
    assert "\x1b" not in text
    text.encode("utf-8")
    page = Page(text)
    assert ET.fromstring(text.removeprefix("<!DOCTYPE html>\n")) is not None
    assert '<script>alert("x")</script>' in page.text


def test_folders_of_the_model_are_not_told() -> None:
    done, cycles = session({}, workloads=WORKLOADS[:1], arms=ARMS[:2], model="/home/somebody/models/big.gguf")
    text = report_html.render(done, cycles)
    assert "big.gguf" in text
    assert "somebody" not in text


def test_arms_are_shown_without_folders_users_and_keys() -> None:
    server = Arm(
        name="theirs",
        kind="server",
        command=("/home/somebody/bin/llama-server", "-m", "/home/somebody/models/big.gguf", "--api-key", "hunter2"),
    )
    engine = replace(ARMS[1], options={"mtp": "/home/somebody/mtp-big.gguf", "verify_width": 4})
    running = Arm(name="running", kind="url", url="http://somebody:hunter2@127.0.0.1:8080")
    done, cycles = session({}, workloads=WORKLOADS[:1], arms=(ARMS[0], engine, server, running), n_pairs=2)
    text = Page(report_html.render(done, cycles)).text
    assert "mtp=mtp-big.gguf, verify_width=4" in text
    assert "llama-server -m big.gguf --api-key ***" in text
    assert "somebody" not in text
    assert "hunter2" not in text


def test_session_without_a_summary_is_refused(made: Made) -> None:
    with pytest.raises(ValueError, match="no summary"):
        report_html.render(replace(made[0], summary=None), made[1])


def test_session_that_was_stopped_says_so_before_the_figures() -> None:
    done, cycles = session(
        EFFECTS, workloads=WORKLOADS[:1], arms=ARMS[:2], complete=False, stopped="the disk is full", isolation="request"
    )
    text = Page(report_html.render(done, cycles)).text
    assert text.index("the disk is full") < text.index("Decode speed against off")
    assert "quick look" in text


def test_session_that_measured_nothing_makes_a_page(made: Made) -> None:
    from pylucebox.ab.verdict import summarise

    plan = made[0].plan
    empty = Session(
        plan=plan, env={}, runs=(), summary=summarise(plan, {}, (), complete=False, stopped="no arm started")
    )
    text = Page(report_html.render(empty, lambda _: ())).text
    assert "no arm started" in text
    assert "not compared" in text


def test_missing_cycles_leave_out_the_picture_only(made: Made) -> None:
    text = Page(report_html.render(made[0], lambda _: ())).text
    assert "Width over time" not in text
    assert "Time per token" in text


def test_many_workloads_are_folded() -> None:
    works = [workload(f"w{number}") for number in range(9)]
    done, cycles = session({}, workloads=works, arms=ARMS[:2], n_pairs=2)
    page = Page(report_html.render(done, cycles))
    assert all("open" not in each for each in page.all("details", **{"class": "card work"}))
    assert len(page.all("details", **{"class": "card work"})) == 9


def test_extreme_ratios_stay_inside_the_plot() -> None:
    effects = {("w", "slow"): Effect(0.02), ("w", "fast"): Effect(30.0)}
    arms = (ARMS[0], replace(ARMS[1], name="slow"), replace(ARMS[1], name="fast"))
    done, cycles = session(effects, workloads=[workload("w")], arms=arms)
    page = Page(report_html.render(done, cycles))
    places = [float(each["cx"].rstrip("%")) for each in page.all("circle")]
    assert len(places) > 2
    assert all(0 <= place <= 100 for place in places)


def test_server_arm_without_token_times_is_shown() -> None:
    server = Arm(name="theirs", kind="server", command=("/usr/bin/llama-server", "--port", "{port}"))
    done, _ = session({("w", "theirs"): Effect(1.3)}, workloads=[workload("w")], arms=(ARMS[0], server))
    bare = tuple(
        replace(run, spec=None, widths={}, sequences=tuple(replace(each, block_ms=()) for each in run.sequences))
        for run in done.runs
    )
    text = Page(report_html.render(replace(done, runs=bare), lambda _: ())).text
    assert "server llama-server" in text
    assert "Time per token" not in text


def test_block_times_are_per_token_and_leave_out_the_first() -> None:
    done, _ = session({}, workloads=[workload("w")], arms=ARMS[:2], noise=0.0)
    blocks = report_data.block_times(done, "w")["off"]
    step_ms = 1000 / 1100
    assert [block.first for block in blocks] == [0, 64, 128, 192, 256]
    assert all(abs(block.median - step_ms) < 0.01 * step_ms for block in blocks)


def test_traced_run_is_the_one_of_median_speed(made: Made) -> None:
    run = report_data.traced_run(made[0], "sweep-count", "adaptive")
    assert run is not None
    speeds = sorted(
        other.decode_tok_s or 0.0
        for other in made[0].runs
        if (other.phase, other.workload, other.arm) == ("main", "sweep-count", "adaptive")
    )
    assert run.decode_tok_s == speeds[4]
    assert report_data.traced_run(made[0], "multi-3-short", "k3") is None


def test_element_escapes_everything_but_html() -> None:
    assert el("b", "<", Html("<i></i>"), None, 3, title='"') == '<b title="&quot;">&lt;<i></i>3</b>'
    assert el("meta", charset="utf-8") == '<meta charset="utf-8"/>'
    assert el("details", open=True) == '<details open="open"></details>'
    assert el("details", open=False) == "<details></details>"


def test_identifiers_of_different_names_differ() -> None:
    names = ["a b", "a_b", "a-b", "A-b", "a/b", "a@4k"]
    assert len({identifier("w", name) for name in names}) >= 5  # case alone is not told apart by every browser
    assert re.fullmatch(r"[a-z0-9_-]+", identifier("w", HOSTILE))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.61, 0.64), (3.0, 4812.0), (0.0, 0.0)])
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert 1 <= len(ticks) <= 8
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)


def test_plot_of_nothing_is_nothing() -> None:
    assert plot(Plot(title="t", description="d", x_label="x", y_label="y", lines=(Line("a", "a0", ()),))) == ""
    assert sparkline([1.0], "one") == ""
    assert "polyline" in sparkline([5.0, 5.0], "the same")


def test_style_sheet_lies_in_the_package() -> None:
    css = Path(report_html.__file__).with_name("report.css").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in css
    assert css.count("{") == css.count("}")
