"""The costs that an engine tells its policy: given, stored, or measured now."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal

from pylucebox._errors import InvalidArgumentError, LuceboxError
from pylucebox.calibration.store import CostKey, CostStore, devices_of, file_identity
from pylucebox.calibration.sweep import SweepOptions, measure_costs
from pylucebox.width import MAX_WIDTH, WidthCosts

if TYPE_CHECKING:
    from pylucebox._backends import SystemInfo
    from pylucebox._model import ModelInfo
    from pylucebox._open import EngineOptions
    from pylucebox._session import Session

__all__ = ["CostsWanted", "check_costs", "cost_key", "find_costs"]

CostsWanted = WidthCosts | Literal["auto"] | None

_log = logging.getLogger("pylucebox")


# Settings that change what a step takes.
_TIMED: Final = (
    "n_seq",
    "n_ubatch",
    "device",
    "n_gpu_layers",
    "flash_attn",
    "cache_type_k",
    "cache_type_v",
    "draft_chain",
    "coupled_drafts",
    "mtp_kv_in_trunk",
    "n_kept_graphs",
)


def check_costs(wanted: Any) -> None:
    """Raise InvalidArgumentError unless `wanted` is what `Engine` takes as `width_costs`."""
    if not (wanted is None or isinstance(wanted, WidthCosts) or (isinstance(wanted, str) and wanted == "auto")):
        raise InvalidArgumentError(argument="width_costs", value=wanted, allowed='a WidthCosts, "auto" or None')


def cost_key(options: EngineOptions, info: ModelInfo, n_threads: tuple[int, int], system: SystemInfo) -> CostKey | None:
    """Return what costs that are measured now belong to; None if a file of the model is no longer there.

    Parameters
    ----------
    options
        How the engine was opened.
    info
        Its model.
    n_threads
        Threads in force, of decode and of prefill.
    system
        Build and devices.
    """
    try:
        files = [file_identity(Path(path)) for path in (info.path, info.mtp_path) if path]
    except OSError as error:
        _log.info("the costs of widths cannot be stored: %s", error)
        return None
    settings = [(name, str(getattr(options, name))) for name in _TIMED]
    settings.append(("n_draft_vocab", str(info.n_draft_vocab)))
    return CostKey(
        model=tuple(files),
        settings=(*settings, ("n_threads", str(n_threads))),
        build=f"{system.version} {system.upstream_build} {system.series_hash}",
        device=devices_of(system.devices),
    )


def find_costs(
    session: Session, key: CostKey | None, store: CostStore, go_on: Callable[[float], bool] = lambda _fraction: True
) -> WidthCosts | None:
    """Return stored costs, or measure and store them.

    Parameters
    ----------
    session
        Clear, and clear afterwards.
    key
        What the costs belong to; None stores nothing.
    store
        Where.
    go_on
        As `measure_costs` takes it.

    Returns
    -------
    WidthCosts or None
        None if there are none and the measurement was ended or failed; that is logged and no error.
    """
    if session.max_width < MAX_WIDTH:
        return None
    stored = None if key is None else store.load(key)
    if stored is not None:
        return stored
    _log.info("timing verify steps of 1 to %d rows on this machine", MAX_WIDTH)
    began = perf_counter()
    try:
        found = measure_costs(session, SweepOptions(), go_on)
    except LuceboxError as error:
        _log.warning("the costs of widths could not be measured: %s", error)
        return None
    if found is None:
        _log.info("the costs of widths were not measured: ended before all were timed")
        return None
    _log.info("timed all widths in %.1f s", perf_counter() - began)
    if key is not None:
        store.save(key, found)
    return found
