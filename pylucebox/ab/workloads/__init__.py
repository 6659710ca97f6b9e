"""The workloads of `lucebox ab`: prompts made without any download, the same text on every machine.

A workload is sized with the model's own tokenizer, so its text depends on the tokenizer and on the context. For the
tokenizer of the built-in model every prompt is pinned by its SHA-256 (`pins`); for others the hashes are recorded with
the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pylucebox._errors import InvalidArgumentError
from pylucebox.ab.records import Request, Suite

from . import _corpus, _made
from ._catalog import RECIPES, build_all
from ._catalog import SUITES as _SUITES
from ._desk import Desk, Tokenize, fingerprint, knows_chat
from ._pins import pins, prompt_hashes

__all__ = ["SUITES", "build_suite", "names", "pins", "prompt_hashes", "sentinel"]

SUITES: Final = tuple(_SUITES)
"""Names of the suites."""


def names(suite: str) -> tuple[str, ...]:
    """Return the names of a suite's workloads, in running order.

    Raises
    ------
    InvalidArgumentError
        There is no such suite.
    """
    if suite not in _SUITES:
        raise InvalidArgumentError(argument="suite", value=suite, allowed=", ".join(SUITES))
    return _SUITES[suite]


def build_suite(suite: str, *, only: Sequence[str] = (), tokenize: Tokenize, n_ctx: int) -> Suite:
    """Make the workloads of a suite for a model.

    Parameters
    ----------
    suite
        One of `SUITES`.
    only
        Names of workloads to take instead of the suite's, of any suite, each once.
    tokenize
        Turns text into token ids, control tokens read as such.
    n_ctx
        Most tokens that a sequence of the model can have. Workloads that need more are scaled, and say so in their
        names: ``code-16k@4k``.

    Returns
    -------
    Suite
        Models that only continue texts get no workloads that need instructions to be followed.

    Raises
    ------
    InvalidArgumentError
        A name is unknown or given twice, a workload named in `only` needs a model that follows instructions, or the
        context is too small.
    BuildError
        The corpus in the package is damaged.
    """
    wanted = tuple(only) or names(suite)
    names(suite)
    for name in wanted:
        if name not in RECIPES:
            raise InvalidArgumentError(argument="workload", value=name, allowed=", ".join(sorted(RECIPES)))
    if len(set(wanted)) < len(wanted):
        raise InvalidArgumentError(argument="workload", value=list(wanted), allowed="each workload once")
    # The built-in model knows the marks of a chat, but follows a handful of instructions only.
    is_chat = knows_chat(tokenize) and fingerprint(tokenize) != pins()["built-in"]["tokenizer"]
    if only and not is_chat:
        unfit = [name for name in only if RECIPES[name].needs_chat]
        if unfit:
            allowed = "workloads that continue a text; this model does not follow instructions"
            raise InvalidArgumentError(argument="workload", value=unfit[0], allowed=allowed)
    return Suite(
        name=suite,
        workloads=build_all(wanted, Desk(tokenize=tokenize, n_ctx=n_ctx, is_chat=is_chat)),
        corpus="pinned",
        corpus_sha256=_corpus.CORPUS_SHA256,
        n_ctx=n_ctx,
    )


def sentinel() -> Request:
    """Return the short request that shows whether the machine is still as fast as it was: 128 tokens, greedy."""
    return Request(prompt=_made.counting(1, 40, between=", ") + ",", max_tokens=128)
