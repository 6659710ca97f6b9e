"""Requests are refused in full before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from pylucebox._errors import ContextFullError, InvalidArgumentError
from pylucebox._request import RequestRules, check_bool, check_ids, check_prompts, settings_per_prompt
from pylucebox._sampling import SamplingParams
from pylucebox._spec import spec_active

RULES = RequestRules(n_ctx=8, verify_width=3, max_width=4, spec=spec_active("test"))
VALID: dict[str, Any] = {
    "prompt": [1, 2],
    "max_tokens": 4,
    "stop": (),
    "sampling": None,
    "logprobs": None,
    "verify_width": None,
}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("prompt", []),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 2**31),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("stop", ["x", ""]),
        ("stop", 7),
        ("sampling", {"temperature": 0}),
        ("logprobs", -1),
        ("logprobs", 101),
        ("verify_width", -1),
        ("verify_width", 5),
        ("verify_width", 9),
        ("verify_width", "2"),
    ],
)
def test_bad_argument_is_named_with_its_value(argument: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        RULES.request(**{**VALID, argument: value})
    assert caught.value.argument == argument
    assert caught.value.allowed


def test_prompt_longer_than_the_context_tells_both_sizes() -> None:
    with pytest.raises(ContextFullError) as caught:
        RULES.request(**{**VALID, "prompt": [1] * 9})
    assert (caught.value.n_ctx, caught.value.n_needed) == (8, 9)


def test_prompt_of_the_size_of_the_context_is_accepted() -> None:
    assert len(RULES.request(**{**VALID, "prompt": [1] * 8}).prompt) == 8


@pytest.mark.parametrize(("asked", "given"), [(None, 3), (0, 0), (1, 1), (2, 2), (4, 4)])
def test_width_of_the_request_overrides_that_of_the_engine(asked: int | None, given: int) -> None:
    request = RULES.request(**{**VALID, "verify_width": asked})
    assert request.verify_width == given
    assert request.use_mtp is (given != 1)


def test_no_settings_mean_greedy() -> None:
    request = RULES.request(**VALID)
    assert request.sampling.is_greedy
    assert request.seed is None


def test_settings_given_once_hold_for_all_prompts() -> None:
    params = SamplingParams(seed=1)
    assert list(settings_per_prompt(params, 3)) == [params] * 3
    assert list(settings_per_prompt(None, 2)) == [None, None]
    assert settings_per_prompt([params, None], 2) == [params, None]


@pytest.mark.parametrize("value", [[None], [None] * 3, "greedy", 4])
def test_settings_that_do_not_match_the_prompts_are_refused(value: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        settings_per_prompt(value, 2)
    assert caught.value.argument == "sampling"


@pytest.mark.parametrize("prompts", [None, 5, "one", b"one", {"a": 1}, {"a", "b"}])
def test_what_is_no_batch_of_prompts_is_refused(prompts: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_prompts(prompts)
    assert (caught.value.argument, caught.value.value) == ("prompts", prompts)


def test_prompts_may_come_from_a_generator() -> None:
    assert check_prompts(text for text in ("a", "b")) == ["a", "b"]


@pytest.mark.parametrize("ids", [{1: 2}, {1, 2}, memoryview(b"ab"), b"ab", bytearray(b"ab"), "ab", "", None, 1, [1.0]])
def test_token_ids_that_are_no_sequence_of_integers_are_refused(ids: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_ids("prompt", ids, 100)
    assert caught.value.argument == "prompt"


@pytest.mark.parametrize("wrong", [-1, 100])
def test_token_id_outside_the_vocabulary_is_shown(wrong: int) -> None:
    assert check_ids("prompt", (0, 99), 100) == [0, 99]
    with pytest.raises(InvalidArgumentError) as caught:
        check_ids("prompt", [1, wrong], 100)
    assert caught.value.value == wrong


@pytest.mark.parametrize("value", [5, 1, None, "yes"])
def test_flag_is_true_or_false(value: object) -> None:
    check_bool("add_special", value=True)
    with pytest.raises(InvalidArgumentError) as caught:
        check_bool("add_special", value)
    assert (caught.value.argument, caught.value.value) == ("add_special", value)
