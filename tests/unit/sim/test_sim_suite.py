"""Suites: cells, what they are measured against, and what is said of them."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser

import pytest
from _traces import COSTS, trace_of

from pylucebox import InvalidArgumentError
from pylucebox.cli._io import plain
from pylucebox.sim.costs import CostCurve, curve, curves
from pylucebox.sim.library import recorded
from pylucebox.sim.machine import QUIET, REALISTIC, Machine, Noise
from pylucebox.sim.page import render
from pylucebox.sim.reliability import reliability
from pylucebox.sim.replay import replay
from pylucebox.sim.results import Result, bounds, conclude, document
from pylucebox.sim.rules import RULES, Rule, rules
from pylucebox.sim.suite import SHORT_TOKENS, Plan, Summary, run, summarise
from pylucebox.sim.trace import Trace
from pylucebox.width import FixedWidth, WidthCosts, WidthPolicy

ALL = ("single", "short", "sequence", "rough", "batch", "prefill")
ROUND = CostCurve(name="round", title="Round numbers", evidence="constructed", costs=COSTS)
TEXTS = (
    trace_of((7,) * 200, name="easy"),
    trace_of((0,) * 200, name="<b>hard</b>"),
    trace_of((3, 2, 1, 0) * 50, name="mixed"),
    trace_of((1, 0) * 100, name="pairs"),
)


def fixed(width: int) -> Rule:
    return Rule(f"w{width}", "fixed", lambda costs, machine: FixedWidth(width))  # noqa: ARG005


def plan(
    *chosen: Rule,
    sections: tuple[str, ...] = ("single",),
    noise: Noise = QUIET,
    traces: tuple[Trace, ...] = TEXTS,
    machines: tuple[CostCurve, ...] = (ROUND,),
) -> Plan:
    return Plan(name="test", traces=traces, curves=machines, rules=chosen, noise=noise, seeds=(1,), sections=sections)


def summary_of(rule: Rule, section: str = "single", **others: tuple[Trace, ...]) -> Summary:
    (found,) = summarise(run(plan(rule, sections=(section,), **others)))
    return found


def test_a_fixed_width_is_as_fast_as_the_best_where_it_is_the_best_and_slower_elsewhere() -> None:
    cells = {cell.text: cell for cell in run(plan(fixed(8)))}
    assert cells["easy"].to_best == 1.0
    assert cells["easy"].reference.best_drafts == 7
    hard = cells["<b>hard</b>"]
    # 200 cycles of one token; near the end the limit cuts the width.
    assert hard.us == sum((100 + 10 * k) + 10 * k + 5 * (k > 0) for k in (min(7, 199 - at) for at in range(200)))
    assert (hard.reference.off_us, hard.reference.best_us, hard.reference.best_drafts) == (20_000, 20_000, 0)
    assert hard.to_best == hard.to_off == 20_000 / hard.us


def test_a_summary_is_the_geometric_mean_and_the_worst_cell() -> None:
    cells = run(plan(fixed(8)))
    found = summary_of(fixed(8))
    assert found.n_cells == 4
    assert found.mean == pytest.approx(math.prod(cell.to_best for cell in cells) ** 0.25)
    assert found.worst == min(cell.to_best for cell in cells)
    assert found.worst_cell == "<b>hard</b> on round"
    assert found.by_text["easy"] == 1.0
    assert found.by_curve == {"round": pytest.approx(found.mean)}


def test_regret_is_measured_from_the_clairvoyant() -> None:
    found = summary_of(fixed(1), traces=TEXTS[:1])
    # All drafts hold: the clairvoyant decodes 200 tokens in 25 cycles of eight, which is what the best width does.
    assert found.best_regret == pytest.approx(0.0)
    assert found.regret == pytest.approx(20_000 / (25 * (170 + 70)) - 1)


def test_short_requests_are_cut_and_compared_with_their_own_best() -> None:
    (cell,) = run(plan(fixed(8), sections=("short",), traces=TEXTS[:1]))
    short = TEXTS[0].cut(SHORT_TOKENS)
    assert cell.us == replay(short, FixedWidth(8), Machine(COSTS)).decode_us
    assert cell.to_best == 1.0


class Forgetful:
    """Decodes without drafts in its first request and with seven in all later ones."""

    def __init__(self) -> None:
        self.n_requests = 0

    def begin(self, *_: int) -> None:
        self.n_requests += 1

    def choose(self, _: int, context: object) -> int:
        return 1 if self.n_requests == 1 else context.max_width  # type: ignore[attr-defined, no-any-return]

    def observe(self, *_: object) -> None:
        pass


def test_in_a_row_one_policy_meets_all_texts_and_elsewhere_each_a_fresh_one() -> None:
    def make(costs: WidthCosts, machine: Machine) -> WidthPolicy:  # noqa: ARG001
        return Forgetful()

    texts = tuple(trace_of((7,) * 100, name=name) for name in "abc")
    rule = Rule("forgetful", "", make)
    alone = run(plan(rule, traces=texts))
    in_a_row = run(plan(rule, sections=("sequence",), traces=texts))
    assert [cell.to_off for cell in alone] == [1.0] * 3
    assert sorted(cell.to_off > 1 for cell in in_a_row) == [False, True, True]


def test_several_at_once_are_measured_by_the_time_a_request_takes_on_average() -> None:
    cells = run(plan(fixed(1), sections=("batch",)))
    assert [cell.text.count("+") + 1 for cell in cells] == [2, 2, 4]
    assert cells[0].us == 200 * 110  # two rows in each of 200 steps
    assert all(cell.reference.clairvoyant_us is None and cell.to_off == 1.0 for cell in cells)


def test_short_answers_after_long_prompts_pay_for_the_prompt() -> None:
    cells = {cell.rule: cell for cell in run(plan(fixed(8), RULES_OFF, sections=("prefill",), traces=TEXTS[:1]))}
    bare = replay(TEXTS[0].cut(32), FixedWidth(8), Machine(COSTS)).decode_us
    assert cells["w8"].us == bare + 1000 * 2
    assert cells["off"].us == 31 * 100  # no MTP, no tax
    assert cells["w8"].reference.best_us == min(bare + 2000, 3100)
    assert run(plan(fixed(8), sections=("prefill",), machines=(curve("flat-gpu"),))) == []  # prefill is unknown there


RULES_OFF = rules(("off",))[0]


def test_a_plan_without_anything_is_refused() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        plan(fixed(2), traces=())
    assert caught.value.argument == "traces"


def test_runs_repeat_and_noise_of_a_cell_does_not_depend_on_the_others() -> None:
    noisy = run(plan(*RULES[:3], sections=ALL, noise=REALISTIC))
    assert noisy == run(plan(*RULES[:3], sections=ALL, noise=REALISTIC))
    alone = run(plan(RULES[1], noise=REALISTIC, traces=TEXTS[2:3]))
    assert alone == [
        cell for cell in noisy if (cell.section, cell.rule, cell.text) == ("single", RULES[1].name, "mixed")
    ]


@pytest.fixture(scope="module")
def result() -> Result:
    chosen = plan(*RULES, sections=ALL, noise=REALISTIC)
    return conclude(chosen, run(chosen), reliability(chosen.traces))


def test_the_document_has_everything_and_is_json(result: Result) -> None:
    found = json.loads(json.dumps(plain(document(result)), allow_nan=False))
    assert found["schema"] == "lucebox-sim/1"
    assert [rule["name"] for rule in found["rules"]] == [rule.name for rule in RULES]
    assert {cell["section"] for cell in found["cells"]} == set(ALL)
    assert found["curves"][0]["source"] == "round numbers"
    assert found["bounds"]["batch"] == []
    assert [each["name"] for each in found["bounds"]["single"]] == ["informed", "clairvoyant"]
    assert len(found["targets"]) == 5
    assert found["reliability"][-1]["depth"] is None
    for cell in found["cells"]:
        assert cell["to_best"] == pytest.approx(cell["best_us"] / cell["us"], rel=1e-4)


def test_targets_are_those_of_the_first_rule_and_can_be_missed() -> None:
    chosen = plan(fixed(8), fixed(1), sections=("single", "short"))
    found = conclude(chosen, run(chosen), [])
    assert [each.met for each in found.targets] == [False] * 5
    assert found.targets[0].value == found.of("single", "w8").mean  # type: ignore[union-attr]


class Checker(HTMLParser):
    """Counts elements and finds those that were not closed."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_well_formed_shows_every_section_and_escapes_names(result: Result) -> None:
    html = render(result)
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert "script" not in checker.counts
    assert checker.counts["h2"] == len(ALL) + 3
    assert "<b>hard</b>" not in html
    assert "&lt;b&gt;hard&lt;/b&gt;" in html
    for rule in RULES:
        assert rule.name in html


def test_bounds_lie_in_order_on_recorded_texts() -> None:
    chosen = plan(fixed(3), traces=tuple(trace.cut(200) for trace in recorded()), machines=curves()[:2])
    informed, clairvoyant = bounds(run(chosen), "single")
    assert 1.0 < informed.mean < clairvoyant.mean
    assert 0.9 < informed.worst < 1.0
    assert informed.regret == pytest.approx(clairvoyant.mean / informed.mean - 1)
    assert (clairvoyant.worst, clairvoyant.regret) == (1.0, 0.0)
