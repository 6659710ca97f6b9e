"""The command line of the gate."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hip_gate import float_work, resources
from hip_gate.compiler import Compiled, compile_source
from hip_gate.errors import EXIT_FOUND, EXIT_OK, GateError, UsageError
from hip_gate.sources import all_sources, changed_sources, named_sources
from hip_gate.toolchain import ARCH, Toolchain, prepare

_ROOT = Path(__file__).resolve().parents[2]
_EXPECTED = Path(__file__).resolve().parent / "EXPECTED"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the gate and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except GateError as error:
        print(f"hip-gate: error: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hip-gate",
        description=f"Compile GPU sources for {ARCH} and compare what their kernels need with the recorded table. "
        "Without names: the sources that patches/series changes.",
        epilog="exit codes: 0 passed, 1 something was found, 2 wrong call, 7 a program or package is missing",
    )
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="a source of ggml-cuda, for example mmvq.cu")
    parser.add_argument("--all", action="store_true", help="every source of a HIP build (ten minutes)")
    parser.add_argument("--record", action="store_true", help="write what is found to the table instead of comparing")
    parser.add_argument("--tree", type=Path, default=_ROOT / "vendor/llama.cpp", help="patched llama.cpp to compile")
    parser.add_argument("--expected", type=Path, default=_EXPECTED, help="the recorded table")
    parser.add_argument("--cache", type=Path, default=_ROOT / "build/hip-gate", help="headers of HIP, kept")
    parser.add_argument("--package", type=Path, action="append", default=[], help="one of HIP's, as a file")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="compilations at a time")
    return parser


def _run(options: argparse.Namespace) -> int:
    start = time.monotonic()
    sources = _chosen(options)
    if not sources:
        print("hip-gate: the series changes no GPU source")
        return EXIT_OK
    toolchain = prepare(options.cache, options.package)
    table = resources.read_table(options.expected) if options.expected.exists() else {}
    found: resources.Table = {}
    failed = 0
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(max(1, options.jobs)) as pool:
        jobs = [pool.submit(compile_source, toolchain, options.tree, source, Path(scratch)) for source in sources]
        for job in jobs:
            compiled = job.result()
            problems = _problems(toolchain, compiled, None if options.record else table, found)
            failed += bool(problems)
            print(f"{'FAIL' if problems else 'ok  '} {compiled.source.name} ({compiled.seconds:.0f} s)", flush=True)
            for problem in problems:
                print("     " + problem.replace("\n", "\n     "))
    if options.record and not failed:
        _record(options.expected, table, found, complete=options.all)
    print(f"hip-gate: {len(sources) - failed} of {len(sources)} sources pass, {time.monotonic() - start:.0f} s")
    return EXIT_FOUND if failed else EXIT_OK


def _chosen(options: argparse.Namespace) -> list[Path]:
    if options.sources and options.all:
        raise UsageError("the call is contradictory", "--all and names of sources", "leave one of them out")
    if options.all:
        return all_sources(options.tree)
    if options.sources:
        return named_sources(options.tree, options.sources)
    series = (_ROOT / "patches/series").read_text(encoding="utf-8").split("\n")
    names = [line for line in series if line.strip() and not line.startswith("#")]
    return changed_sources(options.tree, [_ROOT / "patches" / name for name in names])


def _problems(
    toolchain: Toolchain, compiled: Compiled, recorded: resources.Table | None, found: resources.Table
) -> list[str]:
    if compiled.error:
        return [f"does not compile for the {compiled.error}"]
    source = compiled.source.name
    needs = resources.read_code_object(toolchain, compiled.code_object)
    found.update({(source, template): value for template, value in needs.items()})
    problems = [] if recorded is None else list(resources.compare(recorded, source, needs))
    if source in float_work.SOURCES:
        problems += float_work.check(toolchain, compiled.code_object)
    return problems


def _record(path: Path, table: resources.Table, found: resources.Table, *, complete: bool) -> None:
    compiled = {source for source, _ in found}
    kept = {} if complete else {key: needs for key, needs in table.items() if key[0] not in compiled}
    resources.write_table(path, {**kept, **found})
    print(f"hip-gate: {path} has {len({**kept, **found})} templates")
