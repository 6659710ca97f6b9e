"""What lies in the built package, and that the documents say what CI does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pylucebox
from pylucebox._build import find_native_dir

ROOT = Path(__file__).resolve().parents[2]


def test_ci_runs_the_two_commands_that_the_readme_starts_with() -> None:
    block = re.search(r"^```\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert block is not None
    commands = block[1].strip().splitlines()
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert len(commands) == 2
    # CI draws no chart into the checkout; else the lines are the same
    assert [line.removesuffix(" --chart none") for line in script if line.startswith("pip install")] == commands


def test_libraries_come_once_each_and_under_one_name() -> None:
    names = sorted(path.name for path in (find_native_dir() / "lib").iterdir())
    stems = [name.split(".")[0] for name in names]
    assert len(stems) == len(set(stems)), f"a library is there under several names: {names}"
    assert {"liblucebox", "libllama", "libllama-common", "libmtmd", "liblucebox-server"} <= set(stems)


def test_libraries_find_each_other_whatever_the_environment_says(tmp_path: Path) -> None:
    """The extension loads with no search path set, and what it loads lies beside it."""
    code = (
        "import json, pylucebox._ffi as f; f.native();"
        "maps = open('/proc/self/maps').read();"
        "print(json.dumps(sorted({l.split()[-1] for l in maps.splitlines() if 'libllama' in l or 'libggml' in l})))"
    )
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(pylucebox.__file__).parents[1])}
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    loaded = [Path(path) for path in json.loads(done.stdout)]
    assert loaded
    assert {path.parent for path in loaded} == {find_native_dir() / "lib"}


def test_build_record_names_the_pinned_upstream_and_the_series() -> None:
    record = json.loads((find_native_dir() / "_build.json").read_text(encoding="utf-8"))
    pin = (ROOT / "vendor" / "upstream.toml").read_text(encoding="utf-8")
    assert record["version"] == pylucebox.__version__
    assert f'build = "{record["upstream_build"]}"' in pin
    status = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "lucebox-patches"), "status", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert record["series_hash"] == json.loads(status.stdout)["series_hash_short"]


def test_built_in_model_is_under_20_mb() -> None:
    files = list((Path(pylucebox.__file__).parent / "demo_model").rglob("*.gguf"))
    assert len(files) == 2
    assert sum(path.stat().st_size for path in files) < 20e6
