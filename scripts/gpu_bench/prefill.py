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


def prefill(settings: Settings) -> None:
    """Let prompts with and without MTP take turns."""
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    order = random.Random(0)
    lengths = settings.contexts[:2]
    with ExitStack() as stack:
        arm = stack.enter_context(Arm(settings.all_arms()[OFF]))
        for weight_type in settings.types[:1]:
            path = settings.model(weight_type)
            arm("open_model", path=str(path), device=settings.device, n_draft_vocab=settings.n_draft_vocab)
            told = arm("open_session", name="one", n_ctx=max(lengths) + 16, n_seq=1, n_ubatch=2048)
            for n_tokens in lengths:
                times: dict[str, list[float]] = {way: [] for way in WAYS}
                for n_round in range(-1, settings.n_rounds):
                    if n_round > 3 and time.monotonic() > started + settings.seconds:
                        break
                    for way in order.sample(list(WAYS), len(WAYS)):
                        took = arm("prefill", name="one", n_tokens=n_tokens, n_seq=1, use_mtp=WAYS[way])
                        if n_round >= 0:  # the first round warms up
                            times[way].append(took)
                for way, found in times.items():
                    row = {"type": weight_type, "n_tokens": n_tokens, "way": way, **told}
                    row |= {"ms": figure([1000 * each for each in found])}
                    row |= {"speed_over_off": ratio(times["MTP off"], found)}
                    rows.append(row)
                    print(
                        f"{weight_type} {n_tokens} {way}: {row['ms']['median']:.1f} ms,"
                        f" {row['speed_over_off']['median']:.3f} of MTP off",
                        file=sys.stderr,
                    )
                write_result(settings, "prefill", rows, started)
