"""Cost curves: what the published ones say, and files that hold none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from _traces import COSTS

from pylucebox import InvalidArgumentError, LoadError
from pylucebox.sim.costs import curve, curves, cycle_us, read_curves


def test_every_curve_says_where_it_comes_from() -> None:
    for each in curves():
        assert each.evidence in ("published", "derived", "constructed")
        assert each.costs.source.startswith(("published: ", "constructed: "))
        assert list(each.costs.verify_us) == sorted(each.costs.verify_us)
    assert {"gfx1151-16k", "gfx1151-64k", "gfx1151-exl3", "gb10-exl3", "flat-gpu", "cliff-5"} == {
        each.name for each in curves()
    }


@pytest.mark.parametrize(
    ("name", "cycles_ms"),
    [
        ("gfx1151-16k", (45.9, 65.3, 84.7, 104.1, 123.5, 142.9, 162.3, 181.7)),
        ("gfx1151-64k", (47.6, 67.0, 86.4, 105.8, 125.2, 144.6, 164.0, 183.4)),
    ],
)
def test_cycles_on_gfx1151_take_what_the_published_speeds_imply(name: str, cycles_ms: tuple[float, ...]) -> None:
    costs = curve(name).costs
    found = [cycle_us(costs, drafts + 1, drafts, rejected=False) / 1000 for drafts in range(8)]
    assert found == pytest.approx(cycles_ms)


def test_exl3_takes_what_was_measured_for_one_to_six_rows() -> None:
    assert curve("gfx1151-exl3").costs.verify_us[:6] == (40600, 51500, 59100, 69000, 77900, 86100)


def test_the_cliff_loses_a_fifth_of_the_speed_as_published() -> None:
    costs = curve("cliff-5").costs
    speeds = [tokens / cycle_us(costs, drafts + 1, drafts, rejected=False) for drafts, tokens in ((3, 3.65), (4, 4.00))]
    assert speeds[1] / speeds[0] == pytest.approx(1 - 0.21, abs=0.01)


def test_gb10_is_in_accord_with_the_two_speeds_it_is_derived_from() -> None:
    costs = curve("gb10-exl3").costs
    tokens = 1 + 0.68 + 0.38 + 0.20 + 0.09 + 0.02
    assert 1e6 * tokens / cycle_us(costs, 6, 5, rejected=False) == pytest.approx(41.7, rel=0.02)


def test_a_cycle_is_rows_chain_and_rejection() -> None:
    assert cycle_us(COSTS, 1, 0, rejected=False) == 100
    assert cycle_us(COSTS, 3, 5, rejected=True) == 120 + 50 + 5


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="gfx1151-16k"):
        curve("abacus")


def test_a_file_of_costs_is_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(COSTS.as_dict()))
    (found,) = read_curves(path)
    assert (found.name, found.evidence, found.costs) == ("mine", "measured", COSTS)


def test_a_document_of_lucebox_calibrate_is_a_machine_for_each_context_length(tmp_path: Path) -> None:
    other = replace(COSTS, n_past=4000)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"schema": 1, "model": "x", "costs": [COSTS.as_dict(), other.as_dict()]}))
    assert [(each.name, each.costs) for each in read_curves(path)] == [("mine-1000", COSTS), ("mine-4000", other)]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "1",
        "{}",
        '{"costs": []}',
        '{"costs": {}}',
        '{"costs": [1]}',
        '{"verify_us": [1]}',
        "[" * 100_000,
        "\udcff",
    ],
)
def test_a_file_that_holds_none_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(LoadError) as caught:
        read_curves(path)
    assert caught.value.path == str(path)


def test_a_file_that_is_missing_or_huge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="No such file"):
        read_curves(tmp_path / "x.json")
    (tmp_path / "y.json").write_bytes(b" " * 1_000_001)
    with pytest.raises(LoadError, match="too large"):
        read_curves(tmp_path / "y.json")
