"""Look at the native library in a process of its own, for `lucebox doctor`.

A library built for another processor ends the process with an illegal instruction, a broken driver may hang it, and a
damaged model may make native code stop. The report must survive all of that and name it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

from pylucebox._backends import system_info
from pylucebox._errors import LuceboxError
from pylucebox.cli._io import error_document, plain
from pylucebox.cli._ports import EngineOptions, open_engine
from pylucebox.cli._system import loaded_libraries

TIMEOUT_S = 120

# The child imports the very package that the parent runs, whatever the working directory holds.
_BOOT = (
    "import json, sys; request = json.loads(sys.argv[1]); sys.path[:] = request.pop('sys_path');"
    " from pylucebox.cli._probe import child; child(**request)"
)


def probe(model: str | None, *, load: bool, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Load the native library in a child process and report what it says.

    Parameters
    ----------
    model
        Model to open; None is the built-in one.
    load
        Whether to open the model.
    timeout_s
        Longest wait, in seconds.

    Returns
    -------
    dict
        ``system`` (what the library says of itself), ``libraries`` (paths loaded) and ``engine`` (spec and model as
        opened, or None); ``native_error`` and ``engine_error`` hold an error as data, or None.
    """
    request = json.dumps({"sys_path": sys.path, "model": model, "load": load})
    blank: dict[str, Any] = {
        "system": None,
        "libraries": [],
        "engine": None,
        "native_error": None,
        "engine_error": None,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", _BOOT, request], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        message = f"loading the native library did not end within {timeout_s:g} s; a driver may hang"
        return blank | {"native_error": {"type": "Timeout", "message": message}}
    try:
        # Every line is a state of the report: the last one that was written whole counts.
        report: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        report = {}
    if done.returncode != 0:
        key = "engine_error" if report.get("system") else "native_error"
        tail = "\n".join(done.stderr.strip().splitlines()[-8:])
        message = f"the process {_ending(done.returncode)}" + (f"; its last words:\n{tail}" if tail else "")
        report[key] = {"type": "Crash", "message": message}
    return blank | report


def _ending(returncode: int) -> str:
    """Say how a process ended."""
    if returncode >= 0:
        return f"ended with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    hint = ": the library was built for another processor" if name == "SIGILL" else ""
    return f"was ended by {name}{hint}"


def child(model: str | None, *, load: bool) -> None:
    """Write the report, one JSON line per stage, so that a crash leaves what was known before it."""
    report: dict[str, Any] = {}
    try:
        report["system"] = plain(system_info())
        report["libraries"] = loaded_libraries()
    except LuceboxError as error:
        report["native_error"] = plain(error_document(error)["error"])
        load = False
    print(json.dumps(report), flush=True)
    if not load:
        return
    try:
        with open_engine(EngineOptions(model=model)) as engine:
            opened = {"spec": engine.spec, "dispatch": engine.dispatch.as_dict(), "model": engine.info}
            report["engine"] = plain(opened)
            report["libraries"] = loaded_libraries()
    except LuceboxError as error:
        report["engine_error"] = plain(error_document(error)["error"])
    print(json.dumps(report), flush=True)
