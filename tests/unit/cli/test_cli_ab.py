"""The flags of `lucebox ab`, before anything is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pylucebox.ab.workloads import SUITES
from pylucebox.cli import _ab_args
from pylucebox.cli.main import build_parser

Lucebox = Callable[..., int]


def test_suites_of_the_help_are_those_that_exist() -> None:
    assert _ab_args.SUITES == SUITES


def asked(*arguments: str) -> object:
    return _ab_args.asked(build_parser().parse_args(["ab", *arguments]))


def test_default_is_the_quick_comparison_of_three_arms() -> None:
    found = asked()
    assert [arm.name for arm in found.arms] == ["off", "k3", "adaptive"]  # type: ignore[attr-defined]
    assert found.suite == "quick"  # type: ignore[attr-defined]
    assert all(arm.options["n_threads"] == 1 for arm in found.arms)  # type: ignore[attr-defined]


def test_arms_of_both_flags_are_taken_in_order_and_share_the_common_settings() -> None:
    found = asked(
        "--arms", "off,k3", "--arm", "x=k7 --threads 2", "--device", "cpu", "--workload", "a,b", "--workload", "c"
    )
    assert [arm.name for arm in found.arms] == ["off", "k3", "x"]  # type: ignore[attr-defined]
    assert [arm.options["n_threads"] for arm in found.arms] == [1, 1, 2]  # type: ignore[attr-defined]
    assert {arm.options["device"] for arm in found.arms} == {"cpu"}  # type: ignore[attr-defined]
    assert found.only == ("a", "b", "c")  # type: ignore[attr-defined]


def test_design_flags_reach_the_plan() -> None:
    wishes = asked(  # type: ignore[attr-defined]
        *(
            "--detect",
            "1.5%",
            "--aa",
            "3",
            "--order",
            "random",
            "--isolation",
            "request",
            "--seed",
            "9",
            "--equiv",
            "2",
        ),
        *("--sentinel", "every:5", "--cooldown", "temp:+2C", "--max-hours", "0.5", "--no-digest-control"),
    ).wishes
    assert (wishes.detect, wishes.n_aa, wishes.order, wishes.isolation) == (0.015, 3, "random", "request")
    assert (wishes.seed, wishes.equivalence, wishes.sentinel_every) == (9, 0.02, 5)
    assert (wishes.cooldown, wishes.max_hours, wishes.control, wishes.n_pairs) == ("temp:+2C", 0.5, False, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--arms", "off"),
        ("--arms", "off,k8"),
        ("--arm", "nonsense"),
        ("--pairs", "0"),
        ("--pairs", "8", "--detect", "1%"),
        ("--detect", "0"),
        ("--equiv", "x"),
        ("--sentinel", "every:0"),
        ("--cooldown", "temp:2"),
        ("--suite", "none"),
        ("--resume", "a", "--out", "b"),
        ("--series", "cmd"),
        ("--series", "cmd", "--arms", "off,k3"),
        ("compare", "one"),
    ],
)
def test_what_cannot_be_asked_for_is_wrong_usage(lucebox: Lucebox, arguments: tuple[str, ...]) -> None:
    assert lucebox("ab", *arguments) == 2


@pytest.mark.parametrize("action", [("compare", "OLD", "NEW"), ("report", "OLD"), ("--resume", "OLD")])
def test_directory_without_a_session_is_an_error_document(
    lucebox: Lucebox, capsys: pytest.CaptureFixture[str], tmp_path: Path, action: tuple[str, ...]
) -> None:
    arguments = [str(tmp_path / word) if word.isupper() else word for word in action]
    assert lucebox("ab", *arguments, "--json") == 1
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "SessionFileError"
    assert list(tmp_path.iterdir()) == []
