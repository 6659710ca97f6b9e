#!/usr/bin/env python3
"""Measure what asking a width policy costs the server, per pass.

Starts `lucebox-serve --demo` once with the policy and once with a fixed width, lets both generate the same, and prints
the time that the thread which runs the slots spent on choosing widths, as /metrics has it. The figure includes
whatever else the machine gave its processors to meanwhile, so run it on one that is idle.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[http.client.HTTPConnection]:
    """Start a server and yield a connection to it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    call = [sys.executable, "-m", "pylucebox.serve.main", "--demo", "--port", str(port), *arguments]
    with subprocess.Popen(call, stderr=subprocess.DEVNULL) as process:
        try:
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            while True:
                with contextlib.suppress(OSError):
                    link.request("GET", "/health")
                    reply = link.getresponse()
                    reply.read()
                    if reply.status == 200:
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


def cost_us(link: http.client.HTTPConnection, n_tokens: int) -> float:
    """Return the mean over the passes of one reply."""
    before = metrics(link)
    body = {"prompt": "def add(a, b):", "n_predict": n_tokens, "temperature": 0, "cache_prompt": False}
    link.request("POST", "/completion", json.dumps(body))
    link.getresponse().read()
    after = metrics(link)
    spent_s, n_passes = (
        after[name] - before[name] for name in ("lucebox_policy_seconds_total", "lucebox_passes_total")
    )
    return 1e6 * spent_s / n_passes


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replies", type=int, default=20, help="replies for each figure (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=400, help="tokens of a reply (default: %(default)s)")
    parser.add_argument("--limit-us", type=float, help="exit with 1 when the policy's median is above this")
    options = parser.parse_args()
    median = 0.0
    for name, arguments in (("no drafts", ("--verify-width", "1")), ("policy", ())):
        with server(*arguments) as link:
            cost_us(link, options.tokens)  # the first reply of a process loads what later ones have
            costs = sorted(cost_us(link, options.tokens) for _ in range(options.replies))
        median = costs[len(costs) // 2]
        print(f"{name}: {median:.1f} us a pass ({costs[0]:.1f} to {costs[-1]:.1f})")
    return int(options.limit_us is not None and median > options.limit_us)


if __name__ == "__main__":
    sys.exit(main())
