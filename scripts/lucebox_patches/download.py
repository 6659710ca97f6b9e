"""Getting source distributions with the ordinary pip client, and the cache of archives.

The cache is ``vendor/.cache/SHA256.tar.gz``. Its files are verified by whoever opens them, so a damaged one costs a
download and never a wrong tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .archive import file_sha256
from .errors import HashMismatchError, ToolError
from .layout import Say

_LOG_LINES_SHOWN = 15


def cached_archive(cache: Path, sha256: str) -> Path | None:
    """Return the archive with this hash in the cache, or None if it is absent or damaged."""
    path = cache / f"{sha256}.tar.gz"
    return path if path.is_file() and _sha256(path) == sha256 else None


def store_archive(source: Path, cache: Path, sha256: str = "") -> tuple[Path, str]:
    """Copy an archive into the cache and return its path there and its hash.

    Raises
    ------
    HashMismatchError
        If it is not the one with `sha256`; the cache is as before.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="incoming-", dir=cache) as directory:
        copy = Path(directory, "archive")
        shutil.copyfile(source, copy)
        found = _sha256(copy)
        if sha256 and found != sha256:
            raise HashMismatchError(str(source), "its sha256", sha256, found)
        return copy.replace(cache / f"{found}.tar.gz"), found


def download_archive(cache: Path, requirement: str, sha256: str, say: Say) -> tuple[Path, str, str]:
    """Download a source distribution into the cache.

    pip reads an sdist's metadata by running its build code even when it only downloads. A requirement with a hash is
    refused before anything of a wrong archive runs, and the cache verifies once more. ``--no-binary`` names this one
    package, because for all packages pip would also build the build tools.

    Parameters
    ----------
    cache
        Cache directory; made if absent.
    requirement
        Package, with or without a version; without one the newest comes.
    sha256
        What the archive must be; empty accepts what the index names.
    say
        Takes one line of progress.

    Returns
    -------
    tuple
        Path in the cache, hash, and the file name that the index gave it.

    Raises
    ------
    ToolError
        If there is no pip or it fails, for example without network.
    HashMismatchError
        If what came is not the wanted archive.
    """
    pip = find_pip()
    say(f"downloading {requirement} with pip")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=cache) as directory:
        listing, target = Path(directory, "requirement.txt"), Path(directory, "files")
        listing.write_text(requirement + (f" --hash=sha256:{sha256}" if sha256 else "") + "\n", encoding="utf-8")
        name = requirement.partition("==")[0]
        options = ["--no-deps", "--no-binary", name, *(["--require-hashes"] if sha256 else [])]
        done = subprocess.run(
            [*pip, "download", *options, "--no-input", "--dest", str(target), "--requirement", str(listing)],
            env=_pip_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        files = sorted(target.glob("*")) if target.is_dir() else []
        if done.returncode != 0 or len(files) != 1:
            log = "\n".join(done.stdout.strip().splitlines()[-_LOG_LINES_SHOWN:])
            raise ToolError(
                "pip",
                f"{requirement} could not be downloaded",
                f"pip exited with {done.returncode} and left {len(files)} file(s); its last lines:\n{log}",
                "check the network and pip's settings, or get the archive on another machine and run "
                "`lucebox-patches fetch --archive FILE`",
            )
        return (*store_archive(files[0], cache, sha256), files[0].name)


def find_pip() -> list[str]:
    """Return the command line of a pip that works; raises `ToolError` if none does.

    The interpreter of an isolated build often has none, so the programs on ``PATH`` are tried too.
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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_sha256(file)


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
