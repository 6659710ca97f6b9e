"""Results: the token digest and what goes to JSON."""

from __future__ import annotations

import hashlib
import json
import math
import struct

import pytest

from pylucebox._result import ChatCompletion, Completion, CycleInfo, Step, TokenLogprob, token_digest
from pylucebox._spec import spec_active
from pylucebox._stats import RequestStats


def completion(token_ids: tuple[int, ...] = (1, 2, 3)) -> Completion:
    return Completion(
        text="abc",
        token_ids=token_ids,
        finish_reason="stop",
        stop_sequence="\n",
        prompt_tokens=4,
        logprobs=None,
        stats=RequestStats(),
        spec=spec_active("in use"),
    )


def test_digest_is_sha256_of_little_endian_int32() -> None:
    ids = [0, 1, 248_319, 2**31 - 1]
    assert token_digest(ids) == hashlib.sha256(struct.pack("<4i", *ids)).hexdigest()
    assert completion().digest == token_digest((1, 2, 3))


def test_digest_depends_on_order_and_count() -> None:
    assert len({token_digest(ids) for ids in ([], [0], [0, 0], [1, 2], [2, 1])}) == 5


def test_digest_refuses_what_is_no_token() -> None:
    with pytest.raises(OverflowError):
        token_digest([2**31])


def test_logprob_entry_keeps_bytes_that_are_no_text() -> None:
    entry = TokenLogprob(token_id=7, token_bytes=b"\xf0\x9f", logprob=-0.5)
    assert entry.as_dict() == {
        "token_id": 7,
        "token": entry.text,
        "bytes": [0xF0, 0x9F],
        "logprob": -0.5,
        "top": [],
    }
    assert "\ufffd" in entry.text


def test_probability_of_zero_is_null_in_json() -> None:
    banned = TokenLogprob(token_id=1, token_bytes=b"x", logprob=-math.inf)
    entry = TokenLogprob(token_id=7, token_bytes=b"a", logprob=0.0, top=(banned,))
    text = json.dumps(entry.as_dict(), allow_nan=False)
    assert json.loads(text)["top"][0]["logprob"] is None


def test_step_with_cycle_goes_to_json() -> None:
    cycle = CycleInfo(
        width=4,
        n_drafted=3,
        n_verified=3,
        n_accepted=1,
        draft_probs=(0.9, 0.5, 0.1),
        draft_us=10,
        verify_us=20,
        sample_us=1,
        rollback_us=2,
        n_rows=4,
        graph_built=False,
    )
    step = Step(text="ab", token_ids=(5, 6), from_draft=(True, False), cycle=cycle)
    out = json.loads(json.dumps(step.as_dict()))
    assert out["cycle"]["draft_probs"] == [0.9, 0.5, 0.1]
    assert out["cycle"]["width"] == 4
    assert out["from_draft"] == [True, False]
    assert out["logprobs"] is None
    assert out["finish_reason"] is None


def test_completion_goes_to_json_with_digest_statistics_and_state() -> None:
    out = json.loads(json.dumps(completion().as_dict()))
    assert out["digest"] == token_digest((1, 2, 3))
    assert out["stop_sequence"] == "\n"
    assert out["stats"]["num_drafts"] == 0
    assert out["spec"]["reason_code"] == "active"


def test_chat_completion_is_a_completion_with_a_message() -> None:
    plain = completion()
    fields = {name: getattr(plain, name) for name in Completion.__slots__}
    chat = ChatCompletion(**fields, message={"role": "assistant", "content": "abc"})
    assert isinstance(chat, Completion)
    assert chat.as_dict() == {"message": chat.message, **plain.as_dict()}
