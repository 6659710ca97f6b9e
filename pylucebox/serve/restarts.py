"""When a worker that ended is started again. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

__all__ = ["Ended", "Restarts", "Verdict", "exit_code_of"]

_DELAYS_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_STEADY_S: Final = 60.0  # a worker that served for so long owes nothing to those before it
_MAX_FAILED_STARTS: Final = 5  # in a row, of a server that has served before


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker ended.

    Attributes
    ----------
    code
        As `subprocess.Popen.returncode` has it: negative for a signal.
    listened
        Whether it got as far as to load the model.
    served_s
        Seconds that it was ready; None if it never was.
    drafts
        Whether it was to make drafts.
    """

    code: int
    listened: bool
    served_s: float | None
    drafts: bool

    def __str__(self) -> str:
        """Return it in words, after "the server"."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"was ended by {name}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows.

    Attributes
    ----------
    delay_s
        Seconds until the next start; None: the supervisor ends.
    exit_code
        Its exit code then.
    without_drafts
        The next start goes without drafts.
    """

    delay_s: float | None = None
    exit_code: int = 0
    without_drafts: bool = False


def exit_code_of(code: int) -> int:
    """Return an exit code as shells have it."""
    return code if code >= 0 else 128 - code


class Restarts:
    """Decides after each end of a worker.

    Parameters
    ----------
    may_do_without_drafts
        Whether a model that cannot be loaded with its MTP block is served without.
    """

    def __init__(self, *, may_do_without_drafts: bool) -> None:
        self._may_do_without = may_do_without_drafts
        self._has_served = False
        self._n_ends = 0  # in quick succession
        self._n_failed_starts = 0

    def after(self, ended: Ended) -> Verdict:
        """Return what follows from the end of a worker that nobody asked to end."""
        if ended.served_s is None:
            if ended.drafts and ended.listened and self._may_do_without:
                return Verdict(delay_s=0.0, without_drafts=True)
            self._n_failed_starts += 1
            # What never worked will not work the next time; what did may have met a full disk or memory.
            if not self._has_served or self._n_failed_starts >= _MAX_FAILED_STARTS:
                return Verdict(exit_code=exit_code_of(ended.code))
        else:
            if ended.code == 0:
                return Verdict()  # told to end, though not by the supervisor
            self._has_served = True
            self._n_failed_starts = 0
            if ended.served_s >= _STEADY_S:
                self._n_ends = 0
        delay_s = _DELAYS_S[min(self._n_ends, len(_DELAYS_S) - 1)]
        self._n_ends += 1
        return Verdict(delay_s=delay_s)
