"""What a session was measured on, and how the machine is doing between runs. Read-only and best effort.

Nothing here tells who or where: no host or user names, no home directories, no keys.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pylucebox._errors import LoadError
from pylucebox._version import __version__
from pylucebox.ab.codec import sha256_of
from pylucebox.ab.errors import EnvironmentMismatchError
from pylucebox.ab.records import Suite
from pylucebox.ab.results import SCHEMA
from pylucebox.cli import _system

__all__ = ["HostMachine", "differences", "environment", "file_facts", "redact", "require_same"]

_SECRET: Final = re.compile(r"(?i)(key|token|secret|password|authorization)")
_CHUNK_BYTES: Final = 1 << 22
_CPU_SENSORS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "amdgpu")


def redact(text: str) -> str:
    """Return `text` without the home directory and without user names in URLs."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    if home not in ("~", "/", ""):
        text = text.replace(home, "~")
    return re.sub(r"(?<=://)[^/@\s]+@", "", text)


def redact_command(words: Sequence[str]) -> list[str]:
    """Return a command line without what should not be shared: home directory and the values of keys."""
    out: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        if hide_next:
            out.append("***")
        elif equals and _SECRET.search(name):
            out.append(f"{name}=***")
        else:
            out.append(redact(word))
        hide_next = not equals and word.startswith("-") and _SECRET.search(word) is not None
    return out


