"""Compiling one source for the host and for the GPU."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from hip_gate.sources import DEFAULT_KV_TYPES, SOURCE_DIR
from hip_gate.toolchain import ARCH, STAND_INS, Toolchain

_KV_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16")
_DEFINITIONS = (
    "GGML_USE_HIP", "__HIP_PLATFORM_AMD__", "GGML_HIP_GRAPHS", "GGML_HIP_NO_VMM", "GGML_BACKEND_BUILD",
    "GGML_BACKEND_SHARED", "GGML_SHARED", "GGML_SCHED_MAX_COPIES=4", "_GNU_SOURCE", "_XOPEN_SOURCE=600", "NDEBUG",
)  # fmt: skip
# as the HIP build has them; what clang cannot unroll is known, and hip's functions are not marked as upstream expects
_OPTIONS = ("-x", "hip", "-O3", "-std=gnu++17", "-fPIC", "-Wno-pass-failed", "-Wno-unused-result")
_MAX_ERROR_LINES = 12


@dataclass(frozen=True)
class Compiled:
    """What came of one source."""

    source: Path
    code_object: Path
    seconds: float
    error: str  # the compiler's first messages, empty if both compilations passed


def compile_source(toolchain: Toolchain, tree: Path, source: Path, output: Path) -> Compiled:
    """Compile `source`, relative to `tree`, for the host and for the GPU; files go to `output`."""
    start = time.monotonic()
    code_object = output / f"{source.stem}.co"
    common = [toolchain.programs["clang++"], *_flags(toolchain, tree), "-c", str(tree / source)]
    error = ""
    # one side at a time: together the compiler would generate the device code for the host's object once more
    for side, target in (
        (("--cuda-device-only", "--no-gpu-bundle-output"), code_object),
        (("--cuda-host-only",), output / f"{source.stem}.o"),
    ):
        result = subprocess.run([*common, *side, "-o", str(target)], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            error = f"{side[0][7:]}:\n{_first_messages(result.stderr)}"
            break
    return Compiled(source, code_object, time.monotonic() - start, error)


def _flags(toolchain: Toolchain, tree: Path) -> list[str]:
    includes = (STAND_INS, tree / "ggml/include", tree / "ggml/src", tree / SOURCE_DIR)
    kv_types = [
        f"GGML_CUDA_FA_{key}_{value}={int((key.lower(), value.lower()) in DEFAULT_KV_TYPES)}"
        for key in _KV_TYPES
        for value in _KV_TYPES
    ]
    return [
        *_OPTIONS,
        f"--offload-arch={ARCH}",
        f"--rocm-path={toolchain.rocm}",
        f"--hip-path={toolchain.rocm}",
        *(f"-I{path}" for path in includes),
        *(f"-D{definition}" for definition in (*_DEFINITIONS, *kv_types, 'GGML_CUDA_FA_QUANTS="default"')),
    ]


def _first_messages(text: str) -> str:
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if "error:" in line), 0)
    return "\n".join(lines[first : first + _MAX_ERROR_LINES])
