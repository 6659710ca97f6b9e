"""Arms as users write them."""

from __future__ import annotations

import pytest

from pylucebox._errors import InvalidArgumentError
from pylucebox.ab.arms import NAMED, parse_arm, parse_names, sentinel_arm
from pylucebox.ab.records import Arm

COMMON = {"n_threads": 1}


def test_named_settings_are_those_of_the_engine() -> None:
    off, k3, adaptive = parse_names("off, k3,adaptive", COMMON)
    assert off.options == {"n_threads": 1, "mtp": "off", "verify_width": 1}
    assert k3.options == {"n_threads": 1, "verify_width": 4, "spec": "require"}
    assert adaptive.options["verify_width"] == 0
    assert (off.widths, k3.widths, adaptive.widths) == ((1,), (4,), tuple(range(1, 9)))
    assert [arm.label for arm in (off, k3, adaptive)] == [
        "engine, MTP off",
        "engine, 3 drafts",
        "engine, adaptive width",
    ]
    assert len(parse_names(",".join(NAMED), COMMON)) == 9


def test_flags_of_an_arm_come_before_the_common_ones() -> None:
    arm = parse_arm("wide=k7 --threads 4 --flash-attn off --env GGML_X=a=b --site '/a b' --python py", COMMON)
    assert arm.name == "wide"
    assert arm.options == {"n_threads": 4, "verify_width": 8, "spec": "require", "flash_attn": False}
    assert (arm.env, arm.site, arm.python) == ({"GGML_X": "a=b"}, "/a b", "py")
    assert arm.label == "engine, 7 drafts; GGML_X=a=b; second build"


def test_servers_by_command_and_by_url() -> None:
    arm = parse_arm("up=server --env A=1 --api-model m llama-server -m {model} --port {port} --env x", COMMON)
    assert arm.command == ("llama-server", "-m", "{model}", "--port", "{port}", "--env", "x")
    assert (arm.kind, arm.env, arm.api_model) == ("server", {"A": "1"}, "m")
    arm = parse_arm("there=url http://127.0.0.1:1234/v1 --api-model m", COMMON)
    assert (arm.kind, arm.url, arm.api_model) == ("url", "http://127.0.0.1:1234/v1", "m")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "k3",
        "=k3",
        "x=",
        "x=k9",
        "x=k3 --nonsense",
        "x=k3 --threads many",
        "x=k3 --flash-attn maybe",
        "x=k3 --env A",
        "x=k3 'unclosed",
        "a b=k3",
        "../x=k3",
        "x=server",
        "x=server --env",
        "x=server --env A cmd {port}",
        "x=server llama-server --port 80",
        "x=url",
    ],
)
def test_what_is_no_arm_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_arm(text, COMMON)
    assert caught.value.argument in ("arm", "arms")
    assert caught.value.allowed


def test_same_setting_under_two_names_is_recognised() -> None:
    first, second = parse_arm("a=k3", COMMON), parse_arm("b=k3", COMMON)
    assert first.same_setting(second)
    assert not first.same_setting(parse_arm("b=k2", COMMON))


def test_sentinel_is_an_engine_without_drafts_where_an_engine_takes_part() -> None:
    there = Arm(name="there", kind="url", url="http://x")
    assert sentinel_arm([there, parse_arm("b=k3", COMMON)], COMMON).widths == (1,)
    assert sentinel_arm([there], COMMON).url == "http://x"