def file_facts(path: Path, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Return name, size and SHA-256 of a file.

    Parameters
    ----------
    path
        The file.
    progress
        Called with the bytes read so far.

    Raises
    ------
    LoadError
        It cannot be read.
    """
    digest, n_bytes = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                n_bytes += len(chunk)
                if progress is not None:
                    progress(n_bytes)
    except OSError as error:
        raise LoadError(f"cannot read {path.name!r}", path=path, seen=error.strerror or str(error)) from error
    return {"name": path.name, "size_bytes": n_bytes, "sha256": digest.hexdigest()}


def environment(
    *,
    suite: Suite,
    native: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
    arms: Mapping[str, Mapping[str, Any]],
    command: Sequence[str],
    environ: Mapping[str, str],
    machine: Mapping[str, Any],
    root: Path = Path("/"),
) -> dict[str, Any]:
    """Describe everything that a result depends on.

    Parameters
    ----------
    suite
        The workloads.
    native
        `pylucebox.SystemInfo.as_dict`.
    files
        `file_facts` of model and MTP file.
    arms
        What is known of the builds behind single arms, by arm.
    command, environ
        Of this program.
    machine
        State at the start.
    root
        Root of the file system.

    Returns
    -------
    dict
        ``comparable`` must agree before two sessions are compared; ``build`` is what they may be compared for;
        ``informative`` is for people; ``sha256`` covers the first two.
    """
    cpu = _system.cpu_facts(root)
    devices = [{key: device[key] for key in ("name", "description", "backend")} for device in native["devices"]]
    comparable = {
        "os": _system.os_facts(),
        "cpu": {**cpu, "governor": _governor(root)},
        "memory_total_bytes": _system.memory_facts(root)["total_bytes"],
        "gpu": _system.gpu_facts(root),
        "devices": devices,
        "variables": {name: redact(value) for name, value in _system.env_facts(environ).items()},
        "files": [dict(facts) for facts in files],
        "suite": suite.name,
        "corpus": {"name": suite.corpus, "sha256": suite.corpus_sha256},
        "workloads": {workload.name: workload.sha256 for workload in suite.workloads},
    }
    build = {
        "version": __version__,
        **{key: native[key] for key in ("upstream_build", "series_hash", "compiler", "build_type", "cmake_args")},
        "backends": {backend["name"]: dict(backend["features"]) for backend in native["backends"]},
        "arms": {name: dict(facts) for name, facts in arms.items()},
    }
    return {
        "schema": SCHEMA,
        "comparable": comparable,
        "build": build,
        "informative": {"command": redact_command(command), "machine": dict(machine)},
        "sha256": sha256_of({"comparable": comparable, "build": build}),
    }


def differences(old: Any, new: Any, where: str = "") -> list[tuple[str, Any, Any]]:
    """Return the places in which two JSON values differ, as dotted names with both values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = []
        for key in sorted({*old, *new}):
            found += differences(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
        return found
    return [] if old == new else [(where, old, new)]


def require_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse to go on with a session in another environment.

    Raises
    ------
    EnvironmentMismatchError
        A field that results depend on differs.
    """
    found = [
        difference
        for group in ("comparable", "build")
        for difference in differences(old.get(group), new.get(group), group)
    ]
    if found:
        advice = "Start a new session with another --out; runs of both would not be comparable."
        raise EnvironmentMismatchError("the session cannot be resumed here", differences=found, advice=advice)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _numbers(paths: Iterable[Path]) -> list[float]:
    found = []
    for path in paths:
        text = _read(path)
        with suppress(TypeError, ValueError):
            found.append(float(text or ""))
    return found


def _governor(root: Path) -> str | None:
    return _read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


class HostMachine:
    """The machine that the session runs on.

    Parameters
    ----------
    root
        Root of the file system.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._nvidia_smi = shutil.which("nvidia-smi") if root == Path("/") else None

    def state(self) -> Mapping[str, Any]:
        """Return temperature, frequencies, energy, load and memory, as far as they can be read."""
        root = self._root
        cpus = root / "sys/devices/system/cpu"
        load = (_read(root / "proc/loadavg") or "").split()
        memory = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read(root / "proc/meminfo") or "", re.MULTILINE))
        limits = _numbers([cpus / "cpu0/cpufreq/scaling_max_freq"])
        current = _numbers(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
        # Micro-joules of the processor packages; only root may read them on many machines.
        energy = _numbers((root / "sys/class/powercap").glob("intel-rapl:[0-9]/energy_uj"))
        state: dict[str, Any] = {
            "temperature_c": self._temperature_c(),
            "cpu_mhz": round(sum(current) / len(current) / 1000) if current else None,
            "cpu_limit_mhz": round(limits[0] / 1000) if limits else None,
            "energy_j": sum(energy) / 1e6 if energy else None,
            "load1": float(load[0]) if load else None,
            "available_bytes": int(memory["MemAvailable"]) * 1024 if "MemAvailable" in memory else None,
            "swap_used_bytes": (int(memory.get("SwapTotal", 0)) - int(memory.get("SwapFree", 0))) * 1024,
        }
        gpu = self._gpu()
        return {**state, "gpu": gpu} if gpu else state

    def _temperature_c(self) -> float | None:
        """Return the hottest processor sensor; of all thermal zones where there is none."""
        sensors: list[Path] = []
        for hwmon in (self._root / "sys/class/hwmon").glob("hwmon*"):
            if _read(hwmon / "name") in _CPU_SENSORS:
                sensors += hwmon.glob("temp*_input")
        found = _numbers(sensors or (self._root / "sys/class/thermal").glob("thermal_zone*/temp"))
        return max(found) / 1000.0 if found else None

    def _gpu(self) -> list[dict[str, float | None]]:
        """Return clock, power cap and temperature of each GPU."""
        found = []
        for hwmon in sorted((self._root / "sys/class/drm").glob("card[0-9]/device/hwmon/hwmon*")):
            values = [_numbers([hwmon / name]) for name in ("freq1_input", "power1_cap", "temp1_input")]
            scaled = zip(values, (1e6, 1e6, 1e3), strict=True)
            clock, power, heat = (value[0] / unit if value else None for value, unit in scaled)
            found.append({"clock_mhz": clock, "power_cap_w": power, "temperature_c": heat})
        if self._nvidia_smi is not None:
            fields = "clocks.sm,power.limit,temperature.gpu"
            command = [self._nvidia_smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
            with suppress(OSError, subprocess.SubprocessError, ValueError):
                out = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
                for line in out.splitlines():
                    clock, power, heat = (float(word) for word in line.split(","))
                    found.append({"clock_mhz": clock, "power_cap_w": power, "temperature_c": heat})
        return found
