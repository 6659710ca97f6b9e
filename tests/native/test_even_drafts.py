"""Sequences that share a cycle verify the same number of drafts, so that the model runs once for all."""

from __future__ import annotations

import pytest

from pylucebox import Engine
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask, CycleTimes, SeqCycle

PROMPTS = ["def add(a, b):", "one two three four", "a b a b a b"]


def cycles(engine: Engine, widths: tuple[int, ...], n_cycles: int = 6) -> list[tuple[list[SeqCycle], CycleTimes]]:
    """Run cycles with a width for each sequence."""
    session = engine._session
    for seq in range(len(widths)):
        session.clear(seq)
        sampler = session.open_sampler(SamplingParams(temperature=0.0, seed=0, ignore_eos=True), None)
        session.prefill(seq, engine.tokenize(PROMPTS[seq]), sampler, use_mtp=True)
    return [session.cycle([Ask(seq, width, 8) for seq, width in enumerate(widths)]) for _ in range(n_cycles)]


def tokens(done: list[tuple[list[SeqCycle], CycleTimes]], seq: int) -> list[int]:
    return [token for results, _ in done for token in results[seq].tokens]


@pytest.mark.parametrize(
    ("widths", "even", "uneven"),
    [
        # drafts of 2, 2 and 1: three sequences have room for two rows each
        ((3, 3, 2), [2, 2, 2], [3, 3, 2]),
        # the unsure one is padded to the longest run of the others
        ((1, 3), [3, 3], [1, 3]),
        ((8, 2), [4, 4], [6, 2]),
        ((1, 1, 1), [1, 1, 1], [1, 1, 1]),
        ((8,), [8], [8]),
    ],
)
def test_passes_of_a_cycle(widths: tuple[int, ...], even: list[int], uneven: list[int]) -> None:
    found = {}
    for even_drafts, wanted in ((True, even), (False, uneven)):
        with Engine.demo(n_seq=3, n_ctx=256, even_drafts=even_drafts) as engine:
            found[even_drafts] = cycles(engine, widths)
        for results, times in found[even_drafts]:
            assert [result.n_verified + 1 for result in results] == wanted
            assert times.n_rows == sum(wanted)
            assert (times.n_passes == 1) == (len(set(wanted)) == 1)
    for seq in range(len(widths)):
        n = min(len(tokens(found[True], seq)), len(tokens(found[False], seq)))
        assert tokens(found[True], seq)[:n] == tokens(found[False], seq)[:n]


def test_sequence_near_its_end_cuts_all() -> None:
    with Engine.demo(n_seq=2, n_ctx=256) as engine:
        cycles(engine, (3, 3), 1)
        results, times = engine._session.cycle([Ask(0, 4, 8), Ask(1, 4, 2)])
    assert [result.n_verified + 1 for result in results] == [2, 2]
    assert times.n_passes == 1


def test_variable_of_another_fork_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIX_SPEC_EVEN_DRAFTS", "0")
    with Engine.demo(n_seq=3, n_ctx=256) as engine:
        assert all(times.n_passes > 1 for _, times in cycles(engine, (3, 3, 2)))
