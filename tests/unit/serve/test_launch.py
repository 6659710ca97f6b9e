"""What a worker is started with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pylucebox import ModelNotFoundError, SidecarNotFoundError, SpecUnavailableError
from pylucebox._build import DEMO_MODEL
from pylucebox.serve.flags import ServeFlags
from pylucebox.serve.launch import plan_launch

DEMO_MTP = next(DEMO_MODEL.parent.glob("MTP/*.gguf"))


def flags(**changes: object) -> ServeFlags:
    return ServeFlags(**{"model": str(DEMO_MODEL), **changes})  # type: ignore[arg-type]


@pytest.fixture
def alone(tmp_path: Path) -> str:
    return shutil.copy(DEMO_MODEL, tmp_path / "alone.gguf")


def test_adaptive_worker_may_draft_as_deep_as_possible() -> None:
    launch = plan_launch(flags(rest=("--ctx-size", "64")), 81)
    words = " ".join(launch.arguments)
    assert f"--spec-type draft-mtp --spec-draft-n-max 7 --model-draft {DEMO_MTP}" in words
    assert f"--model {DEMO_MODEL} --host 127.0.0.1 --port 81 --metrics" in words
    assert launch.arguments[-2:] == ("--ctx-size", "64")
    assert (launch.verify_width, launch.max_width, launch.drafts) == (0, 8, True)
    json.dumps(launch.as_dict())


def test_fixed_width() -> None:
    launch = plan_launch(flags(verify_width=3), 81)
    assert launch.arguments[launch.arguments.index("--spec-draft-n-max") + 1] == "2"
    assert (launch.verify_width, launch.max_width) == (3, 3)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"mtp": "off"}, "off-requested"),
        ({"verify_width": 1}, "off-requested"),
        ({"no_drafts": "a server that ranks generates nothing"}, "unsupported-mode"),
    ],
    ids=str,
)
def test_worker_without_drafts_knows_why(changes: dict[str, object], code: str) -> None:
    launch = plan_launch(flags(**changes), 81)
    assert "--spec-type" not in launch.arguments
    assert (launch.spec["effective"], launch.spec["reason_code"]) == (False, code)
    assert launch.spec["requested"] is (code != "off-requested")
    assert (launch.verify_width, launch.max_width) == (1, 1)


def test_start_that_failed_is_tried_without_drafts() -> None:
    launch = plan_launch(flags(), 81, failed="ended with exit code 1")
    assert launch.spec["reason_code"] == "load-failed"
    assert "ended with exit code 1" in str(launch.spec["reason"])
    assert "--spec-type" not in launch.arguments


def test_model_without_a_sidecar(alone: str) -> None:
    assert plan_launch(flags(model=alone), 81).spec["reason_code"] == "no-sidecar"
    with pytest.raises(SpecUnavailableError) as caught:
        plan_launch(flags(model=alone, spec="require"), 81)
    assert caught.value.reason_code == "no-sidecar"
    assert plan_launch(flags(model=alone, mtp=str(DEMO_MTP)), 81).drafts


def test_files_that_are_missing() -> None:
    with pytest.raises(ModelNotFoundError):
        plan_launch(flags(model="none.gguf"), 81)
    with pytest.raises(SidecarNotFoundError):
        plan_launch(flags(mtp="none.gguf"), 81)
