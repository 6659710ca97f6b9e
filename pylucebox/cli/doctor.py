"""`lucebox doctor`: one page about the installation, the machine and a model, to paste into an issue."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pylucebox._backends import Backend, Device
from pylucebox._build import DEMO_MODEL, recorded_build
from pylucebox._dispatch import Promise, back_end, decide_spec, dispatch
from pylucebox._errors import LuceboxError
from pylucebox._sidecar import find_sidecar
from pylucebox._spec import SpecState
from pylucebox._version import __version__
from pylucebox.cli import _system
from pylucebox.cli._args import Parser, add_json
from pylucebox.cli._io import error_document, plain, print_json
from pylucebox.cli._ports import EngineFactory
from pylucebox.cli._probe import probe

SUMMARY = "report on the installation, the machine and a model"
DESCRIPTION = (
    "Print one page to paste into an issue: versions and build, back ends and devices, processor and threads, GPU"
    " drivers, the environment variables that matter, and whether MTP can be used with a model and why. Reads only."
    " Works with a broken installation, too; exit status 1 says that something is broken."
)
SCHEMA = 1


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    parser.add_argument("--model", "-m", metavar="FILE", help="GGUF model to report on (default: the built-in one)")
    parser.add_argument(
        "--load",
        action="store_true",
        help="open the model for real and not only read its headers; needs the memory that running it needs"
        " (default: headers only, but the built-in model is always opened)",
    )
    add_json(parser)


def run(args: argparse.Namespace, factory: EngineFactory) -> int:  # noqa: ARG001 - opens engines in a child process
    """Print the report.

    Returns
    -------
    int
        0 if all is in order, 1 if the native library, the model or the engine failed.
    """
    report = collect(args.model, load=args.load or args.model is None)
    if args.json:
        print_json(report)
    else:
        print(page(report))
    return 0 if report["ok"] else 1


def collect(model: str | None, *, load: bool) -> dict[str, Any]:
    """Gather the report.

    Parameters
    ----------
    model
        Path of a model; None is the built-in one.
    load
        Whether to open it; if not, `spec` is what its headers let expect.

    Returns
    -------
    dict
        Plain data. Paths in the home directory begin with ``~``, since a report is made to be shared.
    """
    seen = probe(model, load=load)
    build = _recorded()
    system = seen["system"] or {}
    os_facts, cpu, gpu = _system.os_facts(), _system.cpu_facts(), _system.gpu_facts()
    backends = [str(backend["name"]) for backend in system.get("backends", [])]
    report = {
        "schema": SCHEMA,
        "ok": True,
        "version": __version__,
        "upstream_build": build.get("upstream_build"),
        "series_hash": build.get("series_hash"),
        "build": build | {key: system[key] for key in ("compiler", "build_type", "cmake_args") if key in system},
        "native": {"ok": seen["native_error"] is None, "error": seen["native_error"]},
        "backends": backends,
        "devices": system.get("devices", []),
        "cpu_variant": _system.cpu_variant(seen["libraries"]),
        "backend_features": {backend["name"]: backend["features"] for backend in system.get("backends", [])},
        "libraries": seen["libraries"],
        **_model_facts(model, seen, loaded=load),
        "os": os_facts,
        "cpu": cpu,
        "memory": _system.memory_facts(),
        "gpu": gpu,
        "environment": _system.env_facts(os.environ),
        "hints": _system.hints(cpu, gpu, str(os_facts["kernel"]), backends),
    }
    report["ok"] = not (seen["native_error"] or report["model_error"] or report["engine_error"])
    shared: dict[str, Any] = _without_home(plain(report))
    return shared


def _recorded() -> dict[str, Any]:
    """Return what the build wrote beside the native parts; empty when the package was never built."""
    try:
        return asdict(recorded_build())
    except LuceboxError:
        return {}


def _model_facts(model: str | None, seen: dict[str, Any], *, loaded: bool) -> dict[str, Any]:
    """Say which MTP block belongs to the model and whether drafts are made."""
    path = Path(model) if model is not None else DEMO_MODEL
    facts: dict[str, Any] = {
        "model": {"path": str(path), "built_in": model is None},
        "model_error": None,
        "sidecar": None,
        "spec": None,
        "dispatch": None,
        "spec_is_expectation": True,
        "engine_error": seen["engine_error"],
    }
    try:
        verdict = find_sidecar(path)
    except LuceboxError as error:
        return facts | {"model_error": error_document(error)["error"]}
    facts["sidecar"] = verdict.as_dict()
    if seen["engine"]:
        facts["model"] |= seen["engine"]["model"]
        found = {key: seen["engine"][key] for key in ("spec", "dispatch")}
        return facts | found | {"spec_is_expectation": False}
    if loaded:
        return facts  # it could not be opened, so nothing is expected of it
    expected = decide_spec(verdict, verify_width=0)
    return facts | {"spec": expected.as_dict(), "dispatch": _expected_dispatch(expected, seen["system"])}


def _expected_dispatch(spec: SpecState, system: dict[str, Any] | None) -> dict[str, Any] | None:
    """Say which path an engine with the default arguments would take; None if the native library is broken."""
    if system is None:
        return None
    backends = [Backend(**entry) for entry in system["backends"]]
    devices = [Device(**entry) for entry in system["devices"]]
    return dispatch(spec, back_end(backends, devices, "auto", -1), verify_width=0, n_seq=1).as_dict()


def _without_home(value: Any) -> Any:
    """Replace the home directory in all texts, so that a shared report does not name the user."""
    home = str(Path.home())
    if isinstance(value, str):
        return value.replace(home, "~") if len(home) > 1 else value
    if isinstance(value, dict):
        return {key: _without_home(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_home(item) for item in value]
    return value


# ---- the page -------------------------------------------------------------------------------------------------------


def page(report: dict[str, Any]) -> str:
    """Write the report as text; plain on terminals, too, because it is made to be pasted."""
    sections = [
        ("pylucebox", _package_lines(report)),
        ("native library", _native_lines(report)),
        ("model", _model_lines(report)),
        ("machine", _machine_lines(report)),
        ("environment", [f"{name}={value}" for name, value in report["environment"].items()] or ["nothing set"]),
        ("hints", [f"{hint['code']}: {hint['text']}" for hint in report["hints"]] or ["none"]),
    ]
    lines = []
    for title, content in sections:
        lines += [title, *(f"  {line}" for entry in content for line in entry.splitlines()), ""]
    lines.append("everything is in order" if report["ok"] else "SOMETHING IS BROKEN, see the lines with 'error' above")
    return "\n".join(lines)


def _package_lines(report: dict[str, Any]) -> list[str]:
    known = ("version", "upstream_build", "series_hash")
    lines = [
        f"version {report['version']}",
        f"upstream {report['upstream_build'] or 'unknown'}, patch series {report['series_hash'] or 'unknown'}",
    ]
    return lines + [f"{key}: {_short(value) or 'none'}" for key, value in report["build"].items() if key not in known]


def _native_lines(report: dict[str, Any]) -> list[str]:
    error = report["native"]["error"]
    if error:
        lines = [f"error: {error['message']}"]
        return lines + [f"searched: {path}" for path in error.get("searched", [])]
    lines = [
        f"back ends: {', '.join(report['backends']) or 'none'}",
        f"CPU variant: {report['cpu_variant'] or 'unknown'}",
    ]
    for device in report["devices"]:
        memory = f"{_gib(device.get('memory_free_bytes'))} free of {_gib(device.get('memory_total_bytes'))}"
        lines.append(f"device {device.get('name')}: {device.get('description')} ({device.get('kind')}), {memory}")
    lines += [f"{name} features: {_short(features)}" for name, features in report["backend_features"].items()]
    return lines + [f"loaded: {path}" for path in report["libraries"]]


def _model_lines(report: dict[str, Any]) -> list[str]:
    model, sidecar, spec, path = report["model"], report["sidecar"], report["spec"], report["dispatch"]
    lines = [f"{model['path']}{' (built in)' if model['built_in'] else ''}"]
    lines += [f"error: {error['message']}" for error in (report["model_error"], report["engine_error"]) if error]
    if sidecar:
        verdict = "accepted" if sidecar["accepted"] else "not used"
        lines.append(f"MTP block: {verdict} ({sidecar['reason_code']}), {sidecar['kind']}: {sidecar['reason']}")
        lines.append(f"MTP file: {sidecar['path'] or 'none'}")
        lines += [
            f"candidate {candidate['path']}: {candidate['reason_code']}, {candidate['reason']}"
            for candidate in sidecar["candidates"]
        ]
        lines += [f"looked for {place}" for place in sidecar["looked_for"]]
    if spec:
        state = "on" if spec["effective"] else "off"
        expected = " (expected from the headers; --load opens the model)" if report["spec_is_expectation"] else ""
        lines.append(f"drafting: {state}{expected} ({spec['reason_code']}): {spec['reason']}")
    if path:
        lines.append(f"verifying: {_PROMISES[Promise(path['promise'])]}: {path['reason']}")
        lines += [f"note: {note}" for note in path["notes"]]
    return lines


_PROMISES = {
    Promise.NO_DRAFTS: "nothing to verify",
    Promise.BITS: "the same text as without drafts, always",
    Promise.UNVERIFIED: "NOT VERIFIED to give the same text as without drafts",
}


def _machine_lines(report: dict[str, Any]) -> list[str]:
    system, cpu, memory, gpu = report["os"], report["cpu"], report["memory"], report["gpu"]
    quota = "unlimited" if cpu["cgroup_cpus"] is None else f"{cpu['cgroup_cpus']:g}"
    return [
        f"{system['system']} {system['kernel']} {system['machine']}, {system['libc'] or 'libc unknown'}",
        f"{system['python_implementation']} {system['python']}",
        f"CPU: {cpu['model'] or 'unknown'}",
        f"CPU features: {' '.join(cpu['features']) or 'unknown'}",
        f"CPUs: {cpu['logical_cpus']} logical, {cpu['affinity_cpus']} allowed on {cpu['affinity_cores']} cores,"
        f" container limit {quota}; threads by default: {cpu['threads_default']}",
        f"memory: {_gib(memory['available_bytes'])} available of {_gib(memory['total_bytes'])}",
        f"AMD: targets {', '.join(gpu['amd_targets']) or 'none'}, /dev/kfd {gpu['kfd'] or 'absent'},"
        f" ROCm {gpu['rocm_version'] or 'absent'}, amdgpu driver {gpu['amdgpu'] or 'absent'}",
        f"NVIDIA driver: {gpu['nvidia_driver'] or 'absent'}",
        f"Vulkan drivers: {', '.join(gpu['vulkan_drivers']) or 'none'}",
    ]


def _gib(n_bytes: object) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if isinstance(n_bytes, (int, float)) else "unknown"


def _short(value: object) -> str:
    """One line of text for a value of the build record."""
    if isinstance(value, dict):
        return " ".join(f"{key}={_short(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(_short(item) for item in value)
    return str(value)
