"""Whether a build makes llama-server's web page: by the option, npm, and whether its sources are there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_PROGRAMS = ("-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF", "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF")

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")


def configure(folder: Path, option: str, *, npm: bool, sources: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the part of the build that decides, alone."""
    page = folder / "tools" / "ui"
    page.mkdir(parents=True)
    if sources:
        (page / "package.json").write_text("{}", encoding="utf-8")
    found = ("-DLUCEBOX_NPM=/bin/npm",) if npm else NO_PROGRAMS
    call = ["cmake", f"-DLUCEBOX_WEB_PAGE={option}", f"-DLUCEBOX_SOURCE_DIR={folder}", *found, "-P"]
    return subprocess.run([*call, str(ROOT / "cmake" / "web-page.cmake")], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("option", "npm", "sources", "made"),
    [
        ("AUTO", True, True, "ON"),
        ("AUTO", False, True, "OFF"),
        ("AUTO", True, False, "OFF"),
        ("ON", True, True, "ON"),
        ("OFF", True, True, "OFF"),
    ],
)
def test_page_is_made_where_it_can_be(tmp_path: Path, option: str, npm: bool, sources: bool, made: str) -> None:
    done = configure(tmp_path, option, npm=npm, sources=sources)
    assert done.returncode == 0, done.stderr
    assert f"pylucebox web page: {made}" in done.stdout


@pytest.mark.parametrize(("npm", "sources"), [(False, True), (True, False)])
def test_page_that_was_asked_for_and_cannot_be_made_stops_the_build(tmp_path: Path, npm: bool, sources: bool) -> None:
    done = configure(tmp_path, "ON", npm=npm, sources=sources)
    assert done.returncode != 0
    assert "Install Node.js with npm" in " ".join(done.stderr.split())


def test_the_page_is_made_by_default() -> None:
    assert "set(LUCEBOX_WEB_PAGE AUTO CACHE" in (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
