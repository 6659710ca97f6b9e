"""What a session refuses before it starts, and what it tells its readers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylucebox._errors import InvalidArgumentError
from pylucebox.ab import session as sessions
from pylucebox.ab.arms import named_arm
from pylucebox.ab.errors import ComparisonError, EnvironmentMismatchError
from pylucebox.ab.planner import Wishes
from pylucebox.ab.prepare import Prepared
from pylucebox.ab.records import Request, Suite
from pylucebox.ab.session import Asked, conclude, default_directory, notes_on, run_new, run_resumed
from pylucebox.ab.simulate import Behaviour, SilentDisplay, example_session, stub_plan
from pylucebox.ab.store import DirectoryStore, load_session

NATIVE = {
    "upstream_build": "b1",
    "series_hash": "abc",
    "compiler": "cc",
    "build_type": "Release",
    "cmake_args": "",
    "backends": (),
    "devices": (),
}
SUITE = stub_plan({"a": Behaviour(), "b": Behaviour()}, Wishes()).suite


def asked(**changes: Any) -> Asked:
    values: dict[str, Any] = {
        "arms": (named_arm("off", "off", {}), named_arm("k3", "k3", {})),
        "baseline": None,
        "wishes": Wishes(sentinel_every=0),
        "suite": "quick",
        "only": (),
        "model": None,
        "sidecar": None,
        "n_ctx": None,
        "common": {},
        "command": ("lucebox", "ab"),
    }
    return Asked(**{**values, **changes})


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Prepare without a model; the returned values can be changed."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"model")
    found: dict[str, Any] = {"suite": SUITE, "drafts": (True, "found"), "path": model}

    def prepare(**_: object) -> Prepared:
        return Prepared(
            suite=found["suite"],
            sentinel=SUITE.workloads[0],
            native=NATIVE,
            model_path=str(found["path"]),
            sidecar_path=None,
            drafts=found["drafts"],
        )

    monkeypatch.setattr(sessions, "prepare", prepare)
    return found


def start(directory: Path, **changes: Any) -> None:
    run_new(asked(**changes), directory, lambda _plan: nullcontext(SilentDisplay()))


def with_requests(*requests: Request) -> Suite:
    return replace(SUITE, workloads=(replace(SUITE.workloads[0], requests=requests),))


def test_arms_with_drafts_need_drafts(prepared: dict[str, Any], tmp_path: Path) -> None:
    prepared["drafts"] = (False, "the model has no MTP block")
    with pytest.raises(ComparisonError, match="'k3' needs drafts: the model has no MTP block"):
        start(tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    "requests",
    [
        (Request(prompt="a", max_tokens=4), Request(prompt="b", max_tokens=4, start_s=1.0)),
        (Request(prompt="a", max_tokens=4), Request(prompt="b", max_tokens=5)),
    ],
)
def test_requests_that_an_engine_cannot_run_together_are_refused(
    prepared: dict[str, Any], tmp_path: Path, requests: tuple[Request, ...]
) -> None:
    prepared["suite"] = with_requests(*requests)
    with pytest.raises(ComparisonError, match="need a server arm"):
        start(tmp_path / "s")


def test_directory_of_another_session_is_refused(prepared: dict[str, Any], tmp_path: Path) -> None:  # noqa: ARG001
    DirectoryStore(tmp_path / "s").write_plan(stub_plan({"a": Behaviour(), "b": Behaviour()}, Wishes()))
    with pytest.raises(InvalidArgumentError, match="--resume"):
        start(tmp_path / "s")


def test_session_is_not_resumed_with_another_model(prepared: dict[str, Any], tmp_path: Path) -> None:
    def stop(*_: object) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_new(asked(), tmp_path / "s", stop)
    assert (tmp_path / "s" / "plan.json").exists()
    prepared["path"].write_bytes(b"another model")
    with pytest.raises(EnvironmentMismatchError, match=r"comparable\.files"):
        run_resumed(asked(), tmp_path / "s", stop)
    prepared["path"].write_bytes(b"model")
    with pytest.raises(KeyboardInterrupt):
        run_resumed(asked(), tmp_path / "s", stop)


def test_splits_of_a_model_are_all_hashed(prepared: dict[str, Any], tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"big-{number:05d}-of-00002.gguf").write_bytes(bytes([number]))
    prepared["path"] = tmp_path / "big-00001-of-00002.gguf"

    def stop(*_: object) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_new(asked(), tmp_path / "s", stop)
    files = load_session(tmp_path / "s").env["comparable"]["files"]
    assert [facts["name"] for facts in files] == ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"]


def test_notes_say_what_limits_the_results() -> None:
    found = example_session("faster").session
    assert notes_on(found) == []
    busy = tuple(replace(run, machine={"before": {"load1": 7.5}}) for run in found.runs)
    untold = tuple(replace(s, n_cached=None) for s in found.runs[0].sequences)
    runs = (replace(busy[0], sequences=untold), *busy[1:])
    plan = replace(found.plan, isolation="request")
    notes = notes_on(replace(found, plan=plan, runs=runs))
    assert [
        any(word in note for note in notes)
        for word in ("shared a process", "load of up to 7.5", "not reported by: off")
    ] == [
        True,
        True,
        True,
    ]


def test_conclusion_is_written_with_both_reports(tmp_path: Path) -> None:
    found = replace(example_session("faster").session, summary=None, directory=tmp_path)
    done = conclude(found, DirectoryStore(tmp_path), stopped="interrupted")
    assert done.summary is not None
    assert (done.summary.complete, done.summary.stopped, done.summary.exit_code) == (False, "interrupted", 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.md", "summary.json"]


def test_default_directory_is_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = default_directory("20260101")
    first.mkdir()
    assert str(default_directory("20260101")) == f"{first}-2"
