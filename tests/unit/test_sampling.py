"""Sampling settings: defaults, ranges, seeds and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from fractions import Fraction
from typing import Any

import pytest

from pylucebox._errors import InvalidArgumentError
from pylucebox._sampling import _RANGES, SAMPLER_NAMES, SamplingParams


def refused(**settings: Any) -> InvalidArgumentError:
    with pytest.raises(InvalidArgumentError) as caught:
        SamplingParams(**settings)
    return caught.value


def test_greedy_has_temperature_zero() -> None:
    assert SamplingParams.greedy().temperature == 0
    assert SamplingParams.greedy().is_greedy
    assert not SamplingParams().is_greedy


@pytest.mark.parametrize("name", [None, "gumbel", "mt19937"])
def test_generators_are_known_by_name(name: str | None) -> None:
    assert SamplingParams(sampler_rng=name).sampler_rng == name


@pytest.mark.parametrize(
    "settings", [{"sampler_rng": "dice"}, {"sampler_rng": "gumbel", "mirostat": 2}, {"sampler_rng": 1}]
)
def test_other_generators_and_those_that_cannot_be_had_are_refused(settings: dict[str, Any]) -> None:
    assert refused(**settings).argument == "sampler_rng"


@pytest.mark.parametrize("name", _RANGES)
def test_ends_of_each_range_are_allowed_and_what_lies_beyond_is_not(name: str) -> None:
    allowed = _RANGES[name]
    step: Any = 1 if allowed.whole else 1e-3
    low: Any = int(allowed.low) if allowed.whole else allowed.low
    high: Any = int(allowed.high) if allowed.whole else allowed.high
    assert getattr(SamplingParams(**{name: high}), name) == high
    assert refused(**{name: high + step}).argument == name
    assert refused(**{name: low - step}).argument == name
    if allowed.above_low:
        assert refused(**{name: low}).argument == name
    else:
        assert getattr(SamplingParams(**{name: low}), name) == low


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -0.1}, {"top_p": 1.01}, {"min_p": -0.01}, {"top_k": -1}, {"penalty_repeat": 0}, {"mirostat": 3}],
)
def test_usual_slips_are_refused(settings: dict[str, Any]) -> None:
    assert refused(**settings).argument in settings


@pytest.mark.parametrize("name", [name for name, allowed in _RANGES.items() if not allowed.whole])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(name: str, value: float) -> None:
    assert refused(**{name: value}).argument == name


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5], 1j])
def test_values_that_are_no_numbers_are_refused(value: object) -> None:
    error = refused(temperature=value)
    assert error.argument == "temperature"
    assert error.value is value


def test_integers_too_large_for_a_float_are_refused() -> None:
    assert refused(temperature=10**400).argument == "temperature"


def test_fractions_of_an_integer_setting_are_refused() -> None:
    assert refused(top_k=40.0).argument == "top_k"


def test_number_types_become_plain_numbers() -> None:
    params = SamplingParams(temperature=Fraction(1, 2), top_p=1)  # type: ignore[arg-type]
    assert type(params.temperature) is float
    assert type(params.top_p) is float


@pytest.mark.parametrize("seed", [0, 2**32 - 2])
def test_seed_given_is_kept(seed: int) -> None:
    params = SamplingParams(seed=seed)
    assert params.with_seed() is params
    assert params.seed == seed


@pytest.mark.parametrize("seed", [-1, 2**32 - 1, 2**32, 1.0, "7", True])
def test_seed_out_of_range_is_refused(seed: object) -> None:
    assert refused(seed=seed).argument == "seed"


def test_missing_seed_is_drawn_anew_for_each_request_and_recorded() -> None:
    params = SamplingParams(temperature=0.7)
    drawn = {params.with_seed().seed for _ in range(20)}
    assert params.seed is None
    assert len(drawn) > 1
    assert None not in drawn
    assert params.with_seed().temperature == 0.7


def test_samplers_are_checked_by_name() -> None:
    assert SamplingParams(samplers=["top_k", "temperature"]).samplers == ("top_k", "temperature")  # type: ignore[arg-type]
    assert SamplingParams(samplers=SAMPLER_NAMES).samplers == SAMPLER_NAMES
    assert "typ_p" in refused(samplers=("top_q",)).allowed


@pytest.mark.parametrize("samplers", [(), ("top_k", "top_k"), "top_k", ("top_k", 3), 5])
def test_sampler_orders_that_make_no_sense_are_refused(samplers: object) -> None:
    assert refused(samplers=samplers).argument == "samplers"


def test_logit_bias_may_ban_a_token_but_not_force_one_with_infinity() -> None:
    assert SamplingParams(logit_bias={5: -math.inf, 7: 2}).logit_bias == {5: -math.inf, 7: 2.0}
    for bias in (math.inf, math.nan, "1"):
        assert refused(logit_bias={5: bias}).argument.startswith("logit_bias")
    for token in (-1, 1.5, "5", 2**31):
        assert refused(logit_bias={token: 1.0}).argument.startswith("logit_bias")
    assert refused(logit_bias=[(1, 2)]).argument == "logit_bias"


def test_later_changes_of_the_callers_mapping_have_no_effect() -> None:
    biases = {1: 1.0}
    params = SamplingParams(logit_bias=biases)
    biases[2] = 2.0
    assert params.logit_bias == {1: 1.0}


def test_schema_as_mapping_becomes_text() -> None:
    schema = {"type": "object", "properties": {"ä": {"type": "integer"}}}
    params = SamplingParams(json_schema=schema)
    assert isinstance(params.json_schema, str)
    assert json.loads(params.json_schema) == schema
    assert SamplingParams(json_schema=params.json_schema) == params


@pytest.mark.parametrize("schema", ["", "{", "[1]", "3", {"a": {1, 2}}, {"a": math.nan}, 7])
def test_schema_that_is_no_json_object_is_refused(schema: object) -> None:
    assert refused(json_schema=schema).argument == "json_schema"


def test_schema_that_contains_itself_is_refused() -> None:
    schema: dict[str, Any] = {}
    schema["again"] = schema
    assert refused(json_schema=schema).argument == "json_schema"


def test_grammar_and_schema_exclude_each_other() -> None:
    assert refused(grammar='root ::= "a"', json_schema={"type": "object"}).argument == "json_schema"


@pytest.mark.parametrize("grammar", ["", "a\0b", 5])
def test_grammar_that_c_cannot_take_is_refused(grammar: object) -> None:
    assert refused(grammar=grammar).argument == "grammar"


def test_positional_arguments_are_refused() -> None:
    with pytest.raises(TypeError):
        SamplingParams(0.5)  # type: ignore[call-arg]


def test_instances_are_frozen_hashable_and_can_be_copied() -> None:
    params = SamplingParams(logit_bias={1: 1.0}, seed=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.seed = 4  # type: ignore[misc]
    for copied in (pickle.loads(pickle.dumps(params)), copy.deepcopy(params), dataclasses.replace(params)):
        assert copied == params
        assert hash(copied) == hash(params)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("grammar", 'root ::= "\ud800"'),
        ("json_schema", '{"const": "\ud800"}'),
        ("json_schema", {"const": "\ud800"}),
        ("dry_sequence_breakers", ["\ud800"]),
    ],
)
def test_text_with_lone_surrogates_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        SamplingParams(**{argument: value})
    assert caught.value.argument == argument


def test_bias_must_leave_a_token_to_draw() -> None:
    SamplingParams(logit_bias={0: -math.inf, 1: -5.0, 2: -math.inf}).require_drawable(3)
    all_banned = SamplingParams(logit_bias=dict.fromkeys(range(3), -math.inf))
    all_banned.require_drawable(4)
    with pytest.raises(InvalidArgumentError) as caught:
        all_banned.require_drawable(3)
    assert caught.value.argument == "logit_bias"
