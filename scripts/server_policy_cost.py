#!/usr/bin/env python3
"""Measure what a width policy costs a pass of the server, without a model: the hook alone, called many thousand times.

Calls what the server calls with made-up reports of passes, one slot or several, and prints its processor time for each
pass (thread time, so that what else runs on the machine hardly counts; reading that clock is taken off). Afterwards,
with ``--serve``, what the thread that runs the slots loses to it in a running built-in server: wall time with all
waiting, as /metrics has it, for one slot and for four, while the adaptive policy

    parked      drafts nothing: the built-in model as it is, mostly
    counts      drafts by counts alone, made to believe that its steps are those of a fast GPU
    looks       looks at drafts before they are verified, made to believe that it is on a machine where drafts pay
    own thread  does the same on a thread of its own, as policies of users do

The four-slot passes of the last three draft the same number for all, and nobody is asked about their drafts.

    python scripts/server_policy_cost.py [--passes 20000] [--serve] [--limit-us 50]
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pylucebox.serve import _native
from pylucebox.serve.flags import parse_flags
from pylucebox.serve.launch import plan_launch
from pylucebox.serve.policy import PolicyHost
from pylucebox.serve.worker import serve
from pylucebox.width import AdaptiveWidth, CycleObservation, WidthCosts

PARTS = 20
PROMPTS = ("def add(a, b):", "The sum is", "a b a b a b", '{"name": "alpha", ')
SERVE = "serve-as"
VERIFY_US = (10_000.0, 10_800.0, 11_700.0, 12_600.0, 13_500.0, 14_600.0, 15_800.0, 17_000.0)
"""A machine where drafts pay, so that the policy is at full work."""

DEAR_US = tuple(10_000.0 * (n + 1) for n in range(8))
"""One where they never do."""

DRAFT_US = tuple(400.0 * (n + 1) for n in range(7))


def host_of(verify_us: tuple[float, ...], n_slots: int) -> PolicyHost:
    """Return a policy host whose slots all generate."""
    costs = WidthCosts(
        verify_us=verify_us,
        draft_us=DRAFT_US,
        reject_us=5.0,
        mtp_prefill_us_per_token=0.0,  # else a text on which drafts never pay is left out from the start
        n_past=128,
        source="sweep",
    )
    host = PolicyHost(AdaptiveWidth, lambda: {1: costs})
    loaded = _native.Event(kind=_native.LOADED, n_draft_max=7)
    loaded.n_slots = n_slots
    host.handle(loaded)
    for slot in range(n_slots):
        begin = _native.Event(kind=_native.BEGIN, n_slots=1, n_active=slot + 1)
        begin.slots[0].slot, begin.slots[0].n_past, begin.slots[0].n_left = slot, 128, 10**6
        begin.slots[0].max_width = 8
        host.handle(begin)
    return host


def passes_us(host: PolicyHost, verify_us: tuple[float, ...], n_slots: int, n_passes: int) -> list[float]:
    """Return the thread's microseconds a pass, for each part of the passes; making up the reports is not in them."""
    rng = random.Random(1)
    report = _native.Event(kind=_native.REPORT, n_slots=n_slots, n_active=n_slots)
    plans = [(1, 0, False)] * n_slots
    found = []
    for _ in range(PARTS):
        spent_ns = 0
        for _ in range(n_passes // PARTS):
            n_rows = 0
            for slot, (width, n_draft, ask) in enumerate(plans):
                entry = report.slots[slot]
                probs = [rng.uniform(0.5, 1.0) for _ in range(n_draft)]
                if ask and n_draft:
                    question = _native.Event(kind=_native.ASK, n_slots=1, n_active=1)
                    asked = question.slots[0]
                    asked.slot, asked.max_width, asked.n_drafted = slot, 8, n_draft
                    asked.probs[:n_draft] = probs
                    spent_ns += timed(host, question)
                    rows = min(asked.next_width, n_draft + 1)
                else:
                    rows = width
                held = next((i for i, prob in enumerate(probs[: rows - 1]) if rng.random() > prob), rows - 1)
                entry.slot, entry.width, entry.n_drafted, entry.n_accepted = slot, rows, n_draft, held
                entry.n_tokens, entry.n_past, entry.n_left, entry.max_width = held + 1, 512, 10**6, 8
                entry.probs[:n_draft] = probs
                n_rows += rows
            report.n_rows = n_rows
            report.verify_us = int(verify_us[min(n_rows, 8) - 1] * rng.uniform(0.97, 1.1))
            report.draft_us = int(DRAFT_US[max(0, max(plan[1] for plan in plans) - 1)])
            spent_ns += timed(host, report)
            plans = [
                (report.slots[i].next_width, report.slots[i].next_n_draft, bool(report.slots[i].next_ask))
                for i in range(n_slots)
            ]
        found.append(spent_ns / (n_passes // PARTS) / 1000)
    return found


def clock_ns() -> int:
    """Return what reading the thread's clock twice in a row shows as time between."""
    found = []
    for _ in range(1000):
        began = time.thread_time_ns()
        found.append(time.thread_time_ns() - began)
    return int(statistics.median(found))


CLOCK_NS = clock_ns()


def timed(host: PolicyHost, event: Any) -> int:
    """Return the thread's nanoseconds for one event."""
    began = time.thread_time_ns()
    host.handle(event)
    return time.thread_time_ns() - began - CLOCK_NS


class Believing(AdaptiveWidth):
    """Is told that passes take the built-in model the times of another machine, on which drafts pay."""

    load_costs = None  # type: ignore[assignment] # what was measured here is not wanted
    load_joint_costs = None  # type: ignore[assignment]
    scale = 1.0
    on_gpu = False

    def __init__(self) -> None:
        super().__init__(
            WidthCosts(
                verify_us=tuple(self.scale * us for us in VERIFY_US),
                draft_us=tuple(self.scale * us for us in DRAFT_US),
                reject_us=5.0,
                mtp_prefill_us_per_token=0.0,
                n_past=128,
                source="sweep",
                on_gpu=self.on_gpu,
            )
        )

    def observe(self, seq: int, observation: CycleObservation) -> None:
        """Learn from a pass with other times."""
        verify_us = int(self.scale * VERIFY_US[min(observation.n_rows, 8) - 1])
        draft_us = int(self.scale * DRAFT_US[observation.n_drafted - 1]) if observation.n_drafted else 0
        super().observe(seq, observation._replace(verify_us=verify_us, draft_us=draft_us))


class BelievingInGpu(Believing):
    """The same of a fast GPU."""

    scale = 0.05
    on_gpu = True


POLICIES: dict[str, tuple[type[AdaptiveWidth], bool]] = {
    "parked": (AdaptiveWidth, True),
    "counts": (BelievingInGpu, True),
    "looks": (Believing, True),
    "own thread": (Believing, False),
}
"""By name, with whether the policy is called on the thread that waits for it."""


def serve_as(name: str, arguments: list[str]) -> int:
    """Serve with a policy, without a supervisor."""
    policy, at_once = POLICIES[name]
    flags = parse_flags(arguments, os.environ)
    launch = plan_launch(flags, flags.port).as_dict()
    return serve({**launch, "sockets": []}, make_policy=policy, at_once=(policy,) if at_once else ())


@contextlib.contextmanager
def server(policy: str | None) -> Iterator[http.client.HTTPConnection]:
    """Start a server, with no policy or one of `POLICIES`, and yield a connection to it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = ["-m", "pylucebox.serve.main", "--verify-width", "1"] if policy is None else [__file__, SERVE, policy]
    call = [sys.executable, *program, "--demo", "--port", str(port), "--ctx-size", "4096"]
    with subprocess.Popen(call, stderr=subprocess.DEVNULL) as process:
        try:
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            while True:
                with contextlib.suppress(OSError):
                    link.request("GET", "/health")
                    reply = link.getresponse()
                    reply.read()
                    if reply.status == http.HTTPStatus.OK:
                        break
                link.close()
                if process.poll() is not None:
                    sys.exit("the server did not start")
                time.sleep(0.05)
            yield link
        finally:
            process.terminate()


def metrics(link: http.client.HTTPConnection) -> dict[str, float]:
    """Return the figures without labels."""
    link.request("GET", "/metrics")
    lines = link.getresponse().read().decode().splitlines()
    return {
        line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("lucebox_") and "{" not in line
    }


def served_us(link: http.client.HTTPConnection, n_slots: int, n_tokens: int) -> float:
    """Return the mean over the passes of replies that run together."""

    def reply(slot: int) -> None:
        body = {
            "prompt": PROMPTS[slot],
            "n_predict": n_tokens,
            "temperature": 0,
            "cache_prompt": False,
            "ignore_eos": True,
        }
        with contextlib.closing(http.client.HTTPConnection(link.host, link.port, timeout=120)) as own:
            own.request("POST", "/completion", json.dumps(body))
            own.getresponse().read()

    before = metrics(link)
    with ThreadPoolExecutor(n_slots) as pool:
        list(pool.map(reply, range(n_slots)))
    after = metrics(link)
    spent_s, n_passes = (
        after[name] - before[name] for name in ("lucebox_policy_seconds_total", "lucebox_passes_total")
    )
    return 1e6 * spent_s / n_passes


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--passes", type=int, default=20_000, help="passes for each figure (default: %(default)s)")
    parser.add_argument("--serve", action="store_true", help="also what a running server's slots spend on it")
    parser.add_argument("--limit-us", type=float, help="exit with 1 when a median is above this")
    options = parser.parse_args()
    worst = 0.0
    for name, verify_us in (("drafts pay", VERIFY_US), ("drafts never pay", DEAR_US)):
        for n_slots in (1, 4):
            found = passes_us(host_of(verify_us, n_slots), verify_us, n_slots, options.passes)
            median = statistics.median(found)
            worst = max(worst, median)
            print(
                f"policy, {n_slots} slot(s), {name}: {median:.1f} us of processor time a pass"
                f" ({min(found):.1f} to {max(found):.1f} in {PARTS} parts)"
            )
    for name in (None, *POLICIES) if options.serve else ():
        with server(name) as link:
            for n_slots in (1, 4):
                served_us(link, n_slots, 400)  # the first reply of a process loads what later ones have
                found = [served_us(link, n_slots, 400) for _ in range(PARTS)]
                median = statistics.median(found)
                if name != "own thread":
                    worst = max(worst, median)
                print(
                    f"slots' thread, {n_slots} slot(s), {name or 'no policy'}: {median:.1f} us a pass, waiting included"
                    f" ({min(found):.1f} to {max(found):.1f} in {PARTS} rounds)",
                    flush=True,
                )
    return int(options.limit_us is not None and worst > options.limit_us)


if __name__ == "__main__":
    sys.exit(serve_as(sys.argv[2], sys.argv[3:]) if sys.argv[1:2] == [SERVE] else main())
