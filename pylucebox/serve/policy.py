"""The width policy in a server, on a thread of its own.

The thread that runs the slots posts what a pass was into a mailbox in native code, and the policy answers with the next
pass while the server is at other work. Whatever happens here can cost the drafts, but never a reply.
"""

from __future__ import annotations

import ctypes
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

from pylucebox.serve import _native
from pylucebox.width import (
    AdaptiveWidth,
    CycleContext,
    CycleObservation,
    DraftPolicy,
    WidthCosts,
    WidthPolicy,
    check_choice,
    check_policy,
)

__all__ = ["LIMIT_MS", "WAIT_US", "PolicyHost", "answer_events"]

LIMIT_MS: Final = 100
"""Without an answer for so long there are no drafts. One takes well below 0.1 ms; a busy machine can be this late."""

WAIT_US: Final = 100
"""A pass waits for so long for a policy that looks at its drafts, or for a fiftieth of its time if that is more."""

_UNLIMITED: Final = 2**31 - 1


class PolicyHost:
    """Answers the events of a server with one policy for all slots; the sequences that it is asked about are slots.

    A policy is begun when a reply begins and no other is underway. One that begins beside others is to it a sequence
    whose context is suddenly another.

    Parameters
    ----------
    make
        Makes the policy, when the model is loaded.
    find_costs
        Returns what passes cost, or None; asked when the model is loaded, for a policy that takes it.
    """

    def __init__(
        self,
        make: Callable[[], WidthPolicy] = AdaptiveWidth,
        find_costs: Callable[[], WidthCosts | None] = lambda: None,
    ) -> None:
        self._make, self._find_costs = make, find_costs
        self._policy: WidthPolicy
        self._drafts: DraftPolicy | None = None  # the same, if it is one
        self._n_slots = 0
        self._without: set[int] = set()  # slots whose reply is not worth drafting for

    def handle(self, event: Any) -> None:
        """Take notice of an event, and fill in what it asks for.

        Raises
        ------
        InvalidArgumentError
            The policy is none, or chose a width that is none.
        """
        entries = event.slots[: event.n_slots] if event.kind != _native.LOADED else ()
        if event.kind == _native.REPORT:
            for entry in entries:
                self._observe(entry, event)
            for entry in entries:
                self._plan(entry, event.n_active)
        elif event.kind == _native.ASK:
            for entry in entries:
                self._decide(entry)
        elif event.kind == _native.BEGIN:
            for entry in entries:
                self._begin(entry, event.n_active)
                self._plan(entry, event.n_active)
        elif event.kind == _native.LOADED:
            policy = self._make()
            check_policy(policy)
            self._policy, self._n_slots = policy, event.n_slots
            self._drafts = policy if isinstance(policy, DraftPolicy) else None
            load_costs = getattr(policy, "load_costs", None)
            costs = None if load_costs is None else self._find_costs()
            if load_costs is not None and costs is not None:
                load_costs(costs)

    def _begin(self, entry: Any, n_active: int) -> None:
        if n_active == 1:
            self._policy.begin(self._n_slots, entry.max_width)
        self._without.discard(entry.slot)
        if self._drafts is None:
            return
        reason = self._drafts.worth_drafting(entry.n_past, _tokens_left(entry.n_left))
        if reason is not None:
            self._without.add(entry.slot)
            print(f"lucebox: no drafts for this reply of slot {entry.slot}: {reason}", file=sys.stderr, flush=True)

    def _plan(self, entry: Any, n_active: int) -> None:
        slot, widest = entry.slot, entry.max_width
        width, n_draft, ask = 1, 0, False
        if slot not in self._without:
            context = CycleContext(slot, entry.n_past, _tokens_left(entry.n_left), widest, n_active)
            if self._drafts is None:
                width = check_choice(self._policy.choose(slot, context), widest)
                n_draft = width - 1
            else:
                width, n_draft, ask = self._drafts.plan(slot, context)
                width = check_choice(width, widest)
                n_draft = check_choice(n_draft + 1, widest) - 1
        entry.next_width, entry.next_n_draft, entry.next_ask = width, n_draft, bool(ask)

    def _decide(self, entry: Any) -> None:
        if self._drafts is not None:
            n_drafted, widest = entry.n_drafted, entry.max_width
            width, n_more = self._drafts.decide(entry.slot, entry.probs[:n_drafted])
            entry.next_width = check_choice(width, widest)
            entry.next_n_draft = check_choice(n_drafted + n_more + 1, widest) - 1 - n_drafted

    def _observe(self, entry: Any, event: Any) -> None:
        if entry.slot in self._without:
            return
        n_drafted = entry.n_drafted
        self._policy.observe(
            entry.slot,
            CycleObservation(
                seq=entry.slot,
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
    """Answer a server's events until it ends, or until the policy fails.

    Parameters
    ----------
    lib
        The native library.
    host
        The policy.
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
