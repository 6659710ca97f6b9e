"""What a server drafts with, and what its measured costs belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pylucebox import InvalidArgumentError
from pylucebox._sidecar import find_sidecar
from pylucebox.calibration import CostStore
from pylucebox.serve import _native
from pylucebox.serve.costs import ServerCosts, _timed
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

    def get_costs(self, out: Any) -> None:
        costs = out._obj
        costs.n_past = self.n_past
        costs.verify_us[:] = [100.0 * (i + 1) for i in range(8)]
        costs.draft_us[:] = [10.0 * (i + 1) for i in range(7)]


@pytest.mark.parametrize("n_past", [0, 128])
def test_costs_that_were_measured_or_not(n_past: int) -> None:
    found = ServerCosts(Measured(n_past), None, CostStore(None)).find()  # type: ignore[arg-type]
    if n_past == 0:
        assert found is None
    else:
        assert found is not None
        assert (found.verify_us[7], found.draft_us[6], found.source) == (800.0, 70.0, "sweep")


@pytest.mark.parametrize(("make", "asked"), [(AdaptiveWidth, True), (lambda: FixedWidth(4), False)])
def test_only_a_policy_that_takes_costs_is_told_them(make: Any, asked: bool) -> None:
    from pylucebox.serve.policy import PolicyHost

    calls: list[WidthPolicy | None] = []
    host = PolicyHost(make, lambda: calls.append(None))
    event = _native.Event(kind=_native.LOADED, n_draft_max=7)
    event.n_slots = 1
    host.handle(event)
    assert bool(calls) is asked
