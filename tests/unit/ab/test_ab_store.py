"""The session directory survives kills, full disks and other sessions."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from pylucebox.ab.errors import ComparisonError, SessionFileError
from pylucebox.ab.records import RunRecord
from pylucebox.ab.simulate import Simulated, example_session
from pylucebox.ab.store import DirectoryStore, load_cycles, load_session, write_atomically
from pylucebox.ab.verdict import summarise

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def done() -> Simulated:
    return example_session("faster")


def write(done: Simulated, directory: Path, n_runs: int | None = None) -> DirectoryStore:
    store = DirectoryStore(directory)
    store.write_plan(done.session.plan)
    store.write_json("env.json", dict(done.session.env))
    for record in done.session.runs[:n_runs]:
        store.append(record, done.cycles(record))
    return store


def test_session_is_read_as_it_was_written(done: Simulated, tmp_path: Path) -> None:
    store = write(done, tmp_path)
    assert done.session.summary is not None
    store.write_json("summary.json", done.session.summary.as_dict())
    found = load_session(tmp_path)
    assert found.plan == done.session.plan
    assert found.runs == done.session.runs
    assert found.summary == done.session.summary
    record = next(record for record in found.runs if record.arm == "k3")
    assert load_cycles(tmp_path, record) == done.cycles(record)
    assert summarise(found.plan, found.env, found.runs) == done.session.summary


def test_line_that_was_being_written_is_ignored_and_cut_off(done: Simulated, tmp_path: Path) -> None:
    store = write(done, tmp_path, 3)
    whole = (tmp_path / "runs.jsonl").read_bytes()
    with (tmp_path / "runs.jsonl").open("ab") as file:
        file.write(b'{"index": 3, "phase": "ma')
    assert len(load_session(tmp_path).runs) == 3
    store.drop_torn_line()
    assert (tmp_path / "runs.jsonl").read_bytes() == whole
    store.append(done.session.runs[3], ())
    assert load_session(tmp_path).runs == done.session.runs[:4]


def test_full_disk_leaves_the_runs_before_and_says_so(
    done: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write(done, tmp_path, 2)
    real_write, calls = os.write, []

    def half_then_full(handle: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return real_write(handle, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_then_full)
        with pytest.raises(SessionFileError, match="No space left on device; the runs before this one are kept"):
            store.append(done.session.runs[2], ())
    assert load_session(tmp_path).runs == done.session.runs[:2]
    store.append(done.session.runs[2], ())
    assert load_session(tmp_path).runs == done.session.runs[:3]


def test_replaced_file_is_the_old_one_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, b"old")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(SessionFileError, match=r"summary\.json"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_directory_in_use_is_refused(tmp_path: Path) -> None:
    with (
        DirectoryStore(tmp_path).locked(),
        pytest.raises(ComparisonError, match="in use"),
        DirectoryStore(tmp_path).locked(),
    ):
        pass
    with DirectoryStore(tmp_path).locked():
        pass


def test_equal_texts_are_kept_once(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for _ in range(3):
        store.keep_tokens("ab", (1, 2, 3))
    assert store.tokens("ab") == (1, 2, 3)
    assert store.tokens("cd") is None
    assert len(list((tmp_path / "tokens").iterdir())) == 1
    (tmp_path / "tokens" / "ab.json.gz").write_bytes(b"damaged")
    assert store.tokens("ab") is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plan.json", "{"),
        ("plan.json", "[]"),
        ("plan.json", '{"schema": 99}'),
        ("plan.json", '{"schema": 1}'),
        ("env.json", None),
        ("runs.jsonl", '{"index": 1}\n'),
        ("runs.jsonl", "not json\n"),
    ],
)
def test_files_that_are_no_session_are_named(done: Simulated, tmp_path: Path, name: str, content: str | None) -> None:
    write(done, tmp_path, 1)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(SessionFileError, match="cannot read the session file"):
        load_session(tmp_path)


def test_records_of_a_later_version_with_more_keys_are_read(done: Simulated) -> None:
    record = done.session.runs[0]
    assert RunRecord.from_dict({**record.as_dict(), "new": 1}) == record


SCRIPT = """
import random, sys, time
from pathlib import Path
from pylucebox.ab.planner import Wishes
from pylucebox.ab.runner import Runner
from pylucebox.ab.simulate import *
from pylucebox.ab.store import DirectoryStore, load_session
directory = Path(sys.argv[1])
arms = {"base": Behaviour(), "other": Behaviour(effect=0.1), "third": Behaviour()}
plan = stub_plan(arms, Wishes(n_pairs=3, n_aa=1, seed=4, n_resamples=50), n_workloads=2)
store, clock = DirectoryStore(directory), ScriptedClock()
with store.locked():
    if (directory / "plan.json").exists():
        store.drop_torn_line()
        kept = load_session(directory).runs
    else:
        store.write_plan(plan)
        store.write_json("env.json", {"schema": 1})
        kept = ()
    launcher = StubLauncher(clock, arms, World(), random.Random(1), len(plan.runs), lambda n: time.sleep(0.02))
    Runner(plan, launcher=launcher, store=store, clock=clock, machine=SteadyMachine(), display=SilentDisplay(),
           kept=kept, interim=False).run()
"""


def test_killed_session_goes_on_with_the_same_schedule(tmp_path: Path) -> None:
    script = tmp_path / "session.py"
    script.write_text(
        textwrap.dedent(SCRIPT).replace(
            "simulate import *",
            "simulate import Behaviour, ScriptedClock, SilentDisplay, SteadyMachine, StubLauncher, World, stub_plan",
        ),
        encoding="utf-8",
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(directory: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(directory)], env=environment)

    def schedule(directory: Path) -> list[tuple[int, int, str]]:
        lines = (directory / "runs.jsonl").read_text(encoding="utf-8").splitlines()
        return [(record["index"], record["attempt"], record["arm"]) for record in map(json.loads, lines)]

    assert start(tmp_path / "whole").wait(60) == 0
    killed = tmp_path / "killed"
    for n_runs in (3, 12):
        process = start(killed)
        deadline = time.monotonic() + 60
        while (
            time.monotonic() < deadline
            and len((killed / "runs.jsonl").read_text().splitlines() if (killed / "runs.jsonl").exists() else [])
            < n_runs
        ):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    n_before = len(schedule(killed))
    assert 12 <= n_before < len(schedule(tmp_path / "whole"))
    assert start(killed).wait(60) == 0
    assert schedule(killed) == schedule(tmp_path / "whole")
