"""What `lucebox exactness` reports: a table, sentences and a JSON document, from the results of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pylucebox.cli._exactness_run import CaseResult, WidthRun
from pylucebox.cli._exactness_verdict import WIDTHS, Divergence, Fault, overall
from pylucebox.cli._table import Table

SCHEMA = 1

_SENTENCES = {
    Fault.NONE: "Exact: every token, and every bit of its logits, is that of decoding token by token.",
    Fault.SAMPLER: "NOT EXACT, in the sampler: a token differs although its logits are the same in every bit.",
    Fault.NUMERICS: (
        "NOT EXACT, in the numerics: a row that is verified with others has other bits than alone, also where no draft"
        " had been taken back, or at the same token whatever the width."
    ),
    Fault.ROLLBACK: (
        "NOT EXACT, in the rollback: nothing differs until drafts are taken back; then it begins with the next token,"
        " or at one that depends on the width."
    ),
    Fault.UNDECIDED: (
        "NOT EXACT: all widths that differ took drafts back at the same place and differ from the same token on, so"
        " these runs cannot tell numerics from rollback. More --prompts or --tokens may."
    ),
}
_UNTESTED = "NOT TESTED: {widths} made no drafts, so nothing was verified there."


@dataclass(frozen=True)
class WidthTotals:
    """All runs at one width.

    Attributes
    ----------
    width
        1 to 8, or 0 for adaptive.
    n_runs, n_same_tokens, n_same_bits
        Runs, and how many of them are those of decoding token by token.
    n_tokens, n_drafted, n_accepted, n_rollbacks
        Sums over the runs.
    """

    width: int
    n_runs: int
    n_same_tokens: int
    n_same_bits: int
    n_tokens: int
    n_drafted: int
    n_accepted: int
    n_rollbacks: int


@dataclass(frozen=True)
class Report:
    """Results of all requests, in the order they ran.

    Attributes
    ----------
    results
        The requests.
    left_out
        Sentences about prompts that were not run.
    """

    results: tuple[CaseResult, ...]
    left_out: tuple[str, ...] = ()

    @property
    def totals(self) -> tuple[WidthTotals, ...]:
        """Sums for each width, in the order of `WIDTHS`."""
        return tuple(_total(width, [run for run in self._runs() if run.width == width]) for width in WIDTHS)

    @property
    def fault(self) -> Fault:
        """What is wrong over all requests."""
        return overall(result.verdict for result in self.results)

    @property
    def untested(self) -> tuple[int, ...]:
        """Widths above 1 at which no draft was ever made; adaptive may choose not to draft."""
        return tuple(total.width for total in self.totals if total.width > 1 and total.n_drafted == 0)

    @property
    def same_tokens(self) -> bool:
        """Whether all runs gave the tokens of decoding token by token."""
        return all(run.same_tokens for run in self._runs())

    @property
    def identical(self) -> bool:
        """Whether every width was tested and all runs are the same in tokens and bits."""
        return self.fault is Fault.NONE and not self.untested

    def first_divergences(self) -> Iterator[tuple[CaseResult, Divergence]]:
        """Return the first divergence of each request that has one: the earliest, at its narrowest width."""
        for result in self.results:
            if result.verdict.divergences:
                yield result, min(result.verdict.divergences, key=lambda divergence: divergence.index)

    def _runs(self) -> Iterator[WidthRun]:
        return (run for result in self.results for run in result.runs)


def _total(width: int, runs: Sequence[WidthRun]) -> WidthTotals:
    return WidthTotals(
        width=width,
        n_runs=len(runs),
        n_same_tokens=sum(run.same_tokens for run in runs),
        n_same_bits=sum(run.same_bits for run in runs),
        n_tokens=sum(run.n_tokens for run in runs),
        n_drafted=sum(run.n_drafted for run in runs),
        n_accepted=sum(run.n_accepted for run in runs),
        n_rollbacks=sum(run.n_rollbacks for run in runs),
    )


def width_name(width: int) -> str:
    """Return a width in words."""
    return str(width) if width else "adaptive"


def table(report: Report) -> Table:
    """Return the rates by width."""
    columns = ("width", "same tokens", "same bits", "tokens", "drafts", "held", "taken back")
    rows = tuple(
        (
            width_name(total.width),
            f"{total.n_same_tokens}/{total.n_runs}",
            f"{total.n_same_bits}/{total.n_runs}",
            str(total.n_tokens),
            str(total.n_drafted),
            f"{total.n_accepted / total.n_drafted:.0%}" if total.n_drafted else "-",
            str(total.n_rollbacks),
        )
        for total in report.totals
    )
    return Table("Runs that are the same as decoding token by token", columns, rows)


def sentences(report: Report) -> list[str]:
    """Return the verdict, after what led to it."""
    lines = list(report.left_out)
    lines += [_divergence_sentence(result, first) for result, first in report.first_divergences()]
    if report.untested:
        names = ", ".join(f"width {width_name(width)}" for width in report.untested)
        lines.append(_UNTESTED.format(widths=names))
    if report.fault is not Fault.NONE or not report.untested:
        lines.append(_SENTENCES[report.fault])
    return lines


def _divergence_sentence(result: CaseResult, first: Divergence) -> str:
    verdict, case = result.verdict, result.case
    widths = ", ".join(width_name(divergence.width) for divergence in verdict.divergences)
    what = "only the token differs" if first.same_bits else f"logits differ by up to {_number(first.max_difference)}"
    text = "the text stays the same"
    if first.token_index is not None:
        seen = f"{_ended(first.token_seen)} in place of {_ended(first.token_expected)}"
        text = f"token {first.token_index} is {seen}, where the two highest logits are {_number(first.logit_gap)} apart"
    same = {None: "", True: ", the same at all fixed widths", False: ", others at other widths"}[verdict.same_index]
    rollback = "after drafts had been taken back" if first.after_rollback else "before any draft was taken back"
    return (
        f"{case.prompt}, {case.setting}: differs at width {widths}, first at index {first.index}{same}, {rollback};"
        f" {what}; {text} ({verdict.fault.value})."
    )


def _number(value: float | None) -> str:
    return "an unknown amount" if value is None else f"{value:.3g}"


def _ended(token: int | None) -> str:
    return "an end" if token is None else str(token)


def document(report: Report) -> dict[str, object]:
    """Return the report for JSON."""
    firsts = {id(result): first for result, first in report.first_divergences()}
    return {
        "identical": report.identical,
        "same_tokens": report.same_tokens,
        "same_bits": report.fault is Fault.NONE,
        "fault": report.fault,
        "untested_widths": report.untested,
        "widths": report.totals,
        "cases": [
            {
                "prompt": result.case.prompt,
                "setting": result.case.setting,
                "prompt_tokens": len(result.case.tokens),
                "logits_digest": result.digest,
                "fault": result.verdict.fault,
                "same_index": result.verdict.same_index,
                "first_divergence": firsts.get(id(result)),
                "divergences": result.verdict.divergences,
                "runs": result.runs,
            }
            for result in report.results
        ],
        "left_out": report.left_out,
        "summary": sentences(report),
    }
