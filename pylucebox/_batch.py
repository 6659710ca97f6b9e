"""Many requests over the sequences of one session: a sequence that falls free takes the next request at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from pylucebox._errors import CancelledError, SamplingError
from pylucebox._generate import Run, run_cycle
from pylucebox._request import Request
from pylucebox._session import Session

MakeRun = Callable[[Request, int], Run]


def run_many(session: Session, requests: Sequence[Request], make_run: MakeRun) -> list[Run]:
    """Run all requests and return their finished runs in the order of the requests.

    A request is prefilled as soon as a sequence is free; then all running sequences share each cycle. An abort of the
    session ends every run, those not started yet included, with the reason "cancelled". A run whose sampler fails ends
    with the reason "error" and leaves the others alone.

    Parameters
    ----------
    session
        All its sequences are cleared.
    requests
        What to generate.
    make_run
        Makes the run of a request in a sequence.
    """
    waiting = deque(enumerate(requests))
    idle = deque(range(session.n_seq))
    running: dict[int, Run] = {}
    runs: dict[int, Run] = {}
    while waiting or running:
        while waiting and idle:
            index, request = waiting.popleft()
            seq = idle.popleft()
            run = runs[index] = make_run(request, seq)
            try:
                run.start()
            except SamplingError as error:
                run.fail(error)
            if run.finish_reason is None:
                running[seq] = run
            else:
                session.clear(seq)
                idle.append(seq)
        if running:
            _cycle(session, running)
        for seq in [seq for seq, run in running.items() if run.finish_reason is not None]:
            del running[seq]
            session.clear(seq)
            idle.append(seq)
    return [runs[index] for index in range(len(requests))]


def _cycle(session: Session, running: dict[int, Run]) -> None:
    try:
        results, times, wall_ns = run_cycle(session, tuple(running.values()))
    except CancelledError:
        for run in running.values():
            run.cancel()
        return
    for result in results:
        run = running[result.seq]
        try:
            run.absorb(result, times, wall_ns)
        except SamplingError as error:
            run.fail(error)
