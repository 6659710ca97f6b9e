"""What engines tell policies of the machine: measured once, kept, and left alone where nobody wants to know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _models import OpenEngine

import pylucebox as lb
from pylucebox import Engine, FixedWidth, InvalidArgumentError, WidthCosts

COSTS = WidthCosts(tuple(range(1, 9)), tuple(range(1, 8)), 0.5, 2.0, 128, "file")


class Curious(FixedWidth):
    """A policy that wants to know what widths cost."""

    def __init__(self) -> None:
        super().__init__(3)
        self.told: list[WidthCosts] = []

    def load_costs(self, costs: WidthCosts) -> None:
        self.told.append(costs)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def open_and_ask(open_model: OpenEngine, **options: Any) -> list[WidthCosts]:
    policy = Curious()
    with open_model("built-in", n_ctx=512, width_policy=policy, **options) as engine:
        assert engine.generate("a b a b", max_tokens=8).finish_reason == "length"
        assert engine.width_costs == (policy.told[0] if policy.told else None)
    return policy.told


def test_first_engine_measures_and_the_next_one_reads(open_model: OpenEngine, cache: Path) -> None:
    (first,) = open_and_ask(open_model)
    assert first.source == "sweep"
    assert first.n_past == 128
    assert min(first.verify_us + first.draft_us) > 0
    assert list(first.draft_us) == sorted(first.draft_us)
    assert len(files(cache)) == 1
    assert open_and_ask(open_model) == [first]
    (other,) = open_and_ask(open_model, n_ubatch=64)
    assert len(files(cache)) == 2
    assert other.source == "sweep"


def test_costs_can_be_given_or_left_out(open_model: OpenEngine, cache: Path) -> None:
    assert open_and_ask(open_model, width_costs=COSTS) == [COSTS]
    assert open_and_ask(open_model, width_costs=None) == []
    assert files(cache) == []


def test_nobody_pays_who_does_not_want_to_know(open_model: OpenEngine, cache: Path) -> None:
    for options in ({"verify_width": 3}, {"width_policy": FixedWidth(3)}, {"mtp": "off", "width_policy": Curious()}):
        with open_model("built-in", n_ctx=512, **options) as engine:
            assert engine.width_costs is None
    assert files(cache) == []


def test_progress_may_end_the_measurement_and_the_engine_is_there(open_model: OpenEngine, cache: Path) -> None:
    seen: list[float] = []

    def progress(fraction: float) -> bool:
        seen.append(fraction)
        return seen.count(1.0) < 4  # the model is loaded with the first

    assert open_and_ask(open_model, progress=progress) == []
    assert seen.count(1.0) == 4
    assert files(cache) == []


def test_folder_that_cannot_be_written_costs_nothing_but_time(open_model: OpenEngine, cache: Path) -> None:
    (cache / "pylucebox").write_text("in the way")
    assert len(open_and_ask(open_model)) == 1


@pytest.mark.parametrize("wanted", ["sweep", True, 3, {}])
def test_costs_that_are_none_are_refused(wanted: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Engine.demo(width_costs=wanted)
    assert caught.value.argument == "width_costs"


def test_an_engine_measures_when_asked_at_the_length_asked_for(demo: Engine) -> None:
    seen: list[float] = []
    costs = demo.measure_widths(200, progress=seen.append)  # type: ignore[arg-type, func-returns-value]
    assert costs is not None
    assert costs.n_past == 200
    assert 0 <= min(seen) <= max(seen) <= 1
    assert demo.measure_widths(progress=lambda _fraction: False) is None
    assert demo.generate("a b a b", max_tokens=8).finish_reason == "length"


@pytest.mark.parametrize("options", [{"mtp": "off"}, {"verify_width": 4}])
def test_engines_that_cannot_be_measured_say_so(options: dict[str, Any]) -> None:
    with Engine.demo(n_ctx=256, **options) as engine, pytest.raises(InvalidArgumentError) as caught:
        engine.measure_widths()
    assert caught.value.argument == "verify_width"


def test_wrong_length_is_named(demo: Engine) -> None:
    for n_past in (3, "128", True):
        with pytest.raises(InvalidArgumentError) as caught:
            demo.measure_widths(n_past)  # type: ignore[arg-type]
        assert caught.value.argument == "n_past"


def test_text_does_not_depend_on_a_measurement_before_it(demo: Engine) -> None:
    before = demo.generate("The sum of 1, 2 and 3 is", max_tokens=32)
    demo.measure_widths(64)
    after = demo.generate("The sum of 1, 2 and 3 is", max_tokens=32)
    assert after.token_ids == before.token_ids
    assert lb.token_digest(after.token_ids) == before.digest
