"""The series of this repository: it keeps the rules, is in the form of `export`, and applies where it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "vendor" / ".cache" / "store.git").is_dir(),
    reason="this source tree has no store of upstream sources: it was unpacked from a source distribution",
)


@pytest.mark.parametrize("command", [["lint"], ["export", "--check"], ["apply", "--strict"]], ids=" ".join)
def test_the_series_passes(command: list[str]) -> None:
    tool = str(ROOT / "scripts" / "lucebox-patches")
    done = subprocess.run([sys.executable, tool, *command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["command"] == command[0]
