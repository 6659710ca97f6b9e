"""What passes of a server cost on this machine: from the user's cache folder, or measured when the model is loaded."""

from __future__ import annotations

import ctypes
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pylucebox._backends import system_info
from pylucebox.calibration import CostKey, CostStore
from pylucebox.calibration.store import devices_of, file_identity
from pylucebox.serve import _native
from pylucebox.width import WidthCosts

__all__ = ["ServerCosts", "fill_draft", "fill_verify", "server_cost_key"]

# Flags of llama-server with a value, and switches, that change nothing of a pass; so do the variables of the former.
_UNTIMED: Final = frozenset({"--host", "--port", "--api-key", "--api-key-file", "--alias", "-a", "--slot-save-path"})
_UNTIMED_SWITCHES: Final = frozenset({"--metrics", "--no-slots", "--slots", "--offline", "--no-webui"})
_UNTIMED_VARIABLES: Final = frozenset({"LLAMA_ARG_HOST", "LLAMA_ARG_PORT", "LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE"})

_SLOTS: Final = range(1, 5)  # that take part in a pass with drafts

_log = logging.getLogger("pylucebox")


def server_cost_key(
    arguments: Sequence[str], environment: Mapping[str, str], files: Sequence[str], n_draft_vocab: int
) -> CostKey | None:
    """Return what costs that a server measures belong to; None if a file of the model is no longer there.

    Parameters
    ----------
    arguments
        Command line of llama-server.
    environment
        Its variables count, too.
    files
        Files of the model.
    n_draft_vocab
        Tokens that were chosen to be drafted; 0: none were.
    """
    try:
        model = tuple(file_identity(Path(path)) for path in files)
    except OSError as error:
        _log.info("the costs of widths cannot be stored: %s", error)
        return None
    variables = {
        name: value
        for name, value in environment.items()
        if name.startswith(("LLAMA_", "GGML_")) and name not in _UNTIMED_VARIABLES
    }
    system = system_info()
    return CostKey(
        model=model,
        settings=(
            ("server", json.dumps(_timed(arguments))),
            ("variables", json.dumps(variables, sort_keys=True)),
            ("n_draft_vocab", str(n_draft_vocab)),
        ),
        build=f"{system.version} {system.upstream_build} {system.series_hash}",
        device=devices_of(system.devices),
    )


def _timed(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in _UNTIMED:
            next(words, None)
        elif word not in _UNTIMED_SWITCHES and word.partition("=")[0] not in _UNTIMED:
            kept.append(word)
    return kept


class ServerCosts:
    """The costs of one server.

    Parameters
    ----------
    lib
        The native library.
    key
        What the costs belong to; None stores nothing.
    store
        Where.

    Attributes
    ----------
    stored
        What was measured earlier, as `find` returns it; empty: the server is to measure.
    """

    def __init__(self, lib: _native.Library, key: CostKey | None, store: CostStore) -> None:
        self._lib, self._key, self._store = lib, key, store
        stored = {} if key is None else {n: store.load(_key_of(key, n)) for n in _SLOTS}
        self.stored = {n: costs for n, costs in stored.items() if costs is not None} if stored.get(1) else {}

    def find(self) -> dict[int, WidthCosts]:
        """Return costs by the slots that take part in a pass; empty, or one slot is among them.

        They are the stored ones, or those that the server has measured, which are stored. The model must be loaded.
        """
        if self.stored:
            return self.stored
        found: dict[int, WidthCosts] = {}
        for n_active in _SLOTS:
            measured = _native.Costs()
            self._lib.get_costs(n_active, ctypes.byref(measured))
            if measured.n_past == 0:
                break
            found[n_active] = costs = _as_costs(measured, n_active, found.get(1))
            if self._key is not None:
                self._store.save(_key_of(self._key, n_active), costs)
        return found


def _key_of(key: CostKey, n_active: int) -> CostKey:
    return key if n_active == 1 else replace(key, settings=(*key.settings, ("n_active", str(n_active))))


def _as_costs(measured: Any, n_active: int, single: WidthCosts | None) -> WidthCosts:
    verify_us, draft_us = list(measured.verify_us), list(measured.draft_us)
    if single is not None:
        verify_us = fill_verify(verify_us, single.verify_us, n_active)
        draft_us = fill_draft(draft_us, single.draft_us)
    return WidthCosts(
        verify_us=tuple(verify_us),
        draft_us=tuple(draft_us),
        reject_us=measured.reject_us,
        mtp_prefill_us_per_token=measured.mtp_prefill_us_per_token,
        n_past=measured.n_past,
        source="sweep",
        on_gpu=bool(measured.on_gpu),
    )


def fill_verify(measured: Sequence[float], single: Sequence[float], n_active: int) -> list[float]:
    """Return times of passes of 1 to 8 rows where those were timed in which `n_active` slots have equally many.

    Parameters
    ----------
    measured
        Times in microseconds, 0 where there is none.
    single
        Those of one slot.
    n_active
        Slots.
    """
    known = [n_rows for n_rows, took_us in enumerate(measured, 1) if took_us > 0]
    scale = measured[n_active - 1] / single[n_active - 1]
    filled = [scale * took_us for took_us in single]  # fewer rows than slots are not run
    for low, high in pairwise(known):
        step_us = (measured[high - 1] - measured[low - 1]) / (high - low)
        for n_rows in range(low, len(filled) + 1):
            filled[n_rows - 1] = max(measured[low - 1] + step_us * (n_rows - low), measured[n_active - 1])
    return filled


def fill_draft(measured: Sequence[float], single: Sequence[float]) -> list[float]:
    """Return times of chains of 1 to 7 drafts where the first few were timed; longer ones go on as those of one slot.

    The parameters are those of `fill_verify`.
    """
    n_known = sum(took_us > 0 for took_us in measured)
    scale = measured[n_known - 1] / single[n_known - 1]
    return [*measured[:n_known], *(scale * took_us for took_us in single[n_known:])]
