"""The C functions of liblucebox-server for Python; see ``native/server.h``, which this file repeats."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Final

from pylucebox._errors import LibraryNotFoundError
from pylucebox._server_host import load_library

__all__ = [
    "ASK",
    "BEGIN",
    "CLOSED",
    "EVENT_HEAD",
    "LOADED",
    "MAX_DRAFT",
    "REPORT",
    "SLOT_ANSWER",
    "SLOT_FIELDS",
    "WORTH",
    "Answer",
    "Costs",
    "DrafterParams",
    "Event",
    "Library",
    "PolicyParams",
    "Slot",
    "Table",
]

MAX_SLOTS: Final = 8
MAX_DRAFT: Final = 7

CLOSED, LOADED, BEGIN, REPORT, ASK, WORTH = range(6)


class PolicyParams(ctypes.Structure):
    """``lucebox_server_policy_params``."""

    _fields_ = (
        ("spec_json", ctypes.c_char_p),
        ("policy_name", ctypes.c_char_p),
        ("verify_width", ctypes.c_int32),
        ("max_width", ctypes.c_int32),
        ("require", ctypes.c_int32),
        ("even_drafts", ctypes.c_int32),
        ("limit_us", ctypes.c_int64),
        ("wait_us", ctypes.c_int64),
    )


class Table(ctypes.Structure):
    """``lucebox_server_table``."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("offset", ctypes.c_uint64),
        ("n_bytes", ctypes.c_uint64),
        ("type", ctypes.c_int32),
    )


class DrafterParams(ctypes.Structure):
    """``lucebox_server_drafter_params``."""

    _fields_ = (
        ("draft_ids", ctypes.POINTER(ctypes.c_int32)),
        ("n_draft_ids", ctypes.c_int32),
        ("covers_part", ctypes.c_int32),
        ("head", Table),
        ("embd", Table),
        ("draft_chain", ctypes.c_int32),
        ("n_kept_graphs", ctypes.c_int32),
        ("measure", ctypes.c_int32),
    )


class Costs(ctypes.Structure):
    """``lucebox_server_costs``."""

    _fields_ = (
        ("verify_us", ctypes.c_double * (MAX_DRAFT + 1)),
        ("draft_us", ctypes.c_double * MAX_DRAFT),
        ("reject_us", ctypes.c_double),
        ("mtp_prefill_us_per_token", ctypes.c_double),
        ("n_past", ctypes.c_int32),
        ("on_gpu", ctypes.c_int32),
    )


class Slot(ctypes.Structure):
    """``lucebox_server_slot``."""

    _fields_ = (
        ("slot", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("n_drafted", ctypes.c_int32),
        ("n_accepted", ctypes.c_int32),
        ("n_tokens", ctypes.c_int32),
        ("n_past", ctypes.c_int32),
        ("n_left", ctypes.c_int32),
        ("max_width", ctypes.c_int32),
        ("next_width", ctypes.c_int32),
        ("next_n_draft", ctypes.c_int32),
        ("next_ask", ctypes.c_int32),
        ("refused", ctypes.c_int32),
        ("drafts", ctypes.c_int32 * MAX_DRAFT),
        ("probs", ctypes.c_float * MAX_DRAFT),
        ("tokens", ctypes.c_int32 * (MAX_DRAFT + 1)),
    )


class Event(ctypes.Structure):
    """``lucebox_server_event``."""

    _fields_ = (
        ("ticket", ctypes.c_int64),
        ("draft_us", ctypes.c_int64),
        ("verify_us", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("n_active", ctypes.c_int32),
        ("n_rows", ctypes.c_int32),
        ("graph_built", ctypes.c_int32),
        ("with_prompt", ctypes.c_int32),
        ("n_draft_max", ctypes.c_int32),
        ("n_slots", ctypes.c_int32),
        ("slots", Slot * MAX_SLOTS),
    )


EVENT_HEAD: Final = struct.Struct("=3q7i")
"""All fields of an `Event` but its slots. To read a struct as one tuple takes a tenth of the time of its attributes."""

SLOT_FIELDS: Final = struct.Struct(f"=12i{MAX_DRAFT}i{MAX_DRAFT}f{MAX_DRAFT + 1}i")
"""All fields of a `Slot`."""

SLOT_ANSWER: Final = struct.Struct("=4i")
"""Those of a `Slot` that are answered, from ``next_width`` on."""

BeforeAccept = ctypes.CFUNCTYPE(None)
"""What is called before the first accept."""

Answer = ctypes.CFUNCTYPE(ctypes.c_int32)
"""What is called to answer an event in place; 0 when the policy was given up."""

_EVENT: Final = ctypes.POINTER(Event)
_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "lucebox_server_has_page": (ctypes.c_int32, ()),
    "lucebox_server_use_sockets": (None, (ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, BeforeAccept)),
    "lucebox_server_drain": (None, (ctypes.c_int32,)),
    "lucebox_server_use_drafter": (None, (ctypes.POINTER(DrafterParams),)),
    "lucebox_server_get_costs": (None, (ctypes.c_int32, ctypes.POINTER(Costs))),
    "lucebox_server_policy_init": (None, (ctypes.POINTER(PolicyParams),)),
    "lucebox_server_policy_next": (None, (_EVENT,)),
    "lucebox_server_policy_answer": (None, (_EVENT,)),
    "lucebox_server_policy_call": (None, (_EVENT, Answer)),
    "lucebox_server_policy_give_up": (None, (ctypes.c_char_p,)),
}


class Library:
    """The functions of liblucebox-server as attributes, without their prefix ``lucebox_server_``.

    Raises
    ------
    LibraryNotFoundError
        The library is missing; and on access, the function is, since llama.cpp was built without our patches.
    BuildMismatchError
        liblucebox belongs to another build than the Python files.
    """

    def __init__(self) -> None:
        self._library = load_library()

    def __getattr__(self, name: str) -> Any:
        """Return a function, declared."""
        full = f"lucebox_server_{name}"
        try:
            function = getattr(self._library, full)
        except AttributeError as error:
            raise LibraryNotFoundError(
                "cannot serve",
                searched=[self._library._name],
                seen=f"it has no {full}: it was built from a llama.cpp without our patches",
                advice="Build from vendor/llama.cpp, or apply patches/series to your own checkout.",
            ) from error
        function.restype, function.argtypes = _SIGNATURES[full]
        setattr(self, name, function)
        return function
