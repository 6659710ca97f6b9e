"""What a server drafts with, and what its measured costs belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pylucebox import InvalidArgumentError
from pylucebox._sidecar import find_sidecar
from pylucebox.calibration import CostKey, CostStore
from pylucebox.serve import _native
from pylucebox.serve.costs import ServerCosts, _timed, fill_draft, fill_verify
from pylucebox.serve.drafting import ids_of, plan_drafter
from pylucebox.serve.flags import parse_flags
from pylucebox.testing import TinySpec, write_tiny_model
from pylucebox.width import AdaptiveWidth, FixedWidth, WidthPolicy


@pytest.mark.parametrize("mtp", ["in-file", "sidecar", "shared"])
def test_tables_are_where_the_files_have_them(tmp_path: Path, mtp: Any) -> None:
    files = write_tiny_model(tmp_path / "m.gguf", TinySpec(mtp=mtp, weight_type="q8_0"))
    plan = plan_drafter("off", find_sidecar(files.model))
    assert plan.draft_ids == ()
    own = files.sidecar if mtp == "sidecar" else files.model
    for place in (plan.head, plan.embedding):
        assert Path(place.path) == own
        assert place.ggml_type == 8
        assert 0 < place.offset < place.offset + place.n_bytes <= Path(place.path).stat().st_size
    assert plan.head.offset != plan.embedding.offset


def test_ids_are_kept_as_runs(tmp_path: Path) -> None:
    files = write_tiny_model(tmp_path / "m.gguf", TinySpec())
    (tmp_path / "ids").write_text("9 3 4 5 20 21")
    plan = plan_drafter(str(tmp_path / "ids"), find_sidecar(files.model))
    assert plan.draft_ids == ((3, 6), (9, 10), (20, 22))
    assert ids_of(plan.draft_ids) == [3, 4, 5, 9, 20, 21]
    assert "6 of" in plan.reason


@pytest.mark.parametrize(("text", "found"), [("1000", 1000), ("off", "off"), ("ids.txt", "ids.txt")])
def test_flag_of_the_draft_vocabulary(text: str, found: int | str) -> None:
    assert parse_flags(["--demo", "--draft-vocab", text], {}).draft_vocab == found


@pytest.mark.parametrize(
    "more", [["--draft-vocab", "0"], ["--draft-vocab="], ["--draft-vocab", "9", "--mtp", "off"]], ids=str
)
def test_draft_vocabulary_that_makes_no_sense(more: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="draft-vocab"):
        parse_flags(["--demo", *more], {})


def test_addresses_and_keys_change_no_costs() -> None:
    timed = ["--model", "m", "--threads", "2"]
    assert _timed([*timed, "--host", "a", "--port", "1", "--metrics", "--api-key", "k", "--alias=x"]) == timed


class Measured:
    """A library that has measured, or not."""

    def __init__(self, n_past: int) -> None:
        self.n_past = n_past

    def get_costs(self, n_active: int, out: Any) -> None:
        costs = out._obj
        costs.n_past = self.n_past if n_active < 3 else 0  # it has two slots
        costs.on_gpu = 1
        for n_rows in range(n_active, 9, n_active):
            costs.verify_us[n_rows - 1] = 100.0 * n_rows * n_active
        for n_drafts in range(1, 8 // n_active):
            costs.draft_us[n_drafts - 1] = 10.0 * n_drafts * n_active


def key(**settings: str) -> CostKey:
    return CostKey(model=(), settings=tuple(settings.items()), build="1", device=())


@pytest.mark.parametrize("n_past", [0, 128])
def test_costs_that_were_measured_or_not(tmp_path: Path, n_past: int) -> None:
    store = CostStore(tmp_path)
    costs = ServerCosts(Measured(n_past), key(), store)  # type: ignore[arg-type]
    assert not costs.stored
    found = costs.find()
    assert sorted(found) == ([1, 2] if n_past else [])
    if n_past:
        assert (found[1].verify_us[7], found[1].draft_us[6], found[1].source) == (800.0, 70.0, "sweep")
        assert (found[2].verify_us[7], found[2].draft_us[2]) == (1600.0, 60.0)
        assert found[1].on_gpu
    assert ServerCosts(Measured(0), key(), store).find() == found  # type: ignore[arg-type]
    assert ServerCosts(Measured(0), key(other="flags"), store).find() == {}  # type: ignore[arg-type]


def test_rows_and_drafts_between_those_that_were_timed() -> None:
    single = [100.0, 150.0, 200.0, 250.0, 300.0, 350.0, 400.0, 450.0]
    assert fill_verify([0, 0, 300.0, 0, 0, 600.0, 0, 0], single, 3) == [150, 225, 300, 400, 500, 600, 700, 800]
    assert fill_verify([0, 0, 0, 300.0, 0, 0, 0, 200.0], single, 4)[4:] == [300.0] * 4  # no more rows for less time
    chain = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0]
    assert fill_draft([15.0, 24.0, 0, 0, 0, 0, 0], chain) == pytest.approx([15, 24, 36, 48, 60, 72, 84])


def test_costs_of_several_slots_are_those_of_their_passes() -> None:
    from pylucebox.serve.policy import PolicyHost

    found = ServerCosts(Measured(128), None, CostStore(None)).find()  # type: ignore[arg-type]
    policy = AdaptiveWidth()
    loaded = _native.Event(kind=_native.LOADED, n_draft_max=7)
    loaded.n_slots = 2
    PolicyHost(lambda: policy, lambda: found).handle(loaded)
    for n_active in (1, 2):
        assert policy._book.at(n_active, 64).prices.verify[7] == pytest.approx(800.0 * n_active, rel=0.01)


@pytest.mark.parametrize(("make", "asked"), [(AdaptiveWidth, True), (lambda: FixedWidth(4), False)])
def test_only_a_policy_that_takes_costs_is_told_them(make: Any, asked: bool) -> None:
    from pylucebox.serve.policy import PolicyHost

    calls: list[WidthPolicy | None] = []
    host = PolicyHost(make, lambda: calls.append(None) or {})  # type: ignore[func-returns-value]
    event = _native.Event(kind=_native.LOADED, n_draft_max=7)
    event.n_slots = 1
    host.handle(event)
    assert bool(calls) is asked
