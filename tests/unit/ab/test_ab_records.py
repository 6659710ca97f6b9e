"""Records on paper: what is written can be read, and derived figures are right."""

from __future__ import annotations

import hashlib
import json
import math

import pytest

from pylucebox._result import token_digest
from pylucebox.ab.codec import canonical, sha256_of
from pylucebox.ab.figures import block_ratios, figures_of
from pylucebox.ab.outcome import (
    Outcome,
    RawSequence,
    decode_speeds,
    first_difference,
    prefix_hashes,
    sequence_record,
    token_hash,
)
from pylucebox.ab.records import Arm, CycleRecord, Request, RunRecord, SequenceRecord, Workload
from pylucebox.ab.results import Row
from pylucebox.ab.validity import check_clocks, check_outcome, same_text


def raw(n_tokens: int, *, token_ms: float = 10.0, begin_ms: float = 0.0, **settings: object) -> RawSequence:
    arrivals = tuple((n + 1, 50.0 + token_ms * n) for n in range(n_tokens))
    values = {
        "n_prompt": 8,
        "n_tokens": n_tokens,
        "finish_reason": "length",
        "text": "x" * n_tokens,
        "token_ids": tuple(range(n_tokens)),
        "ttft_ms": 50.0,
        "arrivals": arrivals,
        "begin_ms": begin_ms,
        **settings,
    }
    return RawSequence(**values)  # type: ignore[arg-type]


def test_nested_records_survive_json() -> None:
    request = Request(prompt="ä\ud800", max_tokens=3, stop=("a", "b"), top_k=4)
    workload = Workload(
        name="w", kind="k", title="t", requests=(request, request), warmup=request, control=None, n_seq=2
    )
    assert Workload.from_dict(json.loads(canonical(workload))) == workload
    assert Workload.from_dict({**workload.as_dict(), "later": 1}) == workload


def test_unknown_numbers_are_null_and_never_nan() -> None:
    row = Row(workload="w", arm="a", verdict="INVALID", reason="r", identity="i", ratio=math.nan, low=math.inf)
    assert row.as_dict()["ratio"] is None
    assert Row.from_dict(row.as_dict()).low is None


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"prompt": None}, "Request.prompt"),
        ({"max_tokens": "3"}, "Request.max_tokens"),
        ({"max_tokens": True}, "Request.max_tokens"),
        ({"stop": "abc"}, "Request.stop"),
        ({"temperature": "hot"}, "Request.temperature"),
    ],
)
def test_values_of_the_wrong_kind_are_named(change: dict[str, object], seen: str) -> None:
    good = Request(prompt="p", max_tokens=1).as_dict()
    with pytest.raises(ValueError, match=seen):
        Request.from_dict({**good, **change})


def test_missing_key_is_named() -> None:
    with pytest.raises(ValueError, match="'max_tokens' is missing"):
        Request.from_dict({"prompt": "p"})


def test_hash_depends_on_content_and_not_on_key_order() -> None:
    assert sha256_of({"a": 1, "b": [1.5, None]}) == sha256_of({"b": [1.5, None], "a": 1})
    assert sha256_of({"a": 1}) != sha256_of({"a": 2})


def test_token_hash_is_the_digest_of_the_package() -> None:
    ids = [0, 1, 4095, 2**31 - 1]
    assert token_hash(ids) == token_digest(ids)


def test_prefix_hashes_are_hashes_of_prefixes() -> None:
    ids = list(range(150))
    assert prefix_hashes(ids) == (token_digest(ids[:64])[:16], token_digest(ids[:128])[:16])
    assert prefix_hashes(ids[:63]) == ()


@pytest.mark.parametrize(
    ("a", "b", "at"),
    [("", "", None), ("abc", "abc", None), ("abc", "abd", 2), ("ab", "abc", 2), ("", "a", 0), ("xbc", "abc", 0)],
)
def test_first_difference(a: str, b: str, at: int | None) -> None:
    assert first_difference(list(map(ord, a)), list(map(ord, b))) == at


def test_block_times_are_interpolated_within_a_delivery() -> None:
    bursts = ((1, 50.0), (61, 650.0), (69, 730.0), (128, 1320.0))
    record = sequence_record(raw(128, arrivals=bursts))
    assert record.block_ms == (630.0, 1270.0)
    assert record.decode_client_ms == 1270.0
    assert record.text_sha256 == hashlib.sha256(b"x" * 128).hexdigest()


def test_block_times_are_left_out_where_tokens_have_no_times_of_their_own() -> None:
    assert sequence_record(raw(384, arrivals=((1, 50.0), (384, 4000.0)))).block_ms == ()


def test_speed_of_one_sequence_leaves_out_the_first_token() -> None:
    engine, client = decode_speeds([raw(11, decode_ms=80.0)])
    assert engine == pytest.approx(125.0)
    assert client == pytest.approx(100.0)
    assert decode_speeds([raw(11)])[0] is None
    assert decode_speeds([raw(1)]) == (None, None)
    assert decode_speeds([]) == (None, None)


