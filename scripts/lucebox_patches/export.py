"""The one form of the series on disk: patch files, ``EXPECTED`` and the table in ``patches/README.md``."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .chain import Step, build_chain
from .errors import CheckError, SeriesError, UsageError
from .layout import Layout, Say, locked, write_text
from .pin import read_pin
from .series import Patch, read_series
from .store import Store
from .upstreams import ensure_base
from .workspace import apply, open_store, read_session_file

START, END = "<!-- made by lucebox-patches export -->\n", "<!-- end of what it made -->\n"


def canonical(store: Store, step: Step) -> Patch:
    """Return a patch in its one form: header fields in order, full blob ids, no offsets."""
    diff = store.diff(step.before, step.after)
    if b"\nGIT binary patch\n" in diff:
        raise SeriesError(Path(step.patch.name), [(0, "it changes a binary file")])
    return replace(step.patch, content=step.patch.header.text().encode() + diff)


def table(steps: Sequence[Step]) -> str:
    """Return the series as a Markdown table."""
    rows = ["| patch | class | what it does | lines | forwarded | drop when |", "|---|---|---|---|---|---|"]
    for step in steps:
        header = step.patch.header
        lines = step.patch.diff.split(b"\n")
        counts = [sum(line.startswith(sign) and line[:3] != sign * 3 for line in lines) for sign in (b"+", b"-")]
        cells = [
            f"[{step.patch.name.removesuffix('.patch')}]({step.patch.name})",
            header.fields.get("Class", ""),
            header.head.get("Subject", ""),
            f"+{counts[0]} -{counts[1]}",
            header.fields.get("Forwarded", ""),
            header.fields.get("Drop-When", ""),
        ]
        rows.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def rendered(layout: Layout, store: Store, base: str, steps: Sequence[Step]) -> dict[Path, bytes]:
    """Return what patch files, EXPECTED and README must hold for a series on the tree `base`."""
    steps = [replace(step, patch=canonical(store, step)) for step in steps]
    files = {layout.patches / step.patch.name: step.patch.content for step in steps}
    tree = steps[-1].after if steps else base
    files[layout.expected] = f"{tree}\n".encode()
    readme = layout.patches / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else f"# The series\n\n{START}{END}"
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise SeriesError(readme, [(0, f"it lacks the lines {START.strip()!r} and {END.strip()!r} around the table")])
    files[readme] = f"{before}{START}{table(steps)}{END}{after}".encode()
    return files


def export(layout: Layout, say: Say, *, check: bool) -> list[str]:
    """Bring the files of the series into their one form, record the tree, and renew the table.

    Applying and exporting is the identity, on any machine and with any settings: with `check` nothing is written and
    anything else than the identity raises.

    Returns
    -------
    list
        Files that were changed.

    Raises
    ------
    CheckError
        With `check`, if a file is not in its form; its attribute `diff` has the difference.
    UsageError
        If an edit, refresh or rebase is open.
    PatchError
        As `apply` raises.
    """
    if read_session_file(layout) is not None:
        raise UsageError("nothing was exported", "an edit, refresh or rebase is open", "finish it, or `abort` it")
    with locked(layout, say):
        store, pin, series = open_store(layout), read_pin(layout.pin_file), read_series(layout.patches)
        steps = build_chain(store, ensure_base(layout, store, pin, say, fetch=False), series)
        differs = {
            path: content
            for path, content in rendered(layout, store, pin.tree, steps).items()
            if not path.is_file() or path.read_bytes() != content
        }
        if check and differs:
            diff = "".join(_difference(path, content) for path, content in differs.items())
            names = [path.name for path in differs]
            raise CheckError(
                f"{len(names)} file(s) of the series are not as `export` writes them",
                f"{', '.join(names)}\n{diff}",
                "run `lucebox-patches export`",
                files=names,
                diff=diff,
            )
        for path, content in differs.items():
            write_text(path, content)
    if not check and layout.tree.exists():
        apply(layout, say)
    return [path.name for path in differs]


def _difference(path: Path, content: bytes) -> str:
    old = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
    new = content.decode("utf-8", "replace")
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"{path.name} (on disk)", f"{path.name} (export)"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
