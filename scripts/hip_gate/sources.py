"""Which sources a run compiles."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hip_gate.errors import UsageError

SOURCE_DIR = Path("ggml/src/ggml-cuda")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_TARGET = re.compile(r"^\+\+\+ b/(\S+)", re.MULTILINE)
# The key/value types of flash attention that CMake builds by default, of all that have an instance.
_VEC_INSTANCE = re.compile(r"fattn-vec-instance-(\w+)-(\w+)\.cu$")
DEFAULT_KV_TYPES = frozenset({("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("bf16", "bf16")})


def all_sources(tree: Path) -> list[Path]:
    """Return every source that a HIP build with default options compiles, relative to `tree`."""
    found = sorted((tree / SOURCE_DIR).glob("*.cu")) + sorted((tree / SOURCE_DIR).glob("template-instances/*.cu"))
    if not found:
        raise UsageError("there is nothing to compile", f"no *.cu in {tree / SOURCE_DIR}", "run lucebox-patches apply")
    return [path.relative_to(tree) for path in found if _built_by_default(path)]


def changed_sources(tree: Path, patches: Iterable[Path]) -> list[Path]:
    """Return the sources that the patches touch, and those that include a header that they touch."""
    touched = {Path(name) for patch in patches for name in _TARGET.findall(patch.read_text(encoding="utf-8"))}
    includes = {path: _included(tree, path) for path in _all_files(tree)}
    reached = {path for path in touched if path in includes}
    while True:
        more = {path for path, headers in includes.items() if headers & reached} - reached
        if not more:
            break
        reached |= more
    return [path for path in all_sources(tree) if path in reached]


def named_sources(tree: Path, names: Iterable[str]) -> list[Path]:
    """Return the sources with these names, as the paths in the tree or as plain file names."""
    chosen = []
    for name in names:
        matches = [path for path in all_sources(tree) if name in (str(path), path.name, path.stem)]
        if not matches:
            raise UsageError("no such source", name, f"name a file of {SOURCE_DIR}, such as mmvq.cu")
        chosen += matches
    return chosen


def _built_by_default(path: Path) -> bool:
    match = _VEC_INSTANCE.search(path.name)
    return match is None or (match[1], match[2]) in DEFAULT_KV_TYPES


def _all_files(tree: Path) -> list[Path]:
    root = tree / SOURCE_DIR
    return [path.relative_to(tree) for path in root.rglob("*") if path.suffix in (".cu", ".cuh", ".h")]


def _included(tree: Path, path: Path) -> set[Path]:
    names = _INCLUDE.findall((tree / path).read_text(encoding="utf-8"))
    # a header lies beside the file or in the directory of all sources, which is on the search path
    candidates = {
        (tree / base / name).resolve() for name in names for base in (path.parent, SOURCE_DIR, SOURCE_DIR.parent)
    }
    root = tree.resolve()
    return {found.relative_to(root) for found in candidates if found.is_file() and found.is_relative_to(root)}
