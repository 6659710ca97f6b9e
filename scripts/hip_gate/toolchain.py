"""The compiler, and a directory that it takes for a ROCm installation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hip_gate.errors import ToolMissingError

ARCH = "gfx1151"
_ISA_VERSION = 11501  # how the device libraries write gfx1151
_ISA_TEMPLATE = "1030"  # Debian's device libraries end at RDNA2; the module differs by this one constant
LLVM_VERSION = 19
APT_PACKAGES = (f"clang-{LLVM_VERSION}", f"lld-{LLVM_VERSION}", f"llvm-{LLVM_VERSION}")
# Unpacked, never installed: they would bring an LLVM of their own.
HIP_PACKAGES = ("libamdhip64-dev", "rocm-device-libs")
STAND_INS = Path(__file__).resolve().parent / "include"

_PROGRAMS = ("clang++", "ld.lld", "llvm-as", "llvm-cxxfilt", "llvm-dis", "llvm-objdump", "llvm-readelf")


@dataclass(frozen=True)
class Toolchain:
    """Programs by their plain name, and the pretended ROCm installation."""

    programs: dict[str, str]
    rocm: Path

    def run(self, program: str, *arguments: str | Path, stdin: str | None = None) -> str:
        """Run one of the programs and return what it printed; a failure is the caller's to foresee."""
        command = [self.programs[program], *map(str, arguments)]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout


def find_programs() -> dict[str, str]:
    """Return the path of each program.

    Raises
    ------
    ToolMissingError
        Names the programs that are not there, and the packages that have them.
    """
    found = {name: shutil.which(f"{name}-{LLVM_VERSION}") for name in _PROGRAMS}
    missing = [f"{name}-{LLVM_VERSION}" for name, path in found.items() if path is None]
    if missing:
        raise ToolMissingError(
            "the gate needs Debian's LLVM", f"no {', '.join(missing)}", f"apt-get install {' '.join(APT_PACKAGES)}"
        )
    return {name: path for name, path in found.items() if path is not None}


def prepare(cache: Path, packages: Sequence[Path] = ()) -> Toolchain:
    """Return the toolchain, after making the pretended installation below `cache` if it is not there yet.

    Parameters
    ----------
    cache
        Directory that is kept between runs.
    packages
        Debian packages `HIP_PACKAGES` as files; without them apt downloads its own.

    Raises
    ------
    ToolMissingError
        If a program or a package cannot be had.
    """
    programs = find_programs()
    rocm = cache / "rocm"
    if not rocm.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            unready = _make_installation(Path(scratch), Toolchain(programs, rocm), packages)
            unready.rename(rocm)  # all or nothing, also for two runs at once
    return Toolchain(programs, rocm)


def _make_installation(scratch: Path, toolchain: Toolchain, packages: Sequence[Path]) -> Path:
    for package in packages or _download(scratch):
        _checked(["dpkg-deb", "-x", str(package.resolve()), str(scratch / "unpacked")], scratch)
    unpacked, rocm = scratch / "unpacked" / "usr", scratch / "rocm"
    bitcode = next(unpacked.glob("lib/*/amdgcn/bitcode"), None)
    if bitcode is None or not (unpacked / "include" / "hip").is_dir():
        raise ToolMissingError(
            "the packages of HIP are not as expected",
            "no include/hip or no amdgcn/bitcode in them",
            f"give the packages {' and '.join(HIP_PACKAGES)} of Debian 12 with --package",
        )
    shutil.copytree(unpacked / "include", rocm / "include")
    shutil.copytree(bitcode, rocm / "amdgcn" / "bitcode")
    # the driver believes in an installation when it finds a version, in one of two places
    version = "HIP_VERSION_MAJOR=5\nHIP_VERSION_MINOR=2\nHIP_VERSION_PATCH=3\n"
    for path in (rocm / "share" / "hip" / "version", rocm / "bin" / ".hipVersion"):
        path.parent.mkdir(parents=True)
        path.write_text(version, encoding="ascii")
    _derive_isa_module(toolchain, rocm / "amdgcn" / "bitcode")
    return rocm


def _derive_isa_module(toolchain: Toolchain, bitcode: Path) -> None:
    text = toolchain.run("llvm-dis", bitcode / f"oclc_isa_version_{_ISA_TEMPLATE}.bc", "-o", "-")
    derived, n = re.subn(r"constant i32 10300\b", f"constant i32 {_ISA_VERSION}", text)
    if n != 1:
        raise ToolMissingError(
            "the device libraries cannot be extended", f"{n} constants of the ISA version where one was expected",
            "use rocm-device-libs of Debian 12",
        )  # fmt: skip
    target = bitcode / f"oclc_isa_version_{ARCH.removeprefix('gfx')}.bc"
    toolchain.run("llvm-as", "-", "-o", target, stdin=derived)


def _download(scratch: Path) -> list[Path]:
    remedy = f"run apt-get update, or give {' and '.join(HIP_PACKAGES)} as files with --package"
    if shutil.which("apt-get") is None:
        raise ToolMissingError("the HIP headers cannot be downloaded", "this is no Debian: there is no apt-get", remedy)
    _checked(["apt-get", "download", "-qq", *HIP_PACKAGES], scratch, remedy)
    return sorted(scratch.glob("*.deb"))


def _checked(command: Sequence[str], directory: Path, remedy: str = "see the message") -> None:
    try:
        environment = {**os.environ, "LC_ALL": "C"}
        subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True, env=environment)
    except FileNotFoundError as error:
        raise ToolMissingError(f"{command[0]} cannot be run", str(error), "install it") from error
    except subprocess.CalledProcessError as error:
        raise ToolMissingError(" ".join(command[:2]) + " failed", error.stderr.strip()[-500:], remedy) from error
