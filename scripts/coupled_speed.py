#!/usr/bin/env python
"""Compare drafts at temperature 1.0 in one interleaved run: likeliest token, shared noise, and upstream's servers.

    python scripts/coupled_speed.py --counts            # acceptance only, which a busy machine does not change
    python scripts/coupled_speed.py --rounds 10         # and speeds, on a machine that is idle

Every round gives each arm the same held-out beginnings and seeds, in an order that changes from round to round. A ratio
is the median over rounds of an arm's speed over that of its own kind without drafts, with a bootstrap interval of 95 %.
The server's arms are upstream's own loop, from this build: drafts of the likeliest token that must equal the draw, and
drafts that are sampled and verified by rejection. Both load the MTP file through this build's patches, and verify eight
rows in each pass. Acceptance is that without a width policy; a server does not report it by depth.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from held_out import (
    FILTERS,
    N_CTX,
    TEMPERATURE,
    add_length_options,
    beginnings,
    command_line,
    interval,
    write_figures,
)

from pylucebox import Engine, SamplingParams
from pylucebox._build import DEMO_MODEL
from pylucebox._sidecar import find_sidecar
from pylucebox._stats import MAX_DRAFT


class Reply(NamedTuple):
    """What a request gave."""

    n_tokens: int
    n_drafted: int
    n_accepted: int
    held_by_depth: tuple[int, ...]  # empty where it is not reported
    tokens_per_s: float


Ask = Callable[[Sequence[int], int, int], Reply]
"""Ids of a prompt, seed and tokens."""


class EngineArm:
    """An engine of the package."""

    def __init__(self, width: int, *, coupled: bool) -> None:
        self._engine = Engine.demo(n_ctx=N_CTX, n_threads=1, device="cpu", verify_width=width, coupled_drafts=coupled)

    def ask(self, prompt: Sequence[int], seed: int, n_tokens: int) -> Reply:
        """Run a request."""
        sampling = SamplingParams(temperature=TEMPERATURE, seed=seed, ignore_eos=True, **FILTERS)
        stats = self._engine.generate(list(prompt), max_tokens=n_tokens, sampling=sampling).stats
        return Reply(
            stats.completion_tokens,
            stats.num_draft_tokens,
            stats.num_accepted_tokens,
            stats.num_accepted_tokens_per_pos,
            stats.tokens_per_s or 0.0,
        )

    def close(self) -> None:
        """Free it."""
        self._engine.close()


class ServerArm:
    """llama-server of this build, or another program that takes its arguments."""

    def __init__(self, program: Sequence[str], *arguments: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        call = [*program, "-m", str(DEMO_MODEL), "--host", "127.0.0.1", "--port", str(port), "--threads", "1"]
        call += ["--threads-batch", "1", "--ctx-size", str(N_CTX), "--parallel", "1", "--no-warmup", "--offline"]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._process = subprocess.Popen([*call, *arguments], stdout=self._log, stderr=self._log)
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._wait()

    def _wait(self) -> None:
        while self._process.poll() is None:
            with contextlib.suppress(OSError):
                self._link.request("GET", "/health")
                reply = self._link.getresponse()
                reply.read()
                if reply.status == http.client.OK:
                    return
            self._link.close()
            time.sleep(0.05)
        self._log.seek(0)
        sys.exit(f"a server did not start: {self._log.read()[-2000:].decode(errors='replace')}")

    def ask(self, prompt: Sequence[int], seed: int, n_tokens: int) -> Reply:
        """Run a request."""
        body = {"prompt": list(prompt), "n_predict": n_tokens, "temperature": TEMPERATURE, "seed": seed}
        body |= {"cache_prompt": False, "ignore_eos": True, **FILTERS}
        self._link.close()  # the server has closed it if the other arms took long
        self._link.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        reply = json.loads(self._link.getresponse().read())
        timings = reply["timings"]
        return Reply(
            timings["predicted_n"],
            timings.get("draft_n", 0),
            timings.get("draft_n_accepted", 0),
            (),
            timings["predicted_per_second"],
        )

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()


@contextlib.contextmanager
def arms(program: Sequence[str]) -> Iterator[Mapping[str, tuple[Ask, str]]]:
    """Open all arms; each with the name of the one it is compared with."""
    mtp = find_sidecar(DEMO_MODEL, "auto").path
    drafting = ["--spec-type", "draft-mtp", "--model-draft", str(mtp), "--spec-draft-n-max", str(MAX_DRAFT)]
    drafting += ["--spec-draft-p-min", "0"]
    opened: dict[str, tuple[EngineArm | ServerArm, str]] = {
        "engine, no drafts": (EngineArm(1, coupled=True), "engine, no drafts"),
        "engine, likeliest": (EngineArm(MAX_DRAFT + 1, coupled=False), "engine, no drafts"),
        "engine, shared noise": (EngineArm(MAX_DRAFT + 1, coupled=True), "engine, no drafts"),
        "server, no drafts": (ServerArm(program), "server, no drafts"),
        "server, likeliest": (ServerArm(program, *drafting), "server, no drafts"),
        "server, rejection": (
            ServerArm(program, *drafting, "--spec-draft-sampling", "probabilistic"),
            "server, no drafts",
        ),
    }
    try:
        yield {name: (arm.ask, against) for name, (arm, against) in opened.items()}
    finally:
        for arm, _ in opened.values():
            arm.close()


def summary(replies: Sequence[Reply]) -> str:
    """Say how many drafts held."""
    n_drafted = sum(reply.n_drafted for reply in replies)
    if not n_drafted:
        return "no drafts"
    n_accepted = sum(reply.n_accepted for reply in replies)
    n_passes = sum(reply.n_tokens - 1 for reply in replies) - n_accepted
    text = f"{n_accepted / n_drafted:.3f} of the drafts hold, {1 + n_accepted / n_passes:.2f} tokens a pass"
    if replies[0].held_by_depth:
        held = [sum(reply.held_by_depth[depth] for reply in replies) / n_passes for depth in range(MAX_DRAFT)]
        text += "; passes that hold to depth 1..7: " + " ".join(f"{share:.3f}" for share in held)
    return text


def figures_of(replies: Sequence[Reply], speeds: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    """Return what is said of an arm, its speed against that of another one."""
    ratios = [ours / theirs for ours, theirs in zip(speeds, others, strict=True)]
    return {
        "n_drafted": sum(reply.n_drafted for reply in replies),
        "n_accepted": sum(reply.n_accepted for reply in replies),
        "n_tokens": sum(reply.n_tokens for reply in replies),
        "tokens_per_s": statistics.median(speeds),
        "ratio": statistics.median(ratios),
        "interval": list(interval(ratios)),
    }


def main() -> int:
    """Measure and print."""
    parser = command_line(__doc__)
    add_length_options(parser, "--rounds", 6, 96, "rounds, each with another seed")
    parser.add_argument("--counts", action="store_true", help="leave the speeds out")
    parser.add_argument("--server", metavar="FILE", help="another llama-server (default: that of this build)")
    args = parser.parse_args()
    program = [args.server] if args.server else [sys.executable, "-m", "pylucebox._server_host"]
    prompts = [prompt for of_kind in beginnings().values() for prompt in of_kind]
    replies: dict[str, list[Reply]] = {}
    speeds: dict[str, list[float]] = {}
    with arms(program) as asks:
        for seed in range(1, args.rounds + 1):
            order = list(asks)
            random.Random(seed).shuffle(order)
            for name in order:
                found = [asks[name][0](prompt, seed, args.tokens) for prompt in prompts]
                replies.setdefault(name, []).extend(found)
                took_s = sum(reply.n_tokens / reply.tokens_per_s for reply in found)
                speeds.setdefault(name, []).append(sum(reply.n_tokens for reply in found) / took_s)
        against = {name: other for name, (_, other) in asks.items()}
    found = {name: figures_of(replies[name], speeds[name], speeds[other]) for name, other in against.items()}
    ratios = [
        ours / theirs for ours, theirs in zip(speeds["engine, shared noise"], speeds["engine, likeliest"], strict=True)
    ]
    for name, figures in found.items():
        print(f"{name:<22} {summary(replies[name])}")
        if not args.counts:
            low, high = figures["interval"]
            ratio = f"{figures['ratio']:.3f} ({low:.3f} to {high:.3f})"
            print(f"{'':<22} {figures['tokens_per_s']:.0f} tok/s, {ratio} of {against[name]}")
    low, high = interval(ratios)
    if not args.counts:
        print(f"shared noise against likeliest: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")
    shared = {"ratio": statistics.median(ratios), "interval": [low, high]}
    write_figures(args.json, {"arms": found, "shared noise against likeliest": shared, "rounds": args.rounds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
