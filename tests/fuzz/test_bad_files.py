"""Damaged model files give an error with file and cause, or load: never an abort, a hang or all of the memory.

The same 2,000 cases go through the Python reader, in this process, and through the engine, in one that may die. A case
that fails is named by its number, which makes it again.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from _mutations import N_CASES, Case, Damage, Sample, damaged
from _opener import Opener

from pylucebox import LibraryNotFoundError
from pylucebox._build import find_native_dir
from pylucebox._errors import LoadError
from pylucebox._sidecar import find_sidecar

# Of processor time. A file is read in milliseconds; this leaves room for a slow machine, none for a walk over a count
# that somebody made up.
SECONDS = 5.0
# What a header in order takes is below 2 MB, and the budget of the reader is 64.
MEMORY_BYTES = 128 << 20

DEFAULT_STRIDE = 16


def is_built() -> bool:
    try:
        find_native_dir()
    except LibraryNotFoundError:
        return False
    return True


native = pytest.mark.skipif(not is_built(), reason="the native library is not built")


def test_models_in_order_are_read_and_draft(home: Path, samples: dict[str, Sample]) -> None:
    for name, sample in samples.items():
        verdict = find_sidecar(home / name / sample.opened)
        assert verdict.accepted, f"{name}: {verdict.reason}"


def test_cases_are_the_same_in_every_run_and_touch_every_file(damage: Damage, samples: dict[str, Sample]) -> None:
    cases = [damage.case(number) for number in range(N_CASES)]
    again = Damage(samples)
    assert cases == [again.case(number) for number in range(N_CASES)]
    touched = {(case.model, edit.file) for case in cases for edit in case.edits}
    assert touched == {(name, file) for name, sample in samples.items() for file in sample.files}
    assert sum(edit.cut for case in cases for edit in case.edits) > 100


def test_damage_is_taken_back(home: Path, samples: dict[str, Sample], damage: Damage) -> None:
    before = {path: path.read_bytes() for sample in samples.values() for path in sample.files.values()}
    for number in range(200):
        case = damage.case(number)
        with damaged(home / case.model, case.edits):
            pass
    assert all(path.read_bytes() == content for path, content in before.items())


def test_reader(home: Path, samples: dict[str, Sample], damage: Damage) -> None:
    refused = 0
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    for case in map(damage.case, range(N_CASES)):
        with damaged(home / case.model, case.edits):
            start = time.process_time()
            error: Exception | None
            try:
                find_sidecar(home / case.model / samples[case.model].opened)
                error = None
            except Exception as caught:
                error = caught
            assert time.process_time() - start < SECONDS, f"case {case.number} ({case.note}) took long"
        if error is not None:
            refused += 1
            assert isinstance(error, LoadError), f"case {case.number} ({case.note}): {error!r}"
            assert str(home) in str(error.path), f"case {case.number} ({case.note}): {error!r}"
            assert error.seen, f"case {case.number} ({case.note}): {error!r}"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - peak_bytes < MEMORY_BYTES
    assert N_CASES // 4 < refused < N_CASES, "cases that are all refused, or all read, test nothing"


def problem(case: Case, home: Path, answer: dict[str, Any]) -> str | None:
    """Say what is wrong with the way a case ended."""
    where = f"case {case.number}, {case.model}, {case.note}"
    if "died" in answer:
        return f"{where}: the process ended: {answer['died']}"
    error = answer["error"]
    if error is None:
        return None
    if error.startswith("foreign"):
        return f"{where}: {error}: {answer['text']}"
    if error == "InvalidArgumentError":
        return f"{where}: the caller is blamed: {answer['text']}"
    if not answer["seen"] or str(home) not in answer["text"]:
        return f"{where}: no file or no cause: {answer['text']}"
    return None


def open_all(cases: Iterable[Case], home: Path, samples: dict[str, Sample], opener: Opener) -> tuple[int, list[str]]:
    """Open every case and return how many loaded and what was wrong."""
    loaded, problems = 0, []
    for case in cases:
        with damaged(home / case.model, case.edits):
            answer = opener.open(home / case.model / samples[case.model].opened)
        loaded += "open" in answer.get("done", ())
        found = problem(case, home, answer)
        problems += [found] if found else []
    return loaded, problems


@native
def test_engine_opens_the_models_in_order_and_drafts(home: Path, samples: dict[str, Sample], opener: Opener) -> None:
    for name, sample in samples.items():
        answer = opener.open(home / name / sample.opened)
        assert answer == {"done": ["open", "active", "generate", "text", "chat"], "error": None}, name


@native
def test_engine_with_some_of_the_cases(home: Path, samples: dict[str, Sample], damage: Damage, opener: Opener) -> None:
    loaded, problems = open_all(map(damage.case, range(0, N_CASES, DEFAULT_STRIDE)), home, samples, opener)
    assert not problems, "\n".join(problems)
    assert loaded > N_CASES // DEFAULT_STRIDE // 10


@native
@pytest.mark.soak
def test_engine_with_all_cases(home: Path, samples: dict[str, Sample], damage: Damage, opener: Opener) -> None:
    loaded, problems = open_all(map(damage.case, range(N_CASES)), home, samples, opener)
    assert not problems, "\n".join(problems)
    assert loaded > N_CASES // 10
