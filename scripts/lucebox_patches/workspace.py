"""The operations ``fetch``, ``apply`` and ``status``, and putting a tree of the store into place.

Nothing here reads the network except `fetch`, and `apply` when it is asked to fetch what it lacks.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .chain import Step, build_chain
from .download import cached_archive, store_archive
from .errors import HashMismatchError, PendingError, UsageError
from .layout import Layout, Say, locked
from .pin import Pin, read_pin
from .series import Series, read_series
from .store import Store
from .tree import COMPLETE, AppliedPatch, Changes, Stamp, Synced, compare, read_stamp, sync_tree
from .upstreams import base, ensure_base, fetch_git, fetch_version

ABSENT, BASE, APPLIED, STALE, DIRTY = "absent", "base", "applied", "stale", "dirty"
EDITING, CONFLICT = "editing", "conflict"


@dataclass(frozen=True)
class Status:
    """State of the vendor tree.

    Attributes
    ----------
    state
        ``"applied"``: pinned base and current series, which is what a build needs. ``"absent"``: no tree.
        ``"base"``: pinned base without the series. ``"stale"``: another base or series, an interrupted run, or no
        stamp. ``"dirty"``: as ``"applied"`` or ``"base"``, but files were changed or added by hand. ``"editing"`` and
        ``"conflict"``: an edit, refresh or rebase is open.
    reason
        Why it is this state, one sentence part.
    pin, series
        What is wanted.
    stamp
        What the tree says of itself.
    changes
        How the files differ from the stamp; None without tree or stamp.
    source_at_hand
        Whether the pinned base is here, so that `apply` needs no network.
    session
        The open session as recorded, or None.
    """

    state: str
    reason: str
    pin: Pin
    series: Series
    stamp: Stamp | None
    changes: Changes | None
    source_at_hand: bool
    session: dict[str, Any] | None


@dataclass(frozen=True)
class ApplyResult:
    """Outcome of `apply`.

    Attributes
    ----------
    changed
        False if the tree was up to date.
    pin, series
        What the tree now contains.
    tree
        git tree id of the patched tree, as the stamp has it.
    synced
        Files written and removed.
    steps
        The patches with the trees around them; empty if the tree was up to date.
    changes
        Differences from the stamp, which are only looked for in a tree that was up to date.
    session
        Whether the tree was left alone because an edit, refresh or rebase is open.
    """

    changed: bool
    pin: Pin
    series: Series
    tree: str
    synced: Synced = field(default_factory=Synced)
    steps: Sequence[Step] = ()
    changes: Changes = field(default_factory=Changes)
    session: bool = False


def open_store(layout: Layout) -> Store:
    """Return the checkout's object store."""
    return Store(layout.cache / "store.git")


def read_session_file(layout: Layout) -> dict[str, Any] | None:
    """Return the open session as recorded, or None."""
    try:
        data = json.loads(layout.session_file.read_text(encoding="utf-8"))
        checked: dict[str, Any] = {key: data[key] for key in ("kind", "start", "series", "patch", "conflicts", "order")}
        return {**checked, **data}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        seen, remedy = f"{type(error).__name__}: {error}", "remove it; then `apply --force-clean` restores the tree"
        raise UsageError(f"{layout.session_file} cannot be read", seen, remedy) from error


def status(layout: Layout) -> Status:
    """Tell the state of the vendor tree; reads files only. Raises `PinError` or `SeriesError`."""
    pin, series = read_pin(layout.pin_file), read_series(layout.patches)
    stamp, session = read_stamp(layout.tree), read_session_file(layout)
    changes = compare(layout.tree, stamp.files) if stamp is not None else None
    state, reason = _state(layout, pin, series, stamp, changes)
    if session is not None:
        stopped = session["conflicts"]
        state = CONFLICT if stopped else EDITING
        where = f"{session['patch']}: {', '.join(stopped)}" if stopped else session["patch"] or "nothing left to carry"
        reason = f"{session['kind']} is open ({where})"
    here = cached_archive(layout.cache, pin.sha256) is not None or bool(
        (layout.cache / "store.git").is_dir() and base(open_store(layout), pin)
    )
    return Status(state, reason, pin, series, stamp, changes, here, session)


def _state(layout: Layout, pin: Pin, series: Series, stamp: Stamp | None, changes: Changes | None) -> tuple[str, str]:
    if not layout.tree.is_dir():
        return ABSENT, "there is no vendor/llama.cpp"
    is_base = stamp is not None and not stamp.series and bool(series.patches)
    stale = _why_stale(stamp, pin, Series(()) if is_base else series)
    if stale:
        return STALE, stale
    if changes is not None and (changes.modified or changes.added):
        return DIRTY, f"{len(changes.modified)} file(s) changed and {len(changes.added)} added by hand"
    if is_base:
        return BASE, "the series is not applied"
    return APPLIED, "the tree has the pinned base and the current series"


def _why_stale(stamp: Stamp | None, pin: Pin, series: Series) -> str:
    """Return why a tree with this stamp is not the given base and series; empty if it is."""
    if stamp is None:
        return "the tree has no stamp that this tool can read"
    if stamp.state != COMPLETE:
        return "an earlier run was interrupted"
    if stamp.upstream != pin.identity():
        return f"the tree was made from another base ({stamp.upstream.get('build')}) than the pin ({pin.build})"
    if stamp.series_hash != series.hash:
        return "the series has changed since it was applied"
    return ""


