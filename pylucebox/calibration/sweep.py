"""Time verify steps of every width and chains of drafts on a text that nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from pylucebox._errors import CancelledError
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask, CycleTimes, Progress, SeqCycle, Session
from pylucebox._stats import MAX_DRAFT
from pylucebox.width import MAX_WIDTH, WidthCosts

__all__ = ["MIN_N_PAST", "SweepOptions", "going_on", "measure_costs"]

MIN_N_PAST: Final = 4
"""Fewest tokens of a context that can be measured at."""

# Widest first, then from both ends: what a run that is cut short lacks lies between widths that were timed.
_ORDER: Final = (8, 1, 4, 2, 6, 3, 5, 7)
_SEQ: Final = 0
_PROMPTS: Final = 4  # that are timed with MTP, and as many without


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """How much to measure.

    Attributes
    ----------
    n_past
        Context length to measure at, in tokens. Cut to what fits.
    passes
        Timed cycles of each width. The least counts: what else the machine does only ever adds time.
    enough_s
        After so many seconds no further pass is begun; those that were not timed more than once count with that.
    limit_s
        Seconds after which a sweep without one complete pass is given up.
    """

    n_past: int = 128
    passes: int = 5
    enough_s: float = 2.5
    limit_s: float = 30.0


def going_on(progress: Progress | None) -> Callable[[float], bool]:
    """Return `progress` as a function that says False only to end the work."""
    return lambda fraction: progress is None or progress(fraction) is not False


def measure_costs(
    session: Session,
    options: SweepOptions,
    go_on: Callable[[float], bool] = lambda _fraction: True,
    clock: Callable[[], float] = perf_counter,
) -> WidthCosts | None:
    """Time all widths in sequence 0, which must be clear and is clear afterwards.

    Parameters
    ----------
    session
        Opened for widths up to 8.
    options
        How much to measure.
    go_on
        Called between cycles with the fraction done, 0 to 1; returning False ends the sweep.
    clock
        Seconds.

    Returns
    -------
    WidthCosts or None
        None if the sweep was ended, the session aborted, or the limit came first.

    Raises
    ------
    LuceboxError
        The model could not be run.
    """
    try:
        return _Sweep(session, options, go_on, clock).run()
    except (CancelledError, _EndedError):
        return None
    finally:
        session.clear(_SEQ)


class _EndedError(Exception):
    """Nobody wants the rest."""


class _Sweep:
    def __init__(
        self, session: Session, options: SweepOptions, go_on: Callable[[float], bool], clock: Callable[[], float]
    ) -> None:
        self._session = session
        self._options = options
        self._go_on = go_on
        self._clock = clock
        self._began = clock()
        # Room for the cycles of a pass or two; then the text starts again.
        self._n_past = max(MIN_N_PAST, min(options.n_past, session.n_ctx - 4 * MAX_WIDTH))
        self._n_done = 0
        self._verify: list[list[int]] = [[] for _ in range(MAX_WIDTH)]
        self._draft: list[list[int]] = [[] for _ in range(MAX_DRAFT)]
        self._rejected: list[int] = []
        self._kept: list[int] = []

    def run(self) -> WidthCosts:
        prefill_us = self._prefill_costs()
        for width in _ORDER:
            self._step(width)
        # Then each width in a row, as it is used: after steps of another width caches are cold.
        for width in _ORDER:
            if self._seconds() > self._options.enough_s:
                break
            for n in range(self._options.passes):
                self._step(width, replace=n == 0)
        return WidthCosts(
            verify_us=tuple(_least(times) for times in self._verify),
            draft_us=_rising([_least(times) for times in self._draft]),
            reject_us=max(0.0, _least(self._rejected) - _least(self._kept)),
            mtp_prefill_us_per_token=prefill_us,
            n_past=self._n_past,
            source="sweep",
        )

    def _seconds(self) -> float:
        return self._clock() - self._began

    def _check(self) -> None:
        is_late = self._seconds() > self._options.limit_s and not all(self._verify)
        n_steps = (1 + self._options.passes) * len(_ORDER)
        if is_late or self._go_on(min(1.0, self._n_done / n_steps)) is False:
            raise _EndedError

    def _prefill_costs(self) -> float:
        """Return what a prompt costs more with MTP, per token; the first prompts are for warming up.

        The least time of each kind counts: a small difference of large times is the first that other load spoils.
        """
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(1 + _PROMPTS):
            for use_mtp, times in seconds.items():
                began = self._clock()
                self._prefill(use_mtp=use_mtp)
                times.append(self._clock() - began)
                self._check()
            if len(seconds[True]) > 1 and self._seconds() > self._options.enough_s / 3:
                break
        least = {use_mtp: min(times[1:]) for use_mtp, times in seconds.items()}
        return max(0.0, least[True] - least[False]) * 1e6 / self._n_past

    def _prefill(self, *, use_mtp: bool) -> None:
        """Run a prompt. Its tokens differ as those of a text do, so that they need different experts and table rows."""
        session = self._session
        session.clear(_SEQ)
        sampler = session.open_sampler(SamplingParams(temperature=0.0, seed=0, ignore_eos=True), None)
        tokens = [1 + (n * 37) % 97 for n in range(self._n_past)]
        session.prefill(_SEQ, tokens, sampler, use_mtp=use_mtp)

    def _step(self, width: int, *, replace: bool = False) -> None:
        """Time a cycle of a width, in place of earlier times of it if `replace` is set.

        One in which a graph was built is repeated, unless they all build.
        """
        for _ in range(3):
            result, times = self._cycle(width)
            if not (times.graph_built or times.draft_graph_built):
                break
        if replace:
            self._verify[width - 1].clear()
        self._verify[width - 1].append(times.verify_us)
        if width > 1:
            self._draft[width - 2].append(times.draft_us)
        is_rejected = result.n_accepted < result.n_verified
        (self._rejected if is_rejected else self._kept).append(times.rollback_us)
        self._n_done += 1

    def _cycle(self, width: int) -> tuple[SeqCycle, CycleTimes]:
        self._check()
        if self._session.n_past(_SEQ) + 2 * MAX_WIDTH > self._session.n_ctx:
            self._prefill(use_mtp=True)
        (result,), times = self._session.cycle((Ask(_SEQ, width, MAX_WIDTH),))
        return result, times


def _least(times: Sequence[int]) -> float:
    return float(max(1, min(times))) if times else 0.0


def _rising(chain_us: list[float]) -> tuple[float, ...]:
    """Return the times of longer and longer chains without the dents that come from measuring each by itself."""
    for n in range(1, len(chain_us)):
        chain_us[n] = max(chain_us[n], chain_us[n - 1])
    return tuple(chain_us)
