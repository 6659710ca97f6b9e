"""Run upstream's llama-server in this process: ``python -m pylucebox._server_host ARGUMENTS OF llama-server``.

It is the patched server of this build, with every flag that llama-server has. The process must be made for it: the
server takes over signals and log, and what it asserts ends the process. `lucebox-serve` does so with a supervisor.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pylucebox import _ffi
from pylucebox._build import find_native_dir
from pylucebox._errors import LibraryNotFoundError

__all__ = ["PROGRAM_NAME", "host_server", "load_library", "main"]

PROGRAM_NAME = "llama-server"
"""What the server calls itself in its help and its messages."""

_STEM = "lucebox-server"


def host_server(arguments: Sequence[str | bytes]) -> int:
    """Run llama-server until SIGINT or SIGTERM and return its exit code.

    Call it from the main thread, once in a process.

    Parameters
    ----------
    arguments
        Its command line without the name of the program.

    Raises
    ------
    LibraryNotFoundError
        The native library or its server part is missing.
    BuildMismatchError
        The library belongs to another build than the Python files.
    """
    entry = load_library().lucebox_server_main
    call = [os.fsencode(argument) for argument in (PROGRAM_NAME, *arguments)]
    argv = (ctypes.c_char_p * (len(call) + 1))(*call, None)
    return int(entry(len(call), argv))


def load_library() -> ctypes.CDLL:
    """Return liblucebox-server, with the back ends of the package loaded and `lucebox_server_main` declared.

    Raises
    ------
    LibraryNotFoundError
        The native library or its server part is missing.
    BuildMismatchError
        The library belongs to another build than the Python files.
    """
    path = _library_path(find_native_dir() / "lib")
    _ffi.native()  # loads the back ends from the package; the server would look for them beside the Python executable
    try:
        library = ctypes.CDLL(str(path))
        entry = library.lucebox_server_main
    except (OSError, AttributeError) as error:
        raise LibraryNotFoundError(
            "cannot load the server",
            searched=[path],
            seen=str(error),
            advice="Build and install the package again with `pip install .` in the source folder.",
        ) from error
    entry.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    entry.restype = ctypes.c_int
    return library


def _library_path(directory: Path) -> Path:
    names = {"darwin": f"lib{_STEM}.dylib", "win32": f"{_STEM}.dll"}
    return directory / names.get(sys.platform, f"lib{_STEM}.so")


def main() -> int:
    """Run llama-server with the arguments of this process."""
    return host_server(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
