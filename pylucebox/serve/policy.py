"""The width policy in a server.

The thread that runs the slots posts what a pass was into a mailbox in native code, and the policy answers with the next
pass, on a thread of its own. A policy that is known to answer is asked on the waiting thread itself for what that waits
for: nobody has to be woken. Whatever happens here can cost the drafts, but never a reply.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from pylucebox.serve import _native
from pylucebox.width import (
    AdaptiveWidth,
    CycleContext,
    CycleObservation,
    DraftPolicy,
    FixedWidth,
    WidthCosts,
    WidthPolicy,
    check_choice,
    check_policy,
)

__all__ = ["AT_ONCE", "LIMIT_MS", "WAIT_US", "PolicyHost", "answer_events"]

AT_ONCE: Final[tuple[type, ...]] = (AdaptiveWidth, FixedWidth)
"""Policies that are known to answer within microseconds."""

LIMIT_MS: Final = 100
"""Without an answer for so long there are no drafts. One takes well below 0.1 ms; a busy machine can be this late."""

WAIT_US: Final = 20
"""What a pass may wait for its policy on average, if a 500th of its time is not more. Waking it comes on top."""

_UNLIMITED: Final = 2**31 - 1

_Fields: TypeAlias = tuple[Any, ...]
"""The fields of an event or of one of its slots, in the order in which `_native` declares them."""

_Answer: TypeAlias = tuple[int, int, bool, bool]
"""The answer of a slot, from ``next_width`` on."""

_PLAIN: Final[_Answer] = (1, 0, False, False)
_REFUSED: Final[_Answer] = (1, 0, False, True)

_FIRST: Final = _native.Event.slots.offset
_ANSWER: Final = _native.Slot.next_width.offset
# fields before those of which there are several
_DRAFTS: Final = _native.Slot.drafts.offset // 4
_PROBS: Final = _native.Slot.probs.offset // 4
_TOKENS: Final = _native.Slot.tokens.offset // 4


class PolicyHost:
    """Answers the events of a server with one policy for all slots; the sequences that it is asked about are slots.

    A policy is begun when a reply begins and no other with drafts is underway. One that begins beside others is to it a
    sequence whose context is suddenly another. Slots whose requests decide for themselves are observed where they share
    a pass with others.

    Parameters
    ----------
    make
        Makes the policy, when the model is loaded.
    find_costs
        Returns what passes cost, by the slots that take part; asked when the model is loaded if the policy takes it.
    at_once
        Types of policies that are known to answer within microseconds; types derived from these are not.
    """

    def __init__(
        self,
        make: Callable[[], WidthPolicy] = AdaptiveWidth,
        find_costs: Callable[[], Mapping[int, WidthCosts]] = dict,
        at_once: tuple[type, ...] = AT_ONCE,
    ) -> None:
        self._make, self._find_costs, self._at_once = make, find_costs, at_once
        self._policy: WidthPolicy
        self._drafts: DraftPolicy | None = None  # the same, if it is one
        self._n_slots = 0

    @property
    def answers_at_once(self) -> bool:
        """Whether the policy, which is made when the model is loaded, is known to answer within microseconds."""
        return type(self._policy) in self._at_once

    def handle(self, event: Any) -> None:
        """Take notice of an event, and fill in what it asks for.

        Raises
        ------
        InvalidArgumentError
            The policy is none, or chose a width that is none.
        """
        head = _native.EVENT_HEAD.unpack_from(event)
        kind, n_active, n_slots = head[3], head[4], head[9]
        if kind == _native.LOADED:
            self._load(n_slots)
            return
        places = range(_FIRST, _FIRST + n_slots * _native.SLOT_FIELDS.size, _native.SLOT_FIELDS.size)
        slots = [_native.SLOT_FIELDS.unpack_from(event, place) for place in places]
        if kind == _native.REPORT:
            self._observe(slots, head)
        for place, slot in zip(places, slots, strict=True):
            if kind == _native.ASK:
                answer = self._decide(slot)
            elif kind == _native.WORTH:
                answer = _REFUSED if self._is_refused(slot) else _PLAIN
            else:
                if kind == _native.BEGIN and n_active == 1:
                    self._policy.begin(self._n_slots, slot[7])
                answer = self._plan(slot, n_active) if slot[7] else _PLAIN
            _native.SLOT_ANSWER.pack_into(event, place + _ANSWER, *answer)

    def _load(self, n_slots: int) -> None:
        policy = self._make()
        check_policy(policy)
        self._policy, self._n_slots = policy, n_slots
        self._drafts = policy if isinstance(policy, DraftPolicy) else None
        load_costs = getattr(policy, "load_costs", None)
        costs = dict(self._find_costs()) if load_costs is not None else {}
        if load_costs is not None and costs:
            load_costs(costs.pop(1))
        load_joint_costs = getattr(policy, "load_joint_costs", None)
        if load_joint_costs is not None:
            for n_active, joint in costs.items():
                load_joint_costs(n_active, joint)

    def _is_refused(self, fields: _Fields) -> bool:
        slot, n_to_run, n_left = fields[0], fields[4], fields[6]
        if self._drafts is None:
            return False
        reason = self._drafts.worth_drafting(n_to_run, _tokens_left(n_left))
        if reason is not None:
            print(f"lucebox: no drafts for this reply of slot {slot}: {reason}", file=sys.stderr, flush=True)
        return reason is not None

    def _plan(self, fields: _Fields, n_active: int) -> _Answer:
        slot, (n_past, n_left, widest) = fields[0], fields[5:8]
        context = CycleContext(slot, n_past, n_left if n_left > 0 else _UNLIMITED, widest, n_active)
        if self._drafts is None:
            width = _checked(self._policy.choose(slot, context), widest)
            return width, width - 1, False, False
        width, n_draft, ask = self._drafts.plan(slot, context)
        if width == 1 and n_draft == 0:
            return _PLAIN
        return _checked(width, widest), _checked(n_draft + 1, widest) - 1, bool(ask), False

    def _decide(self, fields: _Fields) -> _Answer:
        slot, n_drafted, widest = fields[0], fields[2], fields[7]
        if self._drafts is None:
            return fields[8], 0, False, False
        width, n_more = self._drafts.decide(slot, fields[_PROBS : _PROBS + n_drafted])
        return _checked(width, widest), _checked(n_drafted + n_more + 1, widest) - 1 - n_drafted, False, False

    def _observe(self, slots: list[_Fields], head: _Fields) -> None:
        _, draft_us, verify_us, _, n_active, n_rows, graph_built, with_prompt, _, _ = head
        observe = self._policy.observe
        for fields in slots:
            slot, width, n_drafted, n_accepted, n_tokens = fields[:5]
            observation = CycleObservation(
                slot,
                width,
                n_drafted,
                n_accepted,
                fields[_PROBS : _PROBS + n_drafted],
                draft_us,
                verify_us,
                0,  # rolling back is part of the next pass
                n_rows,
                graph_built != 0,
                fields[_DRAFTS : _DRAFTS + n_drafted],
                fields[_TOKENS : _TOKENS + n_tokens],
                n_active,
                False,
                with_prompt != 0,
            )
            observe(slot, observation)


def answer_events(lib: _native.Library, host: PolicyHost, is_ours: Callable[[int], bool] = lambda _: False) -> None:
    """Answer a server's events until it ends, or until the policy fails.

    A policy that answers at once is called on the thread that waits for it, too, if there is no thread but the server's
    own that could keep Python's lock from it.

    Parameters
    ----------
    lib
        The native library.
    host
        The policy.
    is_ours
        Tells of the identifier of a Python thread whether it is one of the server.
    """
    event = _native.Event()
    here = ctypes.byref(event)
    while True:
        lib.policy_next(here)
        if event.kind == _native.CLOSED or not _handle(lib, host, event):
            return
        if event.kind == _native.LOADED and host.answers_at_once and all(map(is_ours, sys._current_frames())):
            _be_called(lib, host)
        lib.policy_answer(here)


def _handle(lib: _native.Library, host: PolicyHost, event: Any) -> bool:
    """Answer an event in place; return False if the policy had to be given up."""
    try:
        host.handle(event)
    except BaseException as error:
        traceback.print_exc(file=sys.stderr)
        lib.policy_give_up(f"{type(error).__name__}: {error}".encode(errors="replace"))
        return False
    return True


def _be_called(lib: _native.Library, host: PolicyHost) -> None:
    """Let the thread that runs the slots call the policy."""
    event = _native.Event()
    answer = _native.Answer(lambda: _handle(lib, host, event))
    _called.append((event, answer))
    gc.collect()
    gc.freeze()  # what is there stays, and looking through it again would take a pass some milliseconds
    lib.policy_call(ctypes.byref(event), answer)


_called: Final[list[Any]] = []
"""What native code keeps pointers to."""


def _checked(choice: Any, most: int) -> int:
    """Return what `check_choice` does; the ordinary case takes no call of it."""
    return choice if type(choice) is int and 1 <= choice <= most else check_choice(choice, most)


def _tokens_left(n_left: int) -> int:
    return n_left if n_left > 0 else _UNLIMITED
