"""What this build can run on: back ends, devices, and how it was compiled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pylucebox import _ffi

__all__ = ["Backend", "Device", "SystemInfo", "device_names", "system_info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that can run the model.

    Attributes
    ----------
    name
        As `Engine` takes it.
    description, kind, backend
        What it is; `kind` is ``cpu``, ``gpu``, ``igpu``, ``accelerator`` or ``other``.
    memory_free_bytes, memory_total_bytes
        Memory; 0 when the back end does not say.
    """

    name: str
    description: str
    kind: str
    backend: str
    memory_free_bytes: int
    memory_total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A back end of ggml that is loaded.

    Attributes
    ----------
    name
        For example ``CPU``.
    features
        What it was compiled with and found, for example ``{"AVX2": "1"}``.
    """

    name: str
    features: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemInfo:
    """The native library as it was built and as it runs here.

    Attributes
    ----------
    version, upstream_build, series_hash
        Identity compiled into the library.
    compiler, build_type, cmake_args
        How it was compiled.
    backends, devices
        What was found on this machine.
    """

    version: str
    upstream_build: str
    series_hash: str
    compiler: str
    build_type: str
    cmake_args: str
    backends: tuple[Backend, ...]
    devices: tuple[Device, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def system_info() -> SystemInfo:
    """Return what the native library says of itself and this machine.

    Raises
    ------
    BuildError
        The library cannot be loaded, or belongs to another build than the Python files.
    """
    ffi, lib = native = _ffi.native()
    out = ffi.new("char **")
    _ffi.check(lib.lucebox_system_info(out), "cannot describe the system")
    found = json.loads(_ffi.take_string(native, out))
    return SystemInfo(
        version=_ffi.string(ffi, lib.lucebox_version()),
        upstream_build=_ffi.string(ffi, lib.lucebox_upstream_build()),
        series_hash=_ffi.string(ffi, lib.lucebox_series_hash()),
        compiler=found["compiler"],
        build_type=found["build_type"],
        cmake_args=found["cmake_args"],
        backends=tuple(Backend(name=entry["name"], features=entry["features"]) for entry in found["backends"]),
        devices=tuple(Device(**entry) for entry in found["devices"]),
    )


def device_names() -> tuple[str, ...]:
    """Return the names that `Engine` takes as `device`."""
    return ("auto", "cpu", *(device.name for device in system_info().devices))