def test_speed_of_several_counts_the_time_in_which_all_are_active() -> None:
    first, second = raw(101), raw(51, begin_ms=300.0)
    _, client = decode_speeds([first, second])
    assert client == pytest.approx(200.0, rel=0.03)
    apart = [raw(11), raw(11, begin_ms=1000.0)]
    assert decode_speeds(apart)[1] == pytest.approx(1000.0 * 21 / 1100.0, rel=0.1)


def cycle(width: int, n_tokens: int) -> CycleRecord:
    return CycleRecord(
        t_ms=0.0, seq=0, width=width, n_drafted=width - 1, n_accepted=n_tokens - 1, n_tokens=n_tokens, draft_us=0,
        verify_us=0, rollback_us=0, built=False,
    )  # fmt: skip


ARM = Arm(name="k3", kind="engine", widths=(4,))


def codes(outcome: Outcome, n_tokens: int = 10) -> list[str]:
    return [issue.code for issue in check_outcome(ARM, [Request(prompt="p", max_tokens=n_tokens)], outcome)]


def test_last_cycles_may_be_narrower_because_no_more_tokens_are_wanted() -> None:
    cycles = (cycle(4, 4), cycle(4, 3), cycle(2, 1), cycle(1, 1))
    assert codes(Outcome(sequences=(raw(10),), cycles=cycles)) == []


@pytest.mark.parametrize("cycles", [(cycle(5, 5),), (cycle(1, 1),), (cycle(4, 4), cycle(4, 2), cycle(2, 1))])
def test_width_that_is_not_the_arms_is_found(cycles: tuple[CycleRecord, ...]) -> None:
    assert codes(Outcome(sequences=(raw(10),), cycles=cycles)) == ["wrong_width"]


def test_rules_for_an_answer() -> None:
    assert codes(Outcome(sequences=(raw(10, n_cached=3),))) == ["cached_prompt"]
    assert codes(Outcome(sequences=(raw(10, n_cached=0),))) == []
    assert codes(Outcome(sequences=(raw(10, finish_reason="cancelled"),))) == ["unfinished"]
    assert codes(Outcome(sequences=(raw(1, finish_reason="stop"),))) == ["too_short"]
    assert codes(Outcome(sequences=(raw(1),)), n_tokens=1) == []
    assert codes(Outcome(sequences=(raw(10, decode_ms=500.0),))) == ["clock_contradiction"]


def test_clocks_may_disagree_by_little() -> None:
    assert check_clocks(10.05, 10.0) == []
    assert [issue.code for issue in check_clocks(3610.0, 10.0)] == ["clock_jump"]
    assert [issue.code for issue in check_clocks(-3590.0, 10.0)] == ["clock_jump"]


def run(arm: str, block: int, sequence: SequenceRecord, **settings: object) -> RunRecord:
    values: dict[str, object] = {
        "phase": "main",
        "workload": "w",
        "position": 0,
        "side": 0,
        "started_utc": "",
        "wall_s": 1.0,
    }
    return RunRecord(index=block, arm=arm, block=block, sequences=(sequence,), **{**values, **settings})  # type: ignore[arg-type]


def test_tokens_decide_on_identity_where_both_tell_them_and_the_text_elsewhere() -> None:
    told, other = sequence_record(raw(4)), sequence_record(raw(4, token_ids=(9, 9, 9, 9)))
    untold = sequence_record(raw(4, token_ids=None))
    assert not same_text(run("a", 0, told), run("b", 0, other))
    assert same_text(run("a", 0, told), run("b", 0, untold))
    assert not same_text(run("a", 0, told), run("b", 0, sequence_record(raw(5, token_ids=None))))


def test_figures_of_an_arm() -> None:
    spec = {
        "cycles": 4, "num_draft_tokens": 12, "num_accepted_tokens": 6,
        "num_draft_tokens_per_pos": [4, 4, 4, 0, 0, 0, 0], "num_accepted_tokens_per_pos": [4, 2, 0, 0, 0, 0, 0],
    }  # fmt: skip
    speeds = [100.0, 104.0, 90.0, 130.0]
    runs = [
        run("k3", block, sequence_record(raw(11)), decode_tok_s=speed, spec=spec, widths={"4": 4}, ttft_ms=5.0)
        for block, speed in enumerate(speeds)
    ]
    figures = figures_of("k3", "w", runs)
    assert (figures.n_valid, figures.median_tok_s, figures.min_tok_s, figures.max_tok_s) == (4, 102.0, 90.0, 130.0)
    assert figures.median3_tok_s == 100.0
    assert figures.tokens_per_cycle == 2.5
    assert figures.survival[:4] == (1.0, 0.5, 0.0, None)
    assert figures.conditional[:4] == (1.0, 0.5, 0.0, None)
    assert figures.width_histogram == {"4": 16}
    assert figures_of("none", "w", runs).median_tok_s is None


def test_blocks_are_compared_where_both_have_them() -> None:
    base = run("a", 0, sequence_record(raw(200, token_ms=10.0)))
    test = run("b", 0, sequence_record(raw(130, token_ms=5.0)))
    assert block_ratios([(base, test)]) == pytest.approx((2.0, 2.0))
    assert block_ratios([]) == ()
