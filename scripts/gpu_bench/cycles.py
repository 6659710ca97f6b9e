"""What a cycle of each width costs behind prompts of several lengths, and with several sequences."""

from __future__ import annotations

import random
import statistics
import sys
import time
from contextlib import ExitStack
from typing import Any

from gpu_bench.arm import Arm
from gpu_bench.settings import OFF, Settings, open_arms, write_result
from gpu_bench.timing import figure, ratio

__all__ = ["context_cycles", "sequence_cycles"]

N_WARM, N_CYCLES = 6, 6
PARTS = ("wall_us", "draft_us", "verify_us", "rest_us")
ACCEPTANCE = (0.6, 0.8, 0.9)
"""Chance of each draft to hold, for tokens a cycle: its cost is measured, with all drafts rejected."""

Times = dict[tuple[str, str, int], list[dict[str, float]]]


def medians(cycles: list[dict[str, Any]]) -> dict[str, float] | None:
    """Return the median of each part over the cycles that built no graph; None without any."""
    kept = [cycle for cycle in cycles if not cycle["built"]]
    return {part: statistics.median(cycle[part] for cycle in kept) for part in PARTS} if kept else None


def take_turns(
    arms: dict[str, Arm], places: list[tuple[str, int]], settings: Settings, deadline: float
) -> tuple[Times, int]:
    """Run every width of every arm in every place, a session and its sequences, in turns until the deadline."""
    order = random.Random(0)
    widths = settings.widths
    times: Times = {(arm, name, width): [] for arm in arms for name, _ in places for width in widths}
    done = 0
    while done < settings.n_rounds and (done < 3 or time.monotonic() < deadline):
        for name, n_seq in order.sample(places, len(places)):
            for width in order.sample(widths, len(widths)):
                found = {}
                for arm in order.sample(list(arms), len(arms)):
                    # a graph that is new here is run a few times before a GPU replays it
                    arms[arm]("cycles", name=name, width=width, n_cycles=N_WARM if done == 0 else 3, n_seq=n_seq)
                    found[arm] = medians(arms[arm]("cycles", name=name, width=width, n_cycles=N_CYCLES, n_seq=n_seq))
                if all(found.values()):  # arms are compared round by round
                    for arm, of_arm in found.items():
                        times[arm, name, width].append(of_arm or {})
        done += 1
    return times, done


def rows_of(times: Times, arms: dict[str, Arm], place: str, more: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per arm and width of a place."""
    rows = []
    for arm, of_place, width in times:
        if arm in arms and of_place == place:
            found, base = times[arm, place, width], times[OFF, place, width]
            if found:
                parts = {part: figure([each[part] for each in found]) for part in PARTS}
                over = ratio([each["wall_us"] for each in found], [each["wall_us"] for each in base])
                rows.append({**more, "arm": arm, "width": width, **parts, "over_default": over})
    return rows


def context_cycles(settings: Settings) -> None:
    """Measure one sequence behind every context, for every weight type."""
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    with ExitStack() as stack:
        arms = open_arms(settings, stack)
        for index, weight_type in enumerate(settings.types):
            facts = _open(settings, arms, weight_type)
            for n_context in settings.contexts:
                for arm in arms.values():
                    told = arm("open_session", name=str(n_context), n_ctx=n_context + 4096, n_seq=1, n_ubatch=2048)
                    facts |= told
                    arm("prefill", name=str(n_context), n_tokens=n_context, n_seq=1, use_mtp=True)
            places = [(str(n_context), 1) for n_context in settings.contexts]
            deadline = started + settings.seconds * (index + 1) / len(settings.types)
            times, n_rounds = take_turns(arms, places, settings, deadline)
            for n_context in settings.contexts:
                more = {"type": weight_type, "context": n_context, "n_rounds": n_rounds, **facts}
                for row in rows_of(times, arms, str(n_context), more):
                    arm_name, width = row["arm"], row["width"]
                    shortest = times[arm_name, str(settings.contexts[0]), width]
                    rows.append({**row, "over_shortest": _over(shortest, times[arm_name, str(n_context), width])})
            write_result(settings, "cycles", rows, started)
            _say(rows, weight_type)


def _over(shortest: list[dict[str, float]], found: list[dict[str, float]]) -> dict[str, Any] | None:
    """Return the speed of drafts and verify steps in units of that behind the shortest context, round by round."""
    n = min(len(shortest), len(found))

    def computed(cycles: list[dict[str, float]]) -> list[float]:
        return [each["draft_us"] + each["verify_us"] for each in cycles[:n]]

    return ratio(computed(shortest), computed(found)) if n else None


def sequence_cycles(settings: Settings) -> None:
    """Measure 1, 3 and 4 sequences together, and what they bring at given chances of acceptance."""
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    n_context = settings.contexts[0]
    with ExitStack() as stack:
        arms = open_arms(settings, stack)
        weight_type = settings.types[0]
        facts = _open(settings, arms, weight_type)
        numbers = (1, 3, 4)
        for n_seq in numbers:
            for arm in arms.values():
                arm("open_session", name=str(n_seq), n_ctx=n_context + 4096, n_seq=n_seq, n_ubatch=2048)
                arm("prefill", name=str(n_seq), n_tokens=n_context, n_seq=n_seq, use_mtp=True)
        places = [(str(n_seq), n_seq) for n_seq in numbers]
        times, n_rounds = take_turns(arms, places, settings, started + settings.seconds)
        for n_seq in numbers:
            more = {"type": weight_type, "context": n_context, "n_seq": n_seq, "n_rounds": n_rounds, **facts}
            for row in rows_of(times, arms, str(n_seq), more):
                seconds = row["wall_us"]["median"] / 1e6
                row["tokens_per_s"] = {
                    str(chance): n_seq * tokens_a_cycle(chance, row["width"]) / seconds for chance in ACCEPTANCE
                }
                rows.append(row)
        write_result(settings, "sequences", rows, started)


def tokens_a_cycle(chance: float, width: int) -> float:
    """Return the tokens that a cycle brings if each draft holds with a chance of its own."""
    return sum(chance**depth for depth in range(width))


def _open(settings: Settings, arms: dict[str, Arm], weight_type: str) -> dict[str, Any]:
    path = settings.model(weight_type)
    facts: dict[str, Any] = {}
    for arm in arms.values():
        facts |= arm("open_model", path=str(path), device=settings.device, n_draft_vocab=settings.n_draft_vocab)
    return facts


def _say(rows: list[dict[str, Any]], weight_type: str) -> None:
    for row in rows:
        if row["type"] == weight_type:
            parts = "  ".join(f"{part[:-3]} {row[part]['median']:8.0f}" for part in PARTS)
            over = row["over_default"]
            interval = f"{over['median']:.3f} ({over['low']:.3f} to {over['high']:.3f})"
            line = f"{weight_type} {row['context']:6d} width {row['width']} {row['arm']:14s} {parts} us  {interval}"
            if shortest := row["over_shortest"]:
                line += f"  of shortest {shortest['median']:.3f} ({shortest['low']:.3f} to {shortest['high']:.3f})"
            print(line, file=sys.stderr)