def fetch(
    layout: Layout, say: Say, *, version: str = "", archive: Path | None = None, git: str = "", sha256: str = ""
) -> tuple[Pin, bool]:
    """Get an upstream into the store: the pinned one, another `version` of its package, or URL@COMMIT with `git`.

    If there is no vendor tree, the pinned base is unpacked; a tree that exists is left to `apply`.

    Returns
    -------
    tuple
        What was fetched, and whether the tree was unpacked.

    Raises
    ------
    PinError, HashMismatchError, UnsafeArchiveError, ToolError, UsageError
        Nothing was changed then, except that a good archive may have reached the cache.
    """
    pin = read_pin(layout.pin_file)
    with locked(layout, say):
        store = open_store(layout)
        if git:
            url, _, commit = git.rpartition("@")
            return fetch_git(store, url, commit, pin, say), False
        if version not in ("", pin.version, pin.build):
            number = version.removeprefix("b")
            if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", number):
                raise UsageError("nothing was fetched", f"{version!r} is no version", "give one like 11401.0.0")
            return fetch_version(layout, store, pin, say, version=number, archive=archive, sha256=sha256), False
        if archive is not None:
            store_archive(archive, layout.cache, pin.sha256)
        ensure_base(layout, store, pin, say, fetch=True)
        unpacked = not layout.tree.exists()
        if unpacked:
            place(layout, store, pin, [], pin.tree, discard=False)
    return pin, unpacked


def apply(
    layout: Layout, say: Say, *, fetch_missing: bool = False, discard: bool = False, hold_lock: bool = True
) -> ApplyResult:
    """Make the vendor tree the pinned base plus the series, completely or not at all.

    A tree whose stamp matches is up to date and nothing is written. While a session is open the tree is the user's:
    it is left alone too, so that a build can use it.

    Parameters
    ----------
    layout
        The checkout.
    say
        Takes lines of progress.
    fetch_missing
        Download the base if it is needed and not here.
    discard
        Make the tree anew and give up changes made in it by hand.
    hold_lock
        Take the checkout's lock; not for a caller that holds it.

    Raises
    ------
    PinError, SeriesError
        If the pin or the series cannot be used.
    SourceMissingError
        If the base is needed, not here, and not to be fetched.
    ConflictError, EmptyPatchError, HashMismatchError
        If a patch does not apply, changes nothing, or the series gives another tree than recorded; the vendor tree is
        as before.
    DirtyTreeError
        If files changed by hand would be lost; the tree is as before.
    PendingError
        If a conflict waits for an answer.
    ToolError
        If git or pip is needed and does not work.
    """
    pin, series, session = read_pin(layout.pin_file), read_series(layout.patches), read_session_file(layout)
    stamp = read_stamp(layout.tree)
    if session is not None and session["conflicts"]:
        raise pending(session["patch"], session["conflicts"], session["kind"])
    if stamp is not None and (session is not None or (not discard and not _why_stale(stamp, pin, series))):
        if session is None:
            check_expected(layout, stamp.tree)
        changes = compare(layout.tree, stamp.files)
        return ApplyResult(False, pin, series, stamp.tree, changes=changes, session=session is not None)
    with locked(layout, say) if hold_lock else contextlib.nullcontext():
        store = open_store(layout)
        steps = build_chain(store, ensure_base(layout, store, pin, say, fetch=fetch_missing), series)
        tree = steps[-1].after if steps else pin.tree
        check_expected(layout, tree)
        synced = place(layout, store, pin, steps, tree, discard=discard)
    return ApplyResult(True, pin, series, tree, synced, steps)


def place(
    layout: Layout, store: Store, pin: Pin, steps: Sequence[Step], tree: str, *, discard: bool, mine: Sequence[str] = ()
) -> Synced:
    """Bring a tree of the store into vendor/llama.cpp, stamped as `pin` with the patches of `steps`.

    `mine` are trees whose content may be overwritten, besides the base and what the stamp lists.
    """
    series = Series(tuple(step.patch for step in steps))
    files = {path: [entry] for path, entry in store.manifest(tree).items()}
    stamp = Stamp(
        COMPLETE,
        pin.identity(),
        series.hash,
        [AppliedPatch(step.patch.name, step.patch.sha256, step.files) for step in steps],
        tree,
        files,
    )
    if not layout.tree.exists():
        work = layout.cache / "work-tree"
        synced = sync_tree(store, work, stamp, [], discard=True)
        work.replace(layout.tree)
        return synced
    # Read again: another run may have held the lock until now.
    before = read_stamp(layout.tree)
    ours = [{path: [entry] for path, entry in store.manifest(own).items()} for own in (pin.tree, *mine) if own]
    return sync_tree(store, layout.tree, stamp, [*ours, before.files if before else {}], discard=discard)


def check_expected(layout: Layout, tree: str) -> None:
    """Raise `HashMismatchError` if ``patches/EXPECTED`` names another tree than the series gives."""
    if layout.expected.is_file() and (expected := layout.expected.read_text(encoding="utf-8").strip()) != tree:
        remedy = "if the series was changed on purpose, `lucebox-patches export` records its tree"
        raise HashMismatchError("the tree that the series gives", "its git tree id", expected, tree, remedy)


def pending(patch: str, files: Sequence[str], kind: str, reason: str = "") -> PendingError:
    """Return the error for a conflict that waits; `reason` is what the patch is for."""
    command = "rebase-onto" if kind == "rebase" else "refresh"
    return PendingError(
        f"{patch} needs a person",
        f"vendor/llama.cpp has marked sections, or a file of one side only: {', '.join(files)}"
        + (f"\nWhat the patch is for:\n{reason}" if reason else ""),
        f"edit these files until they do what the patch is for, then `lucebox-patches {command} --continue`; "
        "`lucebox-patches abort` restores what was before",
        patch=patch,
        files=list(files),
    )
