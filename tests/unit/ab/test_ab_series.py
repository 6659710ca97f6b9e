"""A series of patches: builds from a command, one session per patch, figures beside those of the headers."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pylucebox.ab.arms import named_arm
from pylucebox.ab.errors import ComparisonError
from pylucebox.ab.planner import Wishes
from pylucebox.ab.series import PrefixBuild, find_builds, measure_series, series_rows
from pylucebox.ab.session import Asked
from pylucebox.ab.simulate import Behaviour, simulate
from pylucebox.ab.store import DirectoryStore, Session

LINES = [
    {"prefix": "base", "site": "/builds/0"},
    {"prefix": "0001-quicker", "site": "/builds/1", "claim": "+10 %"},
    {"prefix": "0002-nothing", "site": "/builds/2"},
]
EFFECTS = {"/builds/1": 0.1, "/builds/2": 0.0}


def builder(*lines: object, status: int = 0) -> list[str]:
    """Return a command that prints lines, as the one that builds prefixes does."""
    text = "".join(json.dumps(line) + "\n" if not isinstance(line, str) else line + "\n" for line in lines)
    return [sys.executable, "-c", f"import sys; sys.stdout.write({text!r}); sys.exit({status})"]


def asked() -> Asked:
    return Asked(
        arms=(named_arm("k3", "k3", {"n_threads": 1}),),
        baseline=None,
        wishes=Wishes(),
        suite="quick",
        only=(),
        model=None,
        sidecar=None,
        n_ctx=None,
        common={},
        command=(),
    )


def test_builds_are_those_that_the_command_names() -> None:
    builds = find_builds(builder(*LINES))
    assert [build.prefix for build in builds] == ["base", "0001-quicker", "0002-nothing"]
    assert builds[1].claim == "+10 %"


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        (builder(*LINES, status=1), "status 1"),
        (builder(LINES[0]), "two or more|Two or more"),
        (builder(LINES[0], LINES[0]), "different names"),
        (builder(LINES[0], {"prefix": "x"}), "neither site nor python"),
        (builder("compiling..."), "compiling"),
        (["/nonexistent/builder"], "No such file"),
    ],
)
def test_commands_that_build_nothing_usable_are_named(command: list[str], seen: str) -> None:
    with pytest.raises(ComparisonError, match=seen):
        find_builds(command)


def test_each_patch_is_compared_with_the_prefix_before_and_complete_ones_are_kept(tmp_path: Path) -> None:
    ran: list[tuple[str, str | None, str | None]] = []

    def run(one: Asked, place: Path) -> Session:
        without, with_patch = one.arms
        ran.append((place.name, without.site, with_patch.site))
        assert without.options == with_patch.options == asked().arms[0].options
        effect = EFFECTS[str(with_patch.site)]
        session = simulate({"without": Behaviour(), "with": Behaviour(effect=effect)}, seed=1).session
        assert session.summary is not None
        store = DirectoryStore(place)
        store.write_plan(session.plan)
        store.write_json("env.json", dict(session.env))
        store.write_json("summary.json", session.summary.as_dict())
        return session

    builds = [PrefixBuild.from_dict(line) for line in LINES]
    said: list[str] = []
    results = measure_series(asked(), builds, tmp_path, run, said.append)
    assert ran == [("01-0001-quicker", "/builds/0", "/builds/1"), ("02-0002-nothing", "/builds/1", "/builds/2")]
    assert [result.verdict for result in results] == ["FASTER", "EQUIVALENT"]
    assert results[0].ratio == pytest.approx(1.1, abs=0.01)
    assert [row[-1] for row in series_rows(results)] == ["+10 %", "-"]
    written = json.loads((tmp_path / "series.json").read_text(encoding="utf-8"))
    assert [patch["patch"] for patch in written["patches"]] == ["0001-quicker", "0002-nothing"]
    assert said == ["patch 1 of 2: 0001-quicker", "patch 2 of 2: 0002-nothing"]

    assert measure_series(asked(), builds, tmp_path, run, said.append) == results
    assert len(ran) == 2


def test_series_needs_one_setting_of_the_engine(tmp_path: Path) -> None:
    two = replace(asked(), arms=asked().arms * 2)
    with pytest.raises(ComparisonError, match="one setting"):
        measure_series(two, [PrefixBuild(prefix="a"), PrefixBuild(prefix="b")], tmp_path, lambda *_: None, print)  # type: ignore[arg-type,return-value]
