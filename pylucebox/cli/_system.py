"""Facts about the machine for `lucebox doctor`: read-only, best effort, without the native library.

Every reader takes the root of the file system, so that tests can lay out a machine of their own. A fact that cannot
be read is None or absent; nothing here raises for what it finds.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pylucebox._threads import cgroup_quota, default_threads, physical_cores

Facts = dict[str, object]

_CPU_FEATURES = (
    *("sse4_2", "avx", "f16c", "fma", "bmi2", "avx2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512vl", "avx512_vbmi", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "fphp", "i8mm", "bf16", "sve", "sve2", "sme"),
)
"""Kernel names of the features that ggml has kernels for."""

_ENV_PREFIXES = ("HSA_", "GGML_", "HIP_", "ROCR_", "LUCEBOX_")
_ENV_NAMES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OMP_PROC_BIND", "LD_LIBRARY_PATH", "LD_PRELOAD")

GFX1151_KERNEL_FLOOR = (6, 18, 4)
"""First kernel on which gfx1151 is reported to run without memory faults under load."""

_GFX1151_FIRMWARE = "linux-firmware of 2025-11-25 is reported broken on gfx1151; use an earlier or a later one"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def os_facts() -> Facts:
    """Operating system, kernel and Python."""
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "python": platform.python_version(),
        "python_implementation": platform.python_implementation(),
    }


def cpu_facts(root: Path = Path("/")) -> Facts:
    """Processor model, the features ggml can use, and how many threads make sense.

    ``threads_default`` is what the engine takes when nobody says otherwise; ``cgroup_cpus`` is None when unlimited.
    """
    info = _read(root / "proc/cpuinfo") or ""
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    present = frozenset(flags.group(1).split()) if flags else frozenset()
    logical = os.cpu_count() or 1
    affinity = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset(range(logical))
    return {
        "model": model.group(1).strip() if model else platform.processor() or None,
        "features": [name for name in _CPU_FEATURES if name in present],
        "logical_cpus": logical,
        "affinity_cpus": len(affinity),
        "affinity_cores": physical_cores(affinity, root / "sys/devices/system/cpu"),
        "cgroup_cpus": cgroup_quota(root / "sys/fs/cgroup", root / "proc/self/cgroup"),
        "threads_default": default_threads(),
    }


def memory_facts(root: Path = Path("/")) -> Facts:
    """Memory of the machine in bytes."""
    info = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read(root / "proc/meminfo") or "", re.MULTILINE))
    return {
        "total_bytes": int(info["MemTotal"]) * 1024 if "MemTotal" in info else None,
        "available_bytes": int(info["MemAvailable"]) * 1024 if "MemAvailable" in info else None,
    }


def gfx_name(target_version: int) -> str:
    """Name of an AMD target from the kernel's number.

    The kernel writes ``major * 10000 + minor * 100 + stepping`` (``gfx_target_version`` of the KFD topology); the
    name has minor and stepping as one hexadecimal digit each, so 110501 is gfx1151 and 90010 is gfx90a.
    """
    major, rest = divmod(target_version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}"


def gpu_facts(root: Path = Path("/")) -> Facts:
    """Find out what the machine offers to GPU back ends, without loading any of their libraries."""
    targets = []
    for node in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        found = re.search(r"^gfx_target_version (\d+)$", _read(node) or "", re.MULTILINE)
        if found and int(found.group(1)) > 0:  # 0 is a processor node
            targets.append(gfx_name(int(found.group(1))))
    kfd = root / "dev/kfd"
    rocm = _read(root / "opt/rocm/.info/version")
    amdgpu = _read(root / "sys/module/amdgpu/version")
    nvidia = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", _read(root / "proc/driver/nvidia/version") or "")
    drivers = [*(root / "usr/share/vulkan/icd.d").glob("*.json"), *(root / "etc/vulkan/icd.d").glob("*.json")]
    return {
        "amd_targets": targets,
        "kfd": None if not kfd.exists() else "accessible" if os.access(kfd, os.R_OK | os.W_OK) else "no permission",
        "rocm_version": rocm.strip() if rocm else None,
        "amdgpu": amdgpu.strip() if amdgpu else "of the kernel" if (root / "sys/module/amdgpu").is_dir() else None,
        "nvidia_driver": nvidia.group(1) if nvidia else None,
        "vulkan_drivers": sorted({path.stem for path in drivers}),
    }


def env_facts(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that change what the back ends do. Others are left out: a report is made to be shared."""
    return {
        name: value for name, value in sorted(environ.items()) if name.startswith(_ENV_PREFIXES) or name in _ENV_NAMES
    }


def loaded_libraries(root: Path = Path("/")) -> list[str]:
    """Paths of the ggml and llama libraries mapped into this process, sorted."""
    paths = {line.split(maxsplit=5)[-1].strip() for line in (_read(root / "proc/self/maps") or "").splitlines()}
    return sorted(path for path in paths if re.search(r"/lib(?:ggml|llama|lucebox)[^/]*\.so[^/]*$", path))


def cpu_variant(libraries: list[str]) -> str | None:
    """Which build of ggml's CPU code is in use.

    Parameters
    ----------
    libraries
        Paths of the libraries loaded, as `loaded_libraries` gives them.

    Returns
    -------
    str or None
        ``"native"`` for the single library of a source build, the variant (such as ``"haswell"``) when several were
        built and ggml chose one, None when none is loaded.
    """
    for path in libraries:
        found = re.match(r"libggml-cpu(?:-([\w-]+))?\.so", Path(path).name)
        if found:
            return found.group(1) or "native"
    return None


@dataclass(frozen=True)
class Hint:
    """Something about the machine that is known to hurt.

    Attributes
    ----------
    code
        Stable name.
    text
        What was seen and what to do.
    """

    code: str
    text: str


def hints(cpu: Facts, gpu: Facts, kernel: str, backends: list[str]) -> list[Hint]:
    """Known traps that the facts show.

    Parameters
    ----------
    cpu, gpu
        As `cpu_facts` and `gpu_facts` give them.
    kernel
        Kernel release.
    backends
        Names of the back ends that are loaded.
    """
    found: list[Hint] = []
    targets = gpu["amd_targets"]
    targets = targets if isinstance(targets, list) else []
    if "gfx1151" in targets:
        release = tuple(int(part) for part in re.findall(r"\d+", kernel)[:3])
        if release < GFX1151_KERNEL_FLOOR:
            floor = ".".join(map(str, GFX1151_KERNEL_FLOOR))
            found.append(Hint("kernel_too_old", f"gfx1151 with kernel {kernel}: update to {floor} or later"))
        found.append(Hint("firmware", _GFX1151_FIRMWARE))
    if gpu["kfd"] == "no permission":
        found.append(Hint("kfd_permission", "/dev/kfd may not be opened: add the user to the groups render and video"))
    names = {name.lower() for name in backends}
    if targets and not names & {"rocm", "hip", "vulkan"}:
        seen = ", ".join(targets)
        text = f"an AMD GPU ({seen}) is there, but this build has no HIP or Vulkan back end: the CPU computes"
        found.append(Hint("gpu_unused", text))
    if gpu["nvidia_driver"] and not names & {"cuda", "vulkan"}:
        text = "an NVIDIA driver is there, but this build has no CUDA or Vulkan back end: the CPU computes"
        found.append(Hint("gpu_unused", text))
    if cpu["cgroup_cpus"] is not None and isinstance(cpu["cgroup_cpus"], float) and cpu["cgroup_cpus"] < 1.0:
        found.append(Hint("cpu_quota", f"the container grants {cpu['cgroup_cpus']:g} of a CPU: speeds will jump"))
    return found
