"""The traces that come with the package."""

from __future__ import annotations

import functools
from importlib import resources

from pylucebox.sim.trace import Trace
from pylucebox.sim.trace_file import SUFFIX, read_trace

__all__ = ["recorded"]


@functools.cache
def recorded() -> tuple[Trace, ...]:
    """Return the traces of the built-in model, by name.

    Raises
    ------
    LoadError
        A file in the package is damaged.
    """
    folder = resources.files("pylucebox.sim").joinpath("data/traces")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(SUFFIX))
    traces = []
    for name in names:
        with resources.as_file(folder.joinpath(name)) as path:
            traces.append(read_trace(path))
    return tuple(traces)
