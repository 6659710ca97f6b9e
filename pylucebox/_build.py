"""Which build the Python files belong to, and whether the loaded library is of the same one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pylucebox._errors import BuildMismatchError, LibraryNotFoundError
from pylucebox._version import __version__

PACKAGE_DIR = Path(__file__).resolve().parent
BUILD_FILE = PACKAGE_DIR / "_build.json"
DEMO_MODEL = PACKAGE_DIR / "demo_model" / "tiny-qwen4exp-Q8_0.gguf"

_NOT_BUILT = "this copy of pylucebox was not built"
_HOW_TO_BUILD = "Build and install it with `pip install .` in the source folder."


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """Identity of a build: three texts that must agree between the Python files and the native library.

    Attributes
    ----------
    version
        Version of the package.
    upstream_build
        Build of llama.cpp, for example ``b11434``.
    series_hash
        Hash of the patch series the sources were patched with.
    """

    version: str
    upstream_build: str
    series_hash: str

    def __str__(self) -> str:
        return f"{self.version} (llama.cpp {self.upstream_build}, series {self.series_hash})"


def find_native_dir(package_dir: Path = PACKAGE_DIR) -> Path:
    """Return the folder with the native parts: the package's own, or that of the installed package.

    Python that is started in a source folder imports the package from there. It has no native parts then, but those of
    the installed package serve as well, if they are of the same version.

    Raises
    ------
    LibraryNotFoundError
        There are none.
    """
    searched = [package_dir]
    if not (package_dir / BUILD_FILE.name).is_file():
        installed = _installed_dir()
        if installed is not None and installed != package_dir:
            searched.append(installed)
    found = searched[-1]
    if not (found / BUILD_FILE.name).is_file():
        raise LibraryNotFoundError(_NOT_BUILT, searched=searched, seen=f"no {BUILD_FILE.name}", advice=_HOW_TO_BUILD)
    return found


def _installed_dir() -> Path | None:
    from importlib import metadata  # noqa: PLC0415 - slow, and only needed in a source folder

    try:
        return Path(str(metadata.distribution("pylucebox").locate_file("pylucebox"))).resolve()
    except metadata.PackageNotFoundError:
        return None


def recorded_build(native_dir: Path | None = None) -> BuildInfo:
    """Return the identity that the build wrote beside the native parts.

    Parameters
    ----------
    native_dir
        Their folder; None takes that of `find_native_dir`.

    Raises
    ------
    LibraryNotFoundError
        The file is missing or unreadable: the package was never built.
    """
    path = (native_dir or find_native_dir()) / BUILD_FILE.name
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return BuildInfo(
            version=str(content["version"]),
            upstream_build=str(content["upstream_build"]),
            series_hash=str(content["series_hash"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        seen = f"{type(error).__name__}: {error}"
        raise LibraryNotFoundError(_NOT_BUILT, searched=[path], seen=seen, advice=_HOW_TO_BUILD) from error


def require_same_build(recorded: BuildInfo, loaded: BuildInfo, library: Path, version: str = __version__) -> None:
    """Refuse a library of another build.

    Parameters
    ----------
    recorded
        What the build wrote beside the Python files.
    loaded
        What the loaded library says of itself.
    library
        File the library was loaded from.
    version
        Version of the Python files.

    Raises
    ------
    BuildMismatchError
        The two differ, or the Python files are of another version than the build.
    """
    if recorded != loaded:
        raise BuildMismatchError(expected=str(recorded), found=str(loaded), path=library)
    if recorded.version != version:
        raise BuildMismatchError(
            "the native library was built for another version of the Python files",
            expected=version,
            found=recorded.version,
            path=library,
            advice=_HOW_TO_BUILD,
        )
