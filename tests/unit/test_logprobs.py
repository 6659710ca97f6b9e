"""Log-probabilities against the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pylucebox._logprobs import token_logprobs


def name(token: int) -> bytes:
    return b"t%d" % token


def test_probabilities_sum_to_one_and_are_those_of_the_softmax() -> None:
    logits = np.array([0.0, math.log(2), math.log(5)], dtype=np.float32)
    found = token_logprobs(logits, 1, 3, name)
    assert math.exp(found.logprob) == pytest.approx(2 / 8)
    assert [entry.token_id for entry in found.top] == [2, 1, 0]
    assert sum(math.exp(entry.logprob) for entry in found.top) == pytest.approx(1)
    assert found.token_bytes == b"t1"


def test_large_logits_do_not_overflow() -> None:
    found = token_logprobs(np.array([1e30, 0, -1e30], dtype=np.float32), 0, 1, name)
    assert found.logprob == 0
    assert found.top[0].token_id == 0


def test_banned_token_has_probability_zero() -> None:
    found = token_logprobs(np.array([0, -np.inf], dtype=np.float32), 1, 2, name)
    assert found.logprob == -math.inf
    assert [entry.token_id for entry in found.top] == [0, 1]


def test_ties_come_by_rising_id_also_at_the_edge() -> None:
    logits = np.zeros(50, dtype=np.float32)
    logits[30] = 1
    found = token_logprobs(logits, 5, 4, name)
    assert [entry.token_id for entry in found.top] == [30, 0, 1, 2]


def test_more_entries_than_tokens_give_all_tokens() -> None:
    assert len(token_logprobs(np.zeros(3, dtype=np.float32), 0, 20, name).top) == 3


def test_no_entries_are_listed_when_none_are_wanted() -> None:
    assert token_logprobs(np.zeros(3, dtype=np.float32), 0, 0, name).top == ()
