"""Width policies in a server: one for each slot, on a thread of their own.

The thread that runs the slots posts what a pass was into a mailbox in native code, and the policies answer with the
next pass while the server is at other work. Whatever happens here can cost the drafts, but never a reply.
"""

from __future__ import annotations

import ctypes
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pylucebox.serve import _native
from pylucebox.width import (
    CycleContext,
    CycleObservation,
    DraftPolicy,
    WidthPolicy,
    check_choice,
    check_policy,
    default_policy,
)

__all__ = ["LIMIT_MS", "PolicyHost", "answer_events"]

LIMIT_MS: Final = 100
"""Without an answer for so long there are no drafts. One takes well below 0.1 ms; a busy machine can be this late."""

_UNLIMITED: Final = 2**31 - 1


@dataclass
class _Slot:
    policy: WidthPolicy
    drafts: DraftPolicy | None  # the same, if it is one
    without: str | None = None  # why this reply goes without drafts


class PolicyHost:
    """Answers the events of a server with policies.

    Every slot has a policy for itself: replies begin and end at different times, and what a policy knows of a text
    belongs to one of them.

    Parameters
    ----------
    make
        Makes a policy.
    """

    def __init__(self, make: Callable[[], WidthPolicy] = default_policy) -> None:
        self._make = make
        self._slots: list[_Slot] = []

    def handle(self, event: Any) -> None:
        """Take notice of an event, and fill in what it asks for.

        Raises
        ------
        InvalidArgumentError
            A policy is none, or chose a width that is none.
        """
        entries = event.slots[: event.n_slots] if event.kind != _native.LOADED else ()
        if event.kind == _native.REPORT:
            for entry in entries:
                self._observe(entry, event)
                self._plan(entry, event.n_active)
        elif event.kind == _native.TRIM:
            for entry in entries:
                self._trim(entry)
        elif event.kind == _native.BEGIN:
            for entry in entries:
                self._begin(entry)
                self._plan(entry, 1)
        elif event.kind == _native.LOADED:
            self._slots = [self._new() for _ in range(event.n_slots)]

    def _new(self) -> _Slot:
        policy = self._make()
        check_policy(policy)
        return _Slot(policy, policy if isinstance(policy, DraftPolicy) else None)

    def _begin(self, entry: Any) -> None:
        slot = self._slots[entry.slot]
        slot.policy.begin(1, entry.max_width)
        if slot.drafts is not None:
            slot.without = slot.drafts.worth_drafting(entry.n_past, _tokens_left(entry.n_left))

    def _plan(self, entry: Any, n_active: int) -> None:
        slot = self._slots[entry.slot]
        widest = entry.max_width
        width, n_draft, ask = 1, 0, False
        if slot.without is None:
            context = CycleContext(0, entry.n_past, _tokens_left(entry.n_left), widest, n_active)
            if slot.drafts is None:
                width = check_choice(slot.policy.choose(0, context), widest)
                n_draft = width - 1
            else:
                width, n_draft, ask = slot.drafts.plan(0, context)
                width = check_choice(width, widest)
                n_draft = check_choice(n_draft + 1, widest) - 1
        entry.next_width, entry.next_n_draft, entry.next_ask = width, n_draft, bool(ask)

    def _trim(self, entry: Any) -> None:
        slot = self._slots[entry.slot]
        if slot.drafts is not None:
            # llama-server's drafter makes all drafts of a pass at once, so there are no more of them to ask for.
            width, _ = slot.drafts.decide(0, entry.probs[: entry.n_drafted])
            entry.next_width = check_choice(width, entry.n_drafted + 1)

    def _observe(self, entry: Any, event: Any) -> None:
        slot = self._slots[entry.slot]
        if slot.without is not None:
            return
        n_drafted = entry.n_drafted
        slot.policy.observe(
            0,
            CycleObservation(
                seq=0,
                width=entry.width,
                n_drafted=n_drafted,
                n_accepted=entry.n_accepted,
                draft_probs=tuple(entry.probs[:n_drafted]),
                draft_us=event.draft_us,
                verify_us=event.verify_us,
                rollback_us=0,
                n_rows=event.n_rows,
                graph_built=bool(event.graph_built),
                draft_tokens=tuple(entry.drafts[:n_drafted]),
                tokens=tuple(entry.tokens[: entry.n_tokens]),
                n_active=event.n_active,
                shared_prefill=bool(event.with_prompt),
            ),
        )


def answer_events(lib: _native.Library, host: PolicyHost) -> None:
    """Answer a server's events until it ends, or until a policy fails.

    Parameters
    ----------
    lib
        The native library.
    host
        The policies.
    """
    event = _native.Event()
    here = ctypes.byref(event)
    while True:
        lib.policy_next(here)
        if event.kind == _native.CLOSED:
            return
        try:
            host.handle(event)
        except BaseException as error:
            traceback.print_exc(file=sys.stderr)
            lib.policy_give_up(f"{type(error).__name__}: {error}".encode(errors="replace"))
            return
        lib.policy_answer(here)


def _tokens_left(n_left: int) -> int:
    return n_left if n_left > 0 else _UNLIMITED
