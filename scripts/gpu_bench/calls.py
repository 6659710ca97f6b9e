"""Counts of calls of the CUDA runtime in this process, where ``count_calls.c`` is loaded in front of it."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

__all__ = ["NAMES", "build", "counts"]

NAMES: Final = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cudaMemcpyAsync",
    "cudaMemcpy2DAsync",
    "cudaMemsetAsync",
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
    "cudaGraphInstantiate",
    "cudaGraphExecUpdate",
    "cudaGraphLaunch",
    "cudaLaunchKernel",
    "cudaMalloc",
    "cudaFree",
)


def build(folder: Path) -> Path:
    """Compile the counter into a folder and return the library."""
    library = folder / "libcount_calls.so"
    source = Path(__file__).with_name("count_calls.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@cache
def _counter() -> Any:
    function = getattr(ctypes.CDLL(None), "gpu_bench_n_calls", None)
    if function is not None:
        function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_long
    return function


def counts() -> dict[str, int]:
    """Return the calls so far by name; empty where nothing counts them."""
    function = _counter()
    return {} if function is None else {name: function(name.encode()) for name in NAMES}
