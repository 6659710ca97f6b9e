"""The report of a rebase: what a reviewer needs to believe it."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .layout import Layout, write_text
from .pin import Pin
from .session import BY_HAND, Work, result, target_pin
from .state import Session
from .store import Store

_SYMBOL = re.compile(r"\b(?:llama|common|ggml|gguf|mtmd|server|LLAMA|GGML|COMMON)_\w+\b")
_HEADERS = re.compile(r"(?:include|ggml/include|ggml/src|common|src|tools/server)/[^/]+\.h(?:pp)?")
_HUNKS = ("-r", "-p", "--unified=0", "--no-renames", "--no-ext-diff", "--no-color", "--diff-algorithm=histogram")


@dataclass(frozen=True)
class Hunk:
    """A run of lines of one file that upstream replaced; `id` names it in ``--ack``."""

    path: str
    removed: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def id(self) -> str:
        """Eight digits of a hash of path and lines."""
        return hashlib.sha256(json.dumps([self.path, self.removed, self.added]).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Audit:
    """What the trees of a rebase say.

    Attributes
    ----------
    outside
        Files that no patch of the old series touches and that differ from upstream, old or new: the tree equation
        (patched minus plain is the same on both bases outside our files) holds if there are none.
    lost
        Upstream's changes to files that we touch and that are not in the result.
    churn
        Lines that upstream added and removed in the files that we touch.
    symbols
        Names on changed lines of upstream's headers that our native code uses, each with the files of ours.
    """

    outside: list[str]
    lost: list[Hunk]
    churn: dict[str, str]
    symbols: dict[str, list[str]]

    def open(self, session: Session) -> list[str]:
        """Return what a person has not accepted yet: hunk ids, and paths outside our files."""
        return [name for name in (*self.outside, *(hunk.id for hunk in self.lost)) if name not in session.acknowledged]


def audit(work: Work, session: Session) -> Audit:
    """Compare bases and patched trees of a rebase that has carried everything."""
    store, old, new = work.store, work.pin.tree, target_pin(work, session).tree
    ours = sorted({path for step in work.steps for path in step.files})
    outside: set[str] = set()
    for base, tip in ((old, work.tip), (new, session.tip)):
        plain, patched = store.manifest(base), store.manifest(tip)
        outside |= {path for path in plain.keys() | patched.keys() if plain.get(path) != patched.get(path)}
    numbers = store.git("diff-tree", "-r", "--numstat", "--no-renames", old, new).stdout.decode().splitlines()
    counts = {path: f"+{added} -{removed}" for added, removed, path in (line.split("\t") for line in numbers)}
    churn = {path: counts[path] for path in ours if path in counts}
    return Audit(sorted(outside - set(ours)), _lost(work, session, ours), churn, _symbols(work, old, new))


def _lost(work: Work, session: Session, ours: Sequence[str]) -> list[Hunk]:
    """Return upstream's hunks that are neither in the difference of the patched trees nor in the result's text."""
    store, old, new = work.store, work.pin.tree, target_pin(work, session).tree
    kept = Counter(_hunks(store, work.tip, session.tip, ours))
    files = [store.manifest(tree) for tree in (session.tip, new)]
    lost: list[Hunk] = []
    for hunk in _hunks(store, old, new, ours):
        if kept[hunk]:
            kept[hunk] -= 1
            continue
        block = hunk.added or hunk.removed
        now, then = (_count(_lines(store, manifest.get(hunk.path)), block) for manifest in files)
        lost += [hunk] if now != then else []
    return lost


def _hunks(store: Store, before: str, after: str, paths: Sequence[str]) -> list[Hunk]:
    text = store.git("diff-tree", *_HUNKS, before, after, "--", *paths).stdout if paths else b""
    found: list[Hunk] = []
    for part in re.split(r"^diff --git ", text.decode("utf-8", "surrogateescape"), flags=re.MULTILINE)[1:]:
        path = part.split("\n", 1)[0].rpartition(" b/")[2]
        for body in re.split(r"^@@ .*\n", part, flags=re.MULTILINE)[1:]:
            sides = (tuple(line[1:] for line in body.split("\n") if line.startswith(sign)) for sign in "-+")
            found.append(Hunk(path, *sides))
    return found


def _lines(store: Store, entry: str | None) -> list[str]:
    return store.read([entry.split(" ")[1]])[0].decode("utf-8", "surrogateescape").split("\n") if entry else []


def _count(lines: Sequence[str], block: Sequence[str]) -> int:
    return sum(tuple(lines[start : start + len(block)]) == tuple(block) for start in range(len(lines) - len(block) + 1))


def _symbols(work: Work, old: str, new: str) -> dict[str, list[str]]:
    changed = work.store.git("diff-tree", "-r", "--name-only", "--no-renames", old, new).stdout.decode().splitlines()
    hunks = _hunks(work.store, old, new, [path for path in changed if _HEADERS.fullmatch(path)])
    names = {name for hunk in hunks for line in (*hunk.removed, *hunk.added) for name in _SYMBOL.findall(line)}
    used: dict[str, list[str]] = {}
    for file in sorted((work.layout.root / "pylucebox" / "native").glob("*.*")):
        if file.suffix in (".cpp", ".h"):
            for name in names & set(_SYMBOL.findall(file.read_text(encoding="utf-8"))):
                used.setdefault(name, []).append(file.name)
    return dict(sorted(used.items()))


def range_diff(work: Work, session: Session) -> str:
    """Return git's comparison of the old and the new series; empty if there is nothing to compare."""
    now, ranges = result(work, session), []
    if not work.steps or not now:
        return ""
    for base, steps in ((work.pin.tree, work.steps), (session.start, now)):
        first = tip = work.store.commit(base, None, "base\n")
        for step in steps:
            tip = work.store.commit(step.after, tip, step.patch.header.message())
        ranges.append(f"{first}..{tip}")
    return work.store.git("range-diff", "--no-color", "--no-dual-color", *ranges).stdout.decode("utf-8", "replace")


