"""What passes of a server cost on this machine: from the user's cache folder, or measured when the model is loaded."""

from __future__ import annotations

import ctypes
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pylucebox._backends import system_info
from pylucebox.calibration import CostKey, CostStore
from pylucebox.calibration.store import devices_of, file_identity
from pylucebox.serve import _native
from pylucebox.width import WidthCosts

__all__ = ["ServerCosts", "server_cost_key"]

# Flags of llama-server with a value, and switches, that change nothing of a pass; so do the variables of the former.
_UNTIMED: Final = frozenset({"--host", "--port", "--api-key", "--api-key-file", "--alias", "-a", "--slot-save-path"})
_UNTIMED_SWITCHES: Final = frozenset({"--metrics", "--no-slots", "--slots", "--offline", "--no-webui"})
_UNTIMED_VARIABLES: Final = frozenset({"LLAMA_ARG_HOST", "LLAMA_ARG_PORT", "LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE"})

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
        What was measured earlier; None: the server is to measure.
    """

    def __init__(self, lib: _native.Library, key: CostKey | None, store: CostStore) -> None:
        self._lib, self._key, self._store = lib, key, store
        self.stored = None if key is None else store.load(key)

    def find(self) -> WidthCosts | None:
        """Return stored costs, or those that the server has measured, which are stored. The model must be loaded."""
        if self.stored is not None:
            return self.stored
        measured = _native.Costs()
        self._lib.get_costs(ctypes.byref(measured))
        found = _as_costs(measured)
        if found is not None and self._key is not None:
            self._store.save(self._key, found)
        return found


def _as_costs(measured: Any) -> WidthCosts | None:
    if measured.n_past == 0:
        return None
    return WidthCosts(
        verify_us=tuple(measured.verify_us),
        draft_us=tuple(measured.draft_us),
        reject_us=measured.reject_us,
        mtp_prefill_us_per_token=measured.mtp_prefill_us_per_token,
        n_past=measured.n_past,
        source="sweep",
    )
