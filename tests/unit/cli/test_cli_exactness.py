"""`lucebox exactness`, on scripted sessions with scripted faults."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from _fake_session import FakeSession, token_bytes

from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask, CycleTimes, SeqCycle
from pylucebox._sidecar import SidecarVerdict
from pylucebox._spec import SpecReason, spec_active
from pylucebox.cli import exactness
from pylucebox.cli._exactness_prompts import LONG, PROMPTS, SETTINGS, plan
from pylucebox.cli._exactness_report import Report, document, sentences, table
from pylucebox.cli._exactness_run import Bench, Case, CaseResult, run_case
from pylucebox.cli._exactness_verdict import (
    WIDTHS,
    CaseVerdict,
    Drawn,
    Fault,
    Trace,
    compare,
    judge,
    logit_gap,
    max_difference,
    overall,
)
from pylucebox.cli._table import plain_lines

REPLY = bytes(range(40, 90))
N_TOKENS = 40


def now_and_then(n: int) -> bool:
    """Drafts that hold, but for some, which narrow and wide steps meet at different places."""
    return n % 5 != 3


class Faulty(FakeSession):
    """A session whose logits are off by a little, in one way.

    ``"numerics"``: rows that run with others, from token `begins` on. ``"rollback"``: every row after drafts were taken
    back, from token `begins` on. ``"sampler"``: no logits are off, but the token of row 1 and its followers are others.
    """

    def __init__(self, reply: bytes, fault: str, *, begins: int = 0, **options: Any) -> None:
        super().__init__(reply, **options)
        self._fault, self._begins = fault, begins
        self._n_drawn = 0
        self._n_rows = 1
        self._has_residue = self._residue_of_this_cycle = False

    def prefill(self, *arguments: Any, **options: Any) -> tuple[int, int]:
        self._n_drawn, self._n_rows = 0, 1
        self._has_residue = self._residue_of_this_cycle = False
        return super().prefill(*arguments, **options)

    def cycle(self, asks: Sequence[Ask]) -> tuple[list[SeqCycle], CycleTimes]:
        self._n_drawn += len(self._sequences[0].rows)
        self._has_residue |= self._residue_of_this_cycle
        results, times = super().cycle(asks)
        self._n_rows = times.n_rows
        self._residue_of_this_cycle = len(results[0].tokens) <= results[0].n_verified
        if self._fault == "sampler" and len(results[0].tokens) > 1:
            first, *others = results[0].tokens
            results[0] = results[0]._replace(tokens=(first, *(token + 1 for token in others)))
        return results, times

    def logits(self, seq: int, row: int) -> npt.NDArray[np.float32]:
        values = super().logits(seq, row)
        is_late = self._n_drawn + row >= self._begins
        if is_late and {"numerics": self._n_rows > 1, "rollback": self._has_residue}.get(self._fault, False):
            values[7] += np.float32(0.25)
        return values


def run(drafting: FakeSession, reply: bytes = REPLY, prompt: str = "p") -> CaseResult:
    bench = Bench(FakeSession(reply), drafting, spec_active("scripted"), token_bytes)
    case = Case(prompt, "greedy", [1, 2, 3], SamplingParams(temperature=0, seed=0))
    return run_case(bench, case, N_TOKENS, lambda _what: None)


def faulty(fault: str, **options: Any) -> CaseResult:
    return run(Faulty(REPLY, fault, holds=options.pop("holds", now_and_then), **options))


def undecided() -> CaseVerdict:
    return faulty("rollback", begins=20, holds=lambda n: n != 1).verdict


def test_runs_that_are_the_same_have_no_fault_and_everything_was_compared() -> None:
    result = run(FakeSession(REPLY, holds=now_and_then))
    assert result.verdict.fault is Fault.NONE
    assert result.verdict.divergences == ()
    assert [run.width for run in result.runs] == list(WIDTHS)
    assert all(run.same_tokens and run.same_bits and run.n_tokens == N_TOKENS for run in result.runs)
    drafted = {run.width: (run.n_drafted, run.n_accepted, run.n_rollbacks) for run in result.runs}
    assert drafted[1] == (0, 0, 0)
    assert all(drafted[width][0] > drafted[width][1] > 0 < drafted[width][2] for width in range(2, 9))


def test_rows_that_differ_in_company_are_numerics() -> None:
    verdict = faulty("numerics").verdict
    assert verdict.fault is Fault.NUMERICS
    assert verdict.same_index is True
    widths = [divergence.width for divergence in verdict.divergences]
    assert widths[:7] == list(range(2, 9))
    first = verdict.divergences[0]
    assert (first.index, first.token_index, first.after_rollback) == (1, None, False)
    assert first.max_difference == pytest.approx(0.25)


def test_numerics_that_begin_late_are_told_from_rollback_by_the_same_index() -> None:
    verdict = faulty("numerics", begins=20).verdict
    assert verdict.fault is Fault.NUMERICS
    assert {divergence.index for divergence in verdict.divergences if divergence.width} == {20}
    assert all(divergence.after_rollback for divergence in verdict.divergences)
    assert len({divergence.first_rollback for divergence in verdict.divergences}) > 1


def test_what_stays_of_drafts_that_were_taken_back_is_a_rollback_fault() -> None:
    verdict = faulty("rollback").verdict
    assert verdict.fault is Fault.ROLLBACK
    assert verdict.same_index is False
    by_width = {divergence.width: divergence for divergence in verdict.divergences}
    assert 1 not in by_width
    # narrow steps meet the first draft that fails, the fourth token, later than wide ones, or not at all
    assert (by_width[2].index, by_width[3].index, by_width[4].index) == (4, 9, 4)
    assert all(divergence.after_rollback for divergence in verdict.divergences)
    assert all(divergence.index == divergence.first_rollback + 1 for divergence in verdict.divergences)


def test_what_begins_right_behind_the_same_rollback_at_all_widths_is_a_rollback_fault_too() -> None:
    verdict = faulty("rollback", holds=lambda n: n != 1).verdict
    assert {divergence.index for divergence in verdict.divergences if divergence.width} == {2}
    assert (verdict.fault, verdict.same_index) == (Fault.ROLLBACK, True)


def test_what_begins_long_after_the_same_rollback_at_all_widths_is_left_open() -> None:
    assert undecided().fault is Fault.UNDECIDED
    assert undecided().same_index is True


def test_another_token_from_the_same_logits_is_a_fault_of_the_sampler() -> None:
    verdict = faulty("sampler").verdict
    assert verdict.fault is Fault.SAMPLER
    first = verdict.divergences[0]
    assert first.same_bits
    assert (first.index, first.token_index, first.max_difference) == (2, 2, 0.0)


def test_one_proof_holds_for_all_requests() -> None:
    none = run(FakeSession(REPLY)).verdict
    rollback, numerics, sampler = (faulty(fault).verdict for fault in ("rollback", "numerics", "sampler"))
    assert overall([]) is overall([none]) is Fault.NONE
    assert overall([none, undecided()]) is Fault.UNDECIDED
    assert overall([undecided(), rollback]) is Fault.ROLLBACK
    assert overall([rollback, numerics]) is Fault.NUMERICS
    assert overall([numerics, sampler]) is Fault.SAMPLER


# ---- comparing two runs


def trace(width: int, tokens: Sequence[int], *, off_from: int = 1_000, n_rollbacks: int = 0) -> Trace:
    drawn = []
    for index, token in enumerate(tokens):
        logits = np.zeros(8, np.float32)
        logits[token] = 2.0
        logits[(token + 1) % 8] = 1.5 + (0.25 if index >= off_from else 0.0)
        drawn.append(Drawn(token, str(logits.tobytes()), logits, n_rollbacks))
    return Trace(width, tuple(drawn), 0, 0, n_rollbacks, None)


def test_equal_runs_do_not_diverge() -> None:
    assert compare(trace(1, [1, 2, 3]), trace(4, [1, 2, 3])) is None
    assert compare(trace(1, []), trace(4, [])) is None
    assert judge([]).fault is Fault.NONE


def test_bits_may_part_before_the_text_does() -> None:
    found = compare(trace(1, [1, 2, 3, 4, 5]), trace(4, [1, 2, 3, 6, 5], off_from=1))
    assert found is not None
    assert (found.index, found.token_index, found.token_expected, found.token_seen) == (1, 3, 4, 6)
    assert found.logit_gap == pytest.approx(0.5)
    assert found.max_difference == pytest.approx(0.25)


@pytest.mark.parametrize(("expected", "seen"), [([1, 2, 3], [1, 2]), ([1, 2], [1, 2, 3])])
def test_a_run_that_ends_earlier_or_later_diverges_there(expected: list[int], seen: list[int]) -> None:
    found = compare(trace(1, expected), trace(3, seen))
    assert found is not None
    assert (found.index, found.token_index, found.same_bits, found.max_difference) == (2, 2, False, None)
    assert (found.token_expected, found.token_seen) == (3, None) if len(seen) == 2 else (None, 3)
    assert (found.logit_gap is None) == (len(expected) == 2)


def test_distances_of_logits_survive_infinities() -> None:
    one = np.array([-np.inf, 1.0, 3.5, -np.inf], np.float32)
    other = np.array([-np.inf, 1.0, 3.0, -np.inf], np.float32)
    assert logit_gap(one) == pytest.approx(2.5)
    assert max_difference(one, other) == pytest.approx(0.5)
    assert max_difference(one, one) == 0.0


# ---- the report


def test_the_table_has_a_row_for_each_width_with_its_rates() -> None:
    report = Report((run(FakeSession(REPLY, holds=now_and_then)), faulty("rollback")))
    lines = plain_lines(table(report))
    assert lines[1].split() == ["width", "same", "tokens", "same", "bits", "tokens", "drafts", "held", "taken", "back"]
    one, two = lines[2].split(), lines[3].split()
    assert one[:4] == ["1", "2/2", "2/2", str(2 * N_TOKENS)]
    assert two[:3] == ["2", "2/2", "1/2"]
    assert lines[-1].split()[0] == "adaptive"
    assert (report.identical, report.same_tokens, report.fault) == (False, True, Fault.ROLLBACK)


def test_the_sentences_name_place_gap_and_cause() -> None:
    first, last = sentences(Report((faulty("rollback"),)))
    assert first.startswith("p, greedy: differs at width 2, 3, ")
    assert "first at index 4, others at other widths" in first
    assert "after drafts had been taken back" in first
    assert "logits differ by up to 0.25" in first
    assert "rollback" in last
    assert "NOT EXACT" in last
    assert sentences(Report((run(FakeSession(REPLY, holds=now_and_then)),)))[-1].startswith("Exact")


def test_a_width_that_never_drafted_is_not_called_exact() -> None:
    bench = Bench(FakeSession(REPLY), FakeSession(REPLY), spec_active("it says so"), token_bytes)
    case = Case("p", "greedy", [1], SamplingParams(temperature=0, seed=0))
    report = Report((run_case(bench, case, 2, lambda _what: None),))  # one token is left after the first
    assert report.untested == tuple(range(2, 9))
    assert report.fault is Fault.NONE
    assert not report.identical
    assert sentences(report) == [sentences(report)[0]]
    assert sentences(report)[0].startswith("NOT TESTED")


def test_the_document_can_be_written_as_json_and_holds_every_case() -> None:
    from pylucebox.cli._io import plain

    report = Report((faulty("numerics"), run(FakeSession(REPLY, holds=now_and_then))), ("Left out: x.",))
    found: Any = json.loads(json.dumps(plain(document(report))))
    assert (found["identical"], found["same_tokens"], found["fault"]) == (False, True, "numerics")
    assert [case["fault"] for case in found["cases"]] == ["numerics", "none"]
    assert found["cases"][0]["first_divergence"]["index"] == 1
    assert found["cases"][1]["first_divergence"] is None
    assert [entry["width"] for entry in found["widths"]] == list(WIDTHS)
    assert len(found["cases"][0]["runs"]) == len(WIDTHS)


# ---- the command


class FakeOpenBench:
    """Stands in for the sessions on a real model."""

    fault = "none"
    n_ctx = 1_000
    opened: Any = None

    def __init__(self, options: Any) -> None:
        type(self).opened = options
        drafting = Faulty(REPLY, self.fault, holds=now_and_then)
        self.spec = spec_active("scripted")
        self.sidecar = SidecarVerdict(model_path=Path("m.gguf"), reason_code=SpecReason.ACTIVE, reason="scripted")
        self.bench = Bench(FakeSession(REPLY), drafting, self.spec, token_bytes)

    def cases(self, planned: Sequence[tuple[str, str, Any]]) -> Any:
        return (Case(name, setting.name, text.encode()[:3000], setting.sampling) for name, text, setting in planned)

    def __enter__(self) -> FakeOpenBench:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> type[FakeOpenBench]:
    fake = type("Fake", (FakeOpenBench,), {})
    monkeypatch.setattr(exactness, "OpenBench", fake)
    return fake


def test_the_command_succeeds_when_all_is_the_same(
    lucebox: Callable[..., int], opened: type[FakeOpenBench], capsys: pytest.CaptureFixture[str]
) -> None:
    assert lucebox("exactness", "--prompts", "2", "--tokens", "20") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == "Runs that are the same as decoding token by token"
    assert captured.out.splitlines()[-1].startswith("Exact: every token")
    assert "lucebox exactness: 60 of 60 runs" in captured.err
    assert (opened.opened.n_threads, opened.opened.spec, opened.opened.verify_width) == (1, "require", 0)
    assert Path(opened.opened.model).name.endswith(".gguf")


@pytest.mark.parametrize("fault", ["numerics", "rollback"])
def test_the_command_fails_with_the_cause(
    lucebox: Callable[..., int], opened: type[FakeOpenBench], capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    opened.fault = fault
    assert lucebox("exactness", "-m", "m.gguf", "--prompts", "2", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["model"], found["identical"], found["fault"]) == (1, "m.gguf", False, fault)
    assert opened.opened.n_threads is None


def test_prompts_that_do_not_fit_are_left_out_and_named(
    lucebox: Callable[..., int], opened: type[FakeOpenBench], capsys: pytest.CaptureFixture[str]
) -> None:
    opened.n_ctx = 700
    assert lucebox("exactness", "--tokens", "30") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("Left out")] == [
        "Left out: the prompt 'long' needs 3030 tokens, the context has 700."
    ]


def test_a_context_that_holds_no_prompt_is_an_error(
    lucebox: Callable[..., int], opened: type[FakeOpenBench], capsys: pytest.CaptureFixture[str]
) -> None:
    opened.n_ctx = 40
    assert lucebox("exactness", "--json") == 1
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "ContextFullError"


def test_prompts_and_settings_are_of_several_kinds() -> None:
    assert len({name for name, _ in PROMPTS}) == len(PROMPTS) == 8
    assert len(dict(PROMPTS)["long"].split()) > 1_200
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS) == 6
    assert all(setting.sampling.seed is not None for setting in SETTINGS)
    changed = [setting.sampling for setting in SETTINGS]
    assert any(sampling.is_greedy for sampling in changed)
    assert any(sampling.grammar for sampling in changed)
    assert any(sampling.penalty_repeat != 1 for sampling in changed)
    assert len({dataclasses.replace(sampling, seed=0) for sampling in changed}) == len(changed) - 1


def test_every_setting_has_its_turn_and_every_prompt_is_run_greedily() -> None:
    planned = [(name, setting.name) for name, _, setting in plan(len(PROMPTS), every=False)]
    assert len(planned) == len(set(planned)) == 7 * 3 + 2
    for setting in SETTINGS[1:]:
        assert 2 <= sum(name == setting.name for _, name in planned) <= 4
    assert {prompt for prompt, setting in planned if setting == "greedy"} == {name for name, _ in PROMPTS}
    assert sum(prompt == LONG for prompt, _ in planned) == 2
    assert len(plan(len(PROMPTS), every=True)) == len(PROMPTS) * len(SETTINGS)