def as_data(work: Work, session: Session, found: Audit) -> dict[str, Any]:
    """Return the report as plain data."""
    pin = target_pin(work, session)
    return {
        "schema": 1,
        "from": work.pin.identity(),
        "to": pin.identity(),
        "commands": _commands(work, session, pin),
        "patches": [asdict(done) | {"dropped": session.dropped.get(done.name)} for done in session.done],
        "outside_our_files": {path: session.acknowledged.get(path) for path in found.outside},
        "lost_hunks": [asdict(h) | {"id": h.id, "reason": session.acknowledged.get(h.id)} for h in found.lost],
        "churn": found.churn,
        "symbols": found.symbols,
        "verify": session.verified,
        "result_tree": session.tip,
        "range_diff": range_diff(work, session),
    }


def _commands(work: Work, session: Session, pin: Pin) -> list[str]:
    tool = "python scripts/lucebox-patches"
    by_hand = [done.name for done in session.done if done.outcome == BY_HAND]
    source = f"--git {pin.git}@{pin.commit}" if pin.commit else f"{pin.version} --sha256 {pin.sha256}"
    return [
        f"# from the series that gives tree {work.tip} on {work.pin.build}",
        f"{tool} fetch {source}",
        f"{tool} rebase-onto {pin.build}",
        *(f"# {name} resolved by hand, then: {tool} rebase-onto --continue" for name in by_hand),
        *([f"{tool} drop-upstreamed"] if session.dropped else []),
        *(f"{tool} rebase-onto --ack '{name}={reason}'" for name, reason in session.acknowledged.items()),
        *([f"{tool} verify"] if session.verified else []),
        f"{tool} rebase-onto --finish",
    ]


def as_markdown(data: Mapping[str, Any]) -> str:
    """Return the report for people."""
    old, new = data["from"], data["to"]
    rows = ["| patch | outcome | hunks that had moved |", "|---|---|---|"]
    for done in data["patches"]:
        moved = ", ".join(f"{o['file']} #{o['hunk']} {o['lines']:+d}" for o in done["offsets"]) or "none"
        outcome = done["outcome"] + (f"; dropped: {done['dropped']}" if done["dropped"] else "")
        rows.append(f"| {done['name'].removesuffix('.patch')} | {outcome} | {moved} |")
    outside = [f"- {path}: {reason or '**open**'}" for path, reason in data["outside_our_files"].items()]
    lost = [
        f"- `{h['id']}` {h['path']}, {len(h['removed'])} line(s) became {len(h['added'])}: {h['reason'] or '**open**'}"
        for h in data["lost_hunks"]
    ]
    sections = {
        f"# Rebase {old['build']} → {new['build']}": [
            f"llama.cpp {old['llama_cpp_version']} → {new['llama_cpp_version']}.",
            f"The result is tree `{data['result_tree']}`. To get it again:",
            "",
            "```",
            *data["commands"],
            "```",
        ],
        "## Patches": rows,
        "## Tree equation": [
            "Outside the files of the old series, patched minus plain is "
            + ("not the same on both bases:" if outside else "the same on both bases."),
            *outside,
        ],
        "## Upstream's changes that are not in the result": lost,
        "## What upstream changed in the files that we touch": [f"- {path}: {n}" for path, n in data["churn"].items()],
        "## Names on changed lines of upstream's headers that our native code uses": [
            f"- `{name}`: {', '.join(files)}" for name, files in data["symbols"].items()
        ],
        "## Verify (our native code compiled against the result, and tested)": [f"- {line}" for line in data["verify"]],
        "## Range diff": ["```", data["range_diff"].rstrip(), "```"],
    }
    return "\n".join(f"{title}\n\n" + "\n".join(lines or ["None."]) + "\n" for title, lines in sections.items())


def write(layout: Layout, directory: Path, data: Mapping[str, Any]) -> list[str]:
    """Write the report as Markdown and JSON and return the paths."""
    stem = directory / f"{data['from']['build']}-{data['to']['build']}"
    write_text(layout.root / f"{stem}.md", as_markdown(data))
    write_text(layout.root / f"{stem}.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return [f"{stem}.md", f"{stem}.json"]
