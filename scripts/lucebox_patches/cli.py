"""Command line of the patch tool.

Text for people goes to stderr; with ``--json`` exactly one JSON object goes to stdout, an ``error`` object included.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import workspace
from .errors import EXIT_ENVIRONMENT, EXIT_NOT_READY, EXIT_OK, PatchError
from .pin import Pin
from .series import Series
from .sync import Changes
from .workspace import Layout

_ROOT = Path(__file__).resolve().parents[2]
_MAX_PATHS_SHOWN = 10


def main(arguments: Sequence[str] | None = None, root: Path = _ROOT) -> int:
    """Run one command and return the exit code (see `errors`).

    Parameters
    ----------
    arguments
        Words after the program name; None takes those of the process.
    root
        Root of the checkout to work on.
    """
    options = _parser().parse_args(arguments)
    layout = Layout(root)
    try:
        code, data = _COMMANDS[options.command](layout, options)
    except PatchError as error:
        _say(f"error: {error}")
        code, data = error.exit_code, {"error": error.as_dict()}
    except OSError as error:
        _say(f"error: {options.command} failed: {error}")
        code, data = EXIT_ENVIRONMENT, {"error": {"type": "OSError", "seen": str(error), "exit_code": EXIT_ENVIRONMENT}}
    if options.json:
        print(json.dumps({"command": options.command, **data}, indent=1))
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lucebox-patches",
        description="Fetch the llama.cpp pinned in vendor/upstream.toml and keep vendor/llama.cpp equal to it plus "
        "patches/series.",
        epilog="Exit codes: 0 done; 1 status: the tree is not ready; 2 usage or series; 3 pin or hash; 5 changes made "
        "by hand would be lost; 6 a patch does not apply; 7 git, pip, network or disk.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="get the pinned archive; unpack it if there is no tree")
    fetch.add_argument("--archive", type=Path, metavar="FILE", help="take this archive instead of downloading it")
    apply = commands.add_parser("apply", help="make the tree the pinned base plus the series; no-op when up to date")
    apply.add_argument("--fetch", action="store_true", help="download the archive if it is needed and not cached")
    apply.add_argument(
        "--force-clean", action="store_true", help="make the tree anew and discard changes made in it by hand"
    )
    status = commands.add_parser("status", help="tell the state; exit code 0 only if a build can use the tree")
    for command in (fetch, apply, status):
        command.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    return parser


def _fetch(layout: Layout, options: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    result = workspace.fetch(layout, options.archive, _say)
    origin = "downloaded" if result.downloaded else "archive at hand"
    tree = "unpacked to vendor/llama.cpp" if result.unpacked else "vendor/llama.cpp left as it is (`apply` changes it)"
    _say(f"fetch: {origin}, {tree}")
    return EXIT_OK, {
        "archive": str(result.archive.relative_to(layout.root)),
        "downloaded": result.downloaded,
        "unpacked": result.unpacked,
    }


def _apply(layout: Layout, options: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    result = workspace.apply(layout, _say, fetch_missing=options.fetch, discard=options.force_clean)
    what = f"llama.cpp {result.pin.build} with {_series_words(result.series)}"
    if result.changed:
        _say(f"apply: {what}: {len(result.synced.written)} file(s) written, {len(result.synced.removed)} removed")
    else:
        _say(f"apply: {what}: up to date")
    for name, offsets in result.offsets.items():
        for offset in offsets:
            _say(f"warning: {name}: {offset.file}: hunk {offset.hunk} applied {offset.lines:+d} line(s) off")
    hand_made = [*result.changes.modified, *result.changes.added]
    if hand_made:
        _say(f"warning: the tree holds changes that are in no patch: {_some(hand_made)}")
    return EXIT_OK, {
        "changed": result.changed,
        "upstream": result.pin.identity(),
        **_series_data(result.series),
        "tree": result.tree,
        "written": result.synced.written,
        "removed": result.synced.removed,
        "offsets": [
            {"patch": name, "file": offset.file, "hunk": offset.hunk, "lines": offset.lines}
            for name, offsets in result.offsets.items()
            for offset in offsets
        ],
        "modified": result.changes.modified,
        "added": result.changes.added,
    }


def _status(layout: Layout, _: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    result = workspace.status(layout)
    touched = {patch.name: patch for patch in result.stamp.series} if result.stamp is not None else {}
    in_tree = {
        patch.name: patch.name in touched and touched[patch.name].sha256 == patch.sha256
        for patch in result.series.patches
    }
    changes = result.changes or Changes((), (), ())
    cached = "cached" if result.archive_cached else "not cached"
    _say(f"pin:     {_pin_words(result.pin)}; archive {cached}")
    _say(f"tree:    {result.state} ({result.reason})")
    _say(f"series:  {_series_words(result.series)}")
    for name, present in in_tree.items():
        files = f" ({', '.join(touched[name].files)})" if present else ""
        _say(f"  {'in tree    ' if present else 'not in tree'}  {name}{files}")
    for word, paths in (("changed by hand", changes.modified), ("added by hand", changes.added)):
        if paths:
            _say(f"{word}: {_some(paths)}")
    if changes.missing:
        _say(
            f"missing: {len(changes.missing)} file(s); a source distribution carries only a part of the tree, in a "
            "checkout `apply --force-clean` brings them back"
        )
    return EXIT_OK if result.ready else EXIT_NOT_READY, {
        "state": result.state,
        "reason": result.reason,
        "ready": result.ready,
        "upstream": result.pin.identity(),
        "archive_sha256": result.pin.sha256,
        "archive_cached": result.archive_cached,
        **_series_data(result.series),
        "patches": [
            {
                "name": patch.name,
                "sha256": patch.sha256,
                "in_tree": in_tree[patch.name],
                "files": touched[patch.name].files if in_tree[patch.name] else None,
            }
            for patch in result.series.patches
        ],
        "tree": result.stamp.tree if result.stamp is not None else None,
        "tree_series_hash": result.stamp.series_hash if result.stamp is not None else None,
        "modified": changes.modified,
        "added": changes.added,
        "missing": changes.missing,
    }


_COMMANDS = {"fetch": _fetch, "apply": _apply, "status": _status}


def _series_words(series: Series) -> str:
    count = len(series.patches)
    return f"{count} patch{'' if count == 1 else 'es'} (series {series.short_hash})"


def _series_data(series: Series) -> dict[str, Any]:
    return {
        "series_hash": series.hash,
        "series_hash_short": series.short_hash,
        "num_patches": len(series.patches),
    }


def _pin_words(pin: Pin) -> str:
    return f"llama.cpp {pin.build} ({pin.llama_cpp_version}, {pin.licence}) from {pin.package}, tree {pin.tree}"


def _some(paths: Sequence[str]) -> str:
    more = len(paths) - _MAX_PATHS_SHOWN
    return ", ".join(paths[:_MAX_PATHS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _say(text: str) -> None:
    print(f"lucebox-patches: {text}", file=sys.stderr, flush=True)
