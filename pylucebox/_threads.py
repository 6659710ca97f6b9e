"""How many threads a decode step should use when nobody says so."""

from __future__ import annotations

import os
from pathlib import Path

_CPU_DIR = Path("/sys/devices/system/cpu")
_CGROUP_DIR = Path("/sys/fs/cgroup")
_CGROUP_FILE = Path("/proc/self/cgroup")


def default_threads() -> int:
    """Return the physical cores this process may keep busy, at least 1.

    A decode step is bound by memory bandwidth, so a second hardware thread of a core adds nothing; and ggml's workers
    spin at their barriers, so a thread more than the machine grants costs far more than a thread less.
    """
    if hasattr(os, "sched_getaffinity"):
        cpus = frozenset(os.sched_getaffinity(0))
    else:
        cpus = frozenset(range(os.cpu_count() or 1))
    cores = physical_cores(cpus, _CPU_DIR)
    quota = cgroup_quota(_CGROUP_DIR, _CGROUP_FILE)
    return max(1, cores if quota is None else min(cores, int(quota)))


def physical_cores(cpus: frozenset[int], cpu_dir: Path) -> int:
    """Return how many distinct cores the logical `cpus` lie on.

    Parameters
    ----------
    cpus
        Numbers of the logical processors the process may run on.
    cpu_dir
        The kernel's ``/sys/devices/system/cpu``. A processor whose topology cannot be read counts as a core.
    """
    cores: set[str] = set()
    for cpu in cpus:
        try:
            core = (cpu_dir / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text(encoding="ascii").strip()
        except OSError:
            core = ""
        cores.add(core or f"cpu{cpu}")
    return len(cores)


def cgroup_quota(cgroup_dir: Path, cgroup_file: Path) -> float | None:
    """Return the processor time granted by control groups (version 2), in processors; None when unlimited.

    The limit of every group from the process's own up to the root applies, so the smallest counts.
    """
    try:
        lines = cgroup_file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    group = next((line[3:] for line in lines if line.startswith("0::")), None)
    if group is None:
        return None
    smallest: float | None = None
    here = Path(group.strip("/"))
    for level in (here, *here.parents):
        try:
            quota, period = (cgroup_dir / level / "cpu.max").read_text(encoding="ascii").split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            granted = int(quota) / int(period)
            smallest = granted if smallest is None else min(smallest, granted)
    return smallest
