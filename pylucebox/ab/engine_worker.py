"""Runs requests on `pylucebox.Engine` for the harness: one JSON job per line in, one JSON answer per line out.

This file is started by its path and imports nothing of the harness, so that it can measure another build of the package
than the one it came with: the first job names the folder to import `pylucebox` from. It ends when its input does, hence
also when the program that started it is killed.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import sys
import threading
import time
from typing import Any, TextIO


def main() -> int:
    """Answer jobs until the input ends."""
    # Whatever else is printed to standard output in this process must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    jobs: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(jobs, worker), daemon=True).start()
    while (line := jobs.get()) is not None:
        _answer(answers, worker.handle(json.loads(line)))
    worker.close()
    return 0


def _read(jobs: queue.SimpleQueue[str | None], worker: Worker) -> None:
    """Pass jobs on; end the process at once when the starter goes away in the middle of one.

    A killed session may be resumed right away, and then no old engine may compute beside the new one.
    """
    n_jobs = 0
    for line in sys.stdin:
        n_jobs += 1
        jobs.put(line)
    if worker.n_done < n_jobs:
        os._exit(1)
    jobs.put(None)


def _answer(out: TextIO, content: dict[str, Any]) -> None:
    out.write(json.dumps(content) + "\n")
    out.flush()


class Worker:
    """One engine, opened by the first job."""

    def __init__(self) -> None:
        self._package: Any = None
        self._engine: Any = None
        self.n_done = 0

    def handle(self, job: dict[str, Any]) -> dict[str, Any]:
        """Do a job; an error becomes an answer."""
        jobs = {"identify": self._identify, "open": self._open, "run": self._run}
        try:
            result = jobs[job["op"]](job)
        except Exception as error:
            return {"error": type(error).__name__, "message": str(error)}
        finally:
            self.n_done += 1
        return {"result": result}

    def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()

    def _identify(self, job: dict[str, Any]) -> dict[str, Any]:
        """Import the package and say which build it is."""
        if job["site"] is not None and self._package is None:
            sys.path.insert(0, job["site"])
        import pylucebox  # noqa: PLC0415 - which one is known only now

        self._package = pylucebox
        found = pylucebox.system_info()
        return {
            "version": pylucebox.__version__,
            "upstream_build": found.upstream_build,
            "series_hash": found.series_hash,
            "compiler": found.compiler,
            "cmake_args": found.cmake_args,
        }

    def _open(self, job: dict[str, Any]) -> dict[str, Any]:
        identity = self._identify(job)
        options = job["options"]
        if job["model"] is None:
            self._engine = self._package.Engine.demo(**options)
        else:
            self._engine = self._package.Engine(job["model"], **options)
        return identity

    def _run(self, job: dict[str, Any]) -> dict[str, Any]:
        if job["warmup"] is not None:
            self._engine.generate(**self._arguments(job["warmup"]))
        requests = job["requests"]
        out = self._one(requests[0]) if len(requests) == 1 else self._many(requests)
        # Linux counts in KiB.
        return {**out, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}

    def _sampling(self, request: dict[str, Any]) -> Any:
        if not request["temperature"]:
            return None
        given = {key: request[key] for key in ("top_k", "top_p", "grammar") if request[key] is not None}
        return self._package.SamplingParams(temperature=request["temperature"], seed=request["seed"], **given)

    def _arguments(self, request: dict[str, Any]) -> dict[str, Any]:
        return {
            "prompt": request["prompt"],
            "max_tokens": request["max_tokens"],
            "stop": tuple(request["stop"]),
            "sampling": self._sampling(request),
        }

    def _one(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a request and note when each step came."""
        stream = self._engine.stream(**self._arguments(request))
        steps: list[Any] = []
        ends_ns: list[int] = []
        begin_ns = time.perf_counter_ns()
        try:
            while True:
                steps.append(next(stream))
                ends_ns.append(time.perf_counter_ns())
        except StopIteration as end:
            done = end.value
        ends_ms = [(end_ns - begin_ns) / 1e6 for end_ns in ends_ns]
        n_tokens, arrivals, cycles = 0, [], []
        for step, end_ms in zip(steps, ends_ms):  # noqa: B905 - equally long
            n_tokens += len(step.token_ids)
            if step.token_ids:
                arrivals.append([n_tokens, end_ms])
            if step.cycle is not None:
                cycles.append(_cycle(step, end_ms - ends_ms[0]))
        sequence = {**_sequence(done, arrivals), "decode_ms": arrivals[-1][1] - arrivals[0][1] if arrivals else None}
        return {"sequences": [sequence], "cycles": cycles, "spec": _spec([done.stats])}

    def _many(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Run requests together; the engine does not say when single tokens of a batch came."""
        done = self._engine.generate_many(
            [request["prompt"] for request in requests],
            max_tokens=requests[0]["max_tokens"],
            stop=tuple(requests[0]["stop"]),
            sampling=[self._sampling(request) for request in requests],
        )
        sequences = []
        for completion in done:
            stats = completion.stats
            arrivals = [[1, stats.prefill_ms], [len(completion.token_ids), stats.prefill_ms + stats.decode_ms]]
            sequences.append({**_sequence(completion, arrivals), "decode_ms": stats.decode_ms})
        return {"sequences": sequences, "cycles": [], "spec": _spec([completion.stats for completion in done])}


def _sequence(done: Any, arrivals: list[Any]) -> dict[str, Any]:
    n_cached = getattr(done.stats, "cached_tokens", None)
    return {
        "n_prompt": done.prompt_tokens,
        # What was not computed came from somewhere.
        "n_cached": max(0, done.prompt_tokens - done.stats.prompt_tokens) if n_cached is None else n_cached,
        "n_tokens": len(done.token_ids),
        "finish_reason": done.finish_reason,
        "token_ids": list(done.token_ids),
        "text": done.text,
        "ttft_ms": arrivals[0][1] if arrivals else 0.0,
        "prefill_ms": done.stats.prefill_ms,
        "arrivals": arrivals,
    }


def _cycle(step: Any, t_ms: float) -> dict[str, Any]:
    cycle = step.cycle
    return {
        "t_ms": round(t_ms, 4),
        "seq": 0,
        "width": cycle.width,
        "n_drafted": cycle.n_drafted,
        "n_accepted": cycle.n_accepted,
        "n_tokens": len(step.token_ids),
        "draft_us": cycle.draft_us,
        "verify_us": cycle.verify_us,
        "rollback_us": cycle.rollback_us,
        "built": cycle.graph_built,
    }


def _spec(all_stats: list[Any]) -> dict[str, Any]:
    """Sum up counts and times over the requests."""
    names = ("cycles", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "graphs_built")
    times = ("decode_ms", "draft_ms", "verify_ms", "sample_ms", "rollback_ms")
    out: dict[str, Any] = {name: sum(getattr(stats, name) for stats in all_stats) for name in (*names, *times)}
    for name in ("num_draft_tokens_per_pos", "num_accepted_tokens_per_pos"):
        out[name] = [sum(column) for column in zip(*(getattr(stats, name) for stats in all_stats))]  # noqa: B905
    return out


if __name__ == "__main__":
    # The folder of this file comes first on the path of a script, and its modules are not for the other build.
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]  # noqa: PTH100, PTH120
    sys.exit(main())
