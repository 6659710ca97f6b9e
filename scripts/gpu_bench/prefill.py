"""What the MTP block costs a prompt."""

from __future__ import annotations

import random
import sys
import time
from contextlib import ExitStack
from typing import Any

from gpu_bench.arm import Arm
from gpu_bench.settings import OFF, Settings, write_result
from gpu_bench.timing import figure, ratio

__all__ = ["prefill"]

WAYS = {"MTP off": False, "MTP off again": False, "MTP on": True}
BEFORE_TIMES = 2
"""Rounds that warm up."""


def prefill(settings: Settings) -> None:
    """Let prompts with and without MTP take turns, for as long for each length."""
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    order = random.Random(0)
    with ExitStack() as stack:
        arm = stack.enter_context(Arm(settings.all_arms()[OFF]))
        for weight_type in settings.types[:1]:
            path = settings.model(weight_type)
            arm("open_model", path=str(path), device=settings.device, n_draft_vocab=settings.n_draft_vocab)
            told = arm("open_session", name="one", n_ctx=max(settings.prompts) + 16, n_seq=1, n_ubatch=2048)
            print(f"{weight_type}: model written and opened after {time.monotonic() - started:.0f} s", file=sys.stderr)
            ready = time.monotonic()
            for i, n_tokens in enumerate(settings.prompts):
                until = ready + settings.seconds * (i + 1) / len(settings.prompts)
                times = _in_turns(arm, n_tokens, until, settings.n_rounds, order)
                for way, found in times.items():
                    row = {"type": weight_type, "n_layer": settings.n_layer, "n_tokens": n_tokens, "way": way, **told}
                    row |= {"ms": figure([1000 * each for each in found])}
                    row |= {"speed_over_off": ratio(_off(times, way), found)}
                    rows.append(row)
                    speed = row["speed_over_off"]
                    print(
                        f"{weight_type} {settings.n_layer} layers, {n_tokens} tokens, {way}:"
                        f" {row['ms']['median']:.1f} ms, {len(found)} rounds,"
                        f" {speed['median']:.3f} ({speed['low']:.3f} to {speed['high']:.3f}) of MTP off",
                        file=sys.stderr,
                    )
                write_result(settings, "prefill", rows, started)


def _in_turns(arm: Arm, n_tokens: int, until: float, n_rounds: int, order: random.Random) -> dict[str, list[float]]:
    """Return the seconds of each way, one per round."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for n_round in range(-BEFORE_TIMES, n_rounds):
        if n_round > 3 and time.monotonic() > until:
            break
        for way in order.sample(list(WAYS), len(WAYS)):
            took = arm("prefill", name="one", n_tokens=n_tokens, n_seq=1, use_mtp=WAYS[way])
            if n_round >= 0:
                times[way].append(took)
    return times


def _off(times: dict[str, list[float]], way: str) -> list[float]:
    """Return what a way is compared with: for MTP the mean of both prompts without it in a round."""
    if way != "MTP on":
        return times["MTP off"]
    return [(first + again) / 2 for first, again in zip(times["MTP off"], times["MTP off again"], strict=True)]
