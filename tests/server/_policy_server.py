"""A worker whose width policy does what the first argument names; the others are those of `lucebox-serve`.

With a second word in that argument, the policy is one that the slots' thread may call.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from pylucebox.serve.flags import parse_flags
from pylucebox.serve.launch import plan_launch
from pylucebox.serve.worker import serve
from pylucebox.width import AdaptiveWidth, CycleContext, CycleObservation, CyclePlan, FixedWidth

AFTER = 3
SURE = 0.9
"""Passes that go well before a policy fails."""


class Counting(FixedWidth):
    """Width 4, until something happens."""

    def __init__(self) -> None:
        super().__init__(4)
        self.n_chosen = 0

    def choose(self, seq: int, context: CycleContext) -> int:
        self.n_chosen += 1
        if self.n_chosen > AFTER:
            self.fail()
        return super().choose(seq, context)

    def fail(self) -> None:
        """Do what is wrong."""


class Raising(Counting):
    def fail(self) -> None:
        raise RuntimeError("no idea")


class Hanging(Counting):
    def fail(self) -> None:
        threading.Event().wait()


class HoldingTheLock(Counting):
    def fail(self) -> None:
        ctypes.PyDLL(None).sleep(3600)  # a call through PyDLL keeps the interpreter's lock


class LockHeldElsewhere(Counting):
    """Fails no time itself: another thread of the process keeps the interpreter's lock."""

    def __init__(self) -> None:
        super().__init__()
        self._begin = threading.Event()
        threading.Thread(target=self._hold, daemon=True).start()

    def _hold(self) -> None:
        self._begin.wait()
        ctypes.PyDLL(None).sleep(3600)

    def fail(self) -> None:
        self._begin.set()


class Slow(Counting):
    def fail(self) -> None:
        if self.n_chosen == AFTER + 1:
            threading.Event().wait(0.5)


class TooWide(Counting):
    def choose(self, seq: int, context: CycleContext) -> int:
        super().choose(seq, context)
        return 99


class Recording(FixedWidth):
    """Width 4, and writes down what it is told."""

    def __init__(self) -> None:
        super().__init__(4)
        self._file = open(os.environ["RECORD"], "a", buffering=1, encoding="utf-8")  # noqa: SIM115, PTH123

    def choose(self, seq: int, context: CycleContext) -> int:
        self._write({"context": context._asdict()})
        return super().choose(seq, context)

    def observe(self, seq: int, observation: CycleObservation) -> None:
        self._write({"observation": {**observation._asdict(), "n_verified": observation.n_verified}})
        super().observe(seq, observation)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


class Uneven(Recording):
    """Another width for each slot: 2, 3, 4 and so on."""

    def choose(self, seq: int, context: CycleContext) -> int:
        super().choose(seq, context)
        return min(2 + seq, context.max_width)


class Parked(Recording):
    """Drafts nothing but in every fiftieth cycle."""

    n_chosen = 0

    def choose(self, seq: int, context: CycleContext) -> int:
        super().choose(seq, context)
        self.n_chosen += 1
        return 1 if self.n_chosen % 50 else min(2, context.max_width)


class Asking(Recording):
    """Drafts on by two until one is improbable or five are made, and verifies those before it."""

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:  # noqa: ARG002
        self._widest = context.max_width
        n_draft = min(1, context.max_width - 1)
        return CyclePlan(1 + n_draft, n_draft, ask=True)

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:  # noqa: ARG002
        self._write({"asked": list(probs), "thread": threading.current_thread().name})
        n_sure = next((i for i, prob in enumerate(probs) if prob < SURE), len(probs))
        n_more = min(2, min(6, self._widest) - 1 - len(probs)) if n_sure == len(probs) else 0
        return 1 + n_sure, n_more

    def worth_drafting(self, prompt_tokens: int, max_tokens: int) -> str | None:
        self._write({"worth": [prompt_tokens, max_tokens]})
        return "too short" if max_tokens < 8 else None

    def telemetry(self) -> Any:
        return None


class Dawdling(Asking):
    """Takes longer than the limit for one look."""

    n_asked = 0

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:
        self.n_asked += 1
        if self.n_asked == AFTER:
            threading.Event().wait(0.2)
        return super().decide(seq, probs, tokens)


class Breaking(Asking):
    """Raises where it looks at drafts."""

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:  # noqa: ARG002
        raise RuntimeError("no idea")


class Still(FixedWidth):
    """Drafts nothing, but might."""

    def __init__(self) -> None:
        super().__init__(1)


if __name__ == "__main__":
    flags = parse_flags(sys.argv[2:], os.environ)
    launch = plan_launch(flags, flags.port)
    policies = {"default": AdaptiveWidth, **globals()}
    name, _, called = sys.argv[1].partition(" ")
    policy = policies[name]
    # asked for its drafts, a policy is waited for long enough for a busy machine
    options = {"make_policy": policy, "limit_ms": 50, "wait_us": 20_000, "at_once": (policy,) if called else ()}
    sys.exit(serve({**launch.as_dict(), "sockets": []}, **options))
