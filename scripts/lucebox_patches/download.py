"""Getting the source distribution with the ordinary pip client, and the cache of archives.

The cache is ``vendor/.cache/SHA256.tar.gz``. Its files are verified by whoever opens them, so a damaged one costs a
download and never a wrong tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .archive import file_sha256
from .errors import HashMismatchError, ToolError
from .pin import Pin

_LOG_LINES_SHOWN = 15


def cached_archive(cache: Path, pin: Pin) -> Path | None:
    """Return the pinned archive in the cache, or None if it is absent or damaged."""
    path = cache / f"{pin.sha256}.tar.gz"
    try:
        with path.open("rb") as file:
            return path if file_sha256(file) == pin.sha256 else None
    except FileNotFoundError:
        return None


def store_archive(source: Path, cache: Path, pin: Pin) -> Path:
    """Copy an archive into the cache if it is the pinned one.

    Raises
    ------
    HashMismatchError
        If it is not; the cache is as before.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="incoming-", dir=cache) as directory:
        copy = Path(directory, "archive")
        shutil.copyfile(source, copy)
        with copy.open("rb") as file:
            found = file_sha256(file)
        if found != pin.sha256:
            raise HashMismatchError(str(source), "its sha256", pin.sha256, found)
        target = cache / f"{pin.sha256}.tar.gz"
        copy.replace(target)
    return target


def download_archive(cache: Path, pin: Pin, say: Callable[[str], None]) -> Path:
    """Download the pinned archive into the cache and return its path.

    pip reads an sdist's metadata by running its build code even when it only downloads. The requirement therefore
    carries the hash: pip refuses a wrong archive before it runs anything of it, and the cache verifies once more.
    ``--no-binary`` names this one package, because for all packages pip would also build the build tools.

    Parameters
    ----------
    cache
        Cache directory; made if absent.
    pin
        What to download.
    say
        Takes one line of progress.

    Raises
    ------
    ToolError
        If there is no pip or it fails, for example without network.
    HashMismatchError
        If what came is not the pinned archive.
    """
    remedy = (
        "check the network and pip's settings, or get the archive on another machine and run "
        "`lucebox-patches fetch --archive FILE`"
    )
    pip = find_pip()
    say(f"downloading {pin.package} with pip")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=cache) as directory:
        requirement = Path(directory, "requirement.txt")
        requirement.write_text(f"{pin.package} --hash=sha256:{pin.sha256}\n", encoding="utf-8")
        target = Path(directory, "files")
        options = ["--no-deps", "--require-hashes", "--no-binary", pin.name, "--no-input"]
        command = [*pip, "download", *options, "--dest", str(target), "--requirement", str(requirement)]
        done = subprocess.run(
            command, env=_pip_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        )
        files = sorted(target.glob("*")) if target.is_dir() else []
        if done.returncode != 0 or len(files) != 1:
            log = "\n".join(done.stdout.strip().splitlines()[-_LOG_LINES_SHOWN:])
            seen = f"pip exited with {done.returncode} and left {len(files)} file(s); its last lines:\n{log}"
            raise ToolError("pip", f"{pin.package} could not be downloaded", seen, remedy)
        return store_archive(files[0], cache, pin)


def find_pip() -> list[str]:
    """Return the command line of a pip that works.

    The interpreter of an isolated build often has none, so the programs on ``PATH`` are tried too.

    Raises
    ------
    ToolError
        If none works.
    """
    tried: list[str] = []
    for command in _pip_candidates():
        tried.append(" ".join(command))
        try:
            done = subprocess.run([*command, "--version"], env=_pip_environment(), capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return command
    raise ToolError(
        "pip",
        "no pip was found to download the archive with",
        f"tried {', '.join(tried)}",
        "install pip (`python3 -m ensurepip`), or run `lucebox-patches fetch --archive FILE`",
    )


def _pip_candidates() -> Iterator[list[str]]:
    yield [sys.executable, "-m", "pip"]
    for name in ("pip", "pip3"):
        if program := shutil.which(name):
            yield [program]
    if program := shutil.which("python3"):
        yield [program, "-m", "pip"]


def _pip_environment() -> dict[str, str]:
    # An isolated build points PYTHONPATH at a directory that hides the site packages, pip among them. The two
    # selection settings are those this call makes itself; merged with another's `:all:` they would mean hours.
    dropped = {"PYTHONPATH", "PYTHONHOME", "PIP_NO_BINARY", "PIP_ONLY_BINARY"}
    environment = {key: value for key, value in os.environ.items() if key not in dropped}
    return environment | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
