"""The operations on a checkout: fetch the archive, apply the series, tell the state.

Nothing here reads the network except `fetch`, and `apply` when it is asked to fetch what it lacks.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .archive import unpack
from .download import cached_archive, download_archive, store_archive
from .errors import ArchiveMissingError
from .gitapply import Applied, Offset, apply_patch
from .objects import scan, tree_id
from .pin import Pin, read_pin
from .series import Series, read_series
from .stamp import COMPLETE, AppliedPatch, Stamp, read_stamp, write_stamp
from .sync import Changes, Synced, compare, sync_tree

ABSENT = "absent"
BASE = "base"
APPLIED = "applied"
STALE = "stale"
DIRTY = "dirty"


@dataclass(frozen=True)
class Layout:
    """Where things are in a checkout.

    Attributes
    ----------
    root
        Root directory of the repository or of an unpacked source distribution.
    """

    root: Path

    @property
    def pin_file(self) -> Path:
        """The pin."""
        return self.root / "vendor" / "upstream.toml"

    @property
    def patches(self) -> Path:
        """Directory of the series."""
        return self.root / "patches"

    @property
    def tree(self) -> Path:
        """The sources that are built."""
        return self.root / "vendor" / "llama.cpp"

    @property
    def cache(self) -> Path:
        """Archives, the lock and the directory that a tree is prepared in; may be deleted at any time."""
        return self.root / "vendor" / ".cache"


@dataclass(frozen=True)
class Status:
    """State of the vendor tree.

    Attributes
    ----------
    state
        ``"applied"``: pinned base and current series, which is what a build needs. ``"absent"``: no tree.
        ``"base"``: pinned base without the series. ``"stale"``: another base or series, an interrupted run, or no
        stamp. ``"dirty"``: as ``"applied"`` or ``"base"``, but files were changed or added by hand.
    reason
        Why it is this state, one sentence part.
    pin, series
        What is wanted.
    stamp
        What the tree says of itself.
    changes
        How the files differ from the stamp; None without tree or stamp.
    archive_cached
        Whether the pinned archive is in the cache, so that `apply` needs no network.
    """

    state: str
    reason: str
    pin: Pin
    series: Series
    stamp: Stamp | None
    changes: Changes | None
    archive_cached: bool

    @property
    def ready(self) -> bool:
        """Whether the tree is what a build needs."""
        return self.state == APPLIED


@dataclass(frozen=True)
class FetchResult:
    """Outcome of `fetch`.

    Attributes
    ----------
    archive
        The verified archive in the cache.
    downloaded
        Whether it came from the network now.
    unpacked
        Whether the tree was absent and now holds the pinned base.
    """

    archive: Path
    downloaded: bool
    unpacked: bool


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
    offsets
        Hunks that applied at another line than stated, by patch name.
    changes
        Differences from the stamp, which are only looked for in a tree that was up to date.
    """

    changed: bool
    pin: Pin
    series: Series
    tree: str
    synced: Synced
    offsets: dict[str, tuple[Offset, ...]]
    changes: Changes


def status(layout: Layout) -> Status:
    """Tell the state of the vendor tree; reads files only.

    Raises
    ------
    PinError, SeriesError
        If the pin or the series cannot be used.
    """
    pin, series = read_pin(layout.pin_file), read_series(layout.patches)
    stamp = read_stamp(layout.tree)
    changes = compare(layout.tree, stamp.files) if stamp is not None else None
    state, reason = _state(layout, pin, series, stamp, changes)
    cached = cached_archive(layout.cache, pin) is not None
    return Status(state, reason, pin, series, stamp, changes, cached)


def _state(
    layout: Layout, pin: Pin, series: Series, stamp: Stamp | None, changes: Changes | None
) -> tuple[str, str]:
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


def fetch(layout: Layout, archive: Path | None, say: Callable[[str], None]) -> FetchResult:
    """Get the pinned archive into the cache, and unpack the base if there is no tree.

    A tree that exists is left to `apply`, which knows how to change one.

    Parameters
    ----------
    layout
        The checkout.
    archive
        Take this file; None means the cached archive or, if there is none, a download.
    say
        Takes lines of progress.

    Raises
    ------
    PinError, HashMismatchError, UnsafeArchiveError, ToolError
        Nothing was changed then, except that a good archive may have reached the cache.
    """
    pin = read_pin(layout.pin_file)
    with _locked(layout, say):
        cached = cached_archive(layout.cache, pin) if archive is None else store_archive(archive, layout.cache, pin)
        path = cached or download_archive(layout.cache, pin, say)
        unpacked = not layout.tree.exists()
        if unpacked:
            with _work_directory(layout) as work:
                manifest = unpack(path, pin, work)
                write_stamp(work, _make_stamp(pin, Series(()), [], manifest))
                work.rename(layout.tree)
    return FetchResult(path, cached is None, unpacked)


def apply(
    layout: Layout, say: Callable[[str], None], *, fetch_missing: bool = False, discard: bool = False
) -> ApplyResult:
    """Make the vendor tree the pinned base plus the series, completely or not at all.

    A tree whose stamp matches is up to date and nothing is written. Otherwise the result is made from the archive in
    ``vendor/.cache`` and only then brought into place (see `sync`).

    Parameters
    ----------
    layout
        The checkout.
    say
        Takes lines of progress.
    fetch_missing
        Download the archive if it is needed and not cached.
    discard
        Make the tree anew and give up changes made in it by hand.

    Raises
    ------
    PinError, SeriesError
        If the pin or the series cannot be used.
    ArchiveMissingError
        If the archive is needed, not cached, and not to be fetched.
    ConflictError, VerifyError
        If a patch does not apply; the tree is as before.
    DirtyTreeError
        If files changed by hand would be lost; the tree is as before.
    ToolError
        If git or pip is needed and does not work.
    """
    pin, series = read_pin(layout.pin_file), read_series(layout.patches)
    stamp = read_stamp(layout.tree)
    if stamp is not None and not discard and not _why_stale(stamp, pin, series):
        changes = compare(layout.tree, stamp.files)
        return ApplyResult(False, pin, series, stamp.tree, Synced((), ()), {}, changes)
    with _locked(layout, say), _work_directory(layout) as work:
        path = cached_archive(layout.cache, pin)
        if path is None:
            if not fetch_missing:
                raise ArchiveMissingError("the vendor tree cannot be made", pin.package, pin.sha256)
            path = download_archive(layout.cache, pin, say)
        pristine = unpack(path, pin, work)
        applied = [apply_patch(patch, position, work) for position, patch in enumerate(series.patches, start=1)]
        manifest = scan(work) if applied else pristine
        new = _make_stamp(pin, series, applied, manifest)
        if layout.tree.exists():
            # Read again: another run may have held the lock until now.
            stamp = read_stamp(layout.tree)
            ours = [{file: [entry] for file, entry in pristine.items()}, stamp.files if stamp is not None else {}]
            synced = sync_tree(work, manifest, layout.tree, new, ours, discard=discard)
        else:
            write_stamp(work, new)
            work.rename(layout.tree)
            synced = Synced(tuple(sorted(manifest)), ())
    offsets = {
        patch.name: outcome.offsets
        for patch, outcome in zip(series.patches, applied, strict=True)
        if outcome.offsets
    }
    return ApplyResult(True, pin, series, new.tree, synced, offsets, Changes((), (), ()))


def _make_stamp(pin: Pin, series: Series, applied: list[Applied], manifest: dict[str, str]) -> Stamp:
    return Stamp(
        state=COMPLETE,
        upstream=pin.identity(),
        series_hash=series.hash,
        series=[
            AppliedPatch(patch.name, patch.sha256, outcome.files)
            for patch, outcome in zip(series.patches, applied, strict=True)
        ],
        tree=tree_id(manifest),
        files={path: [entry] for path, entry in manifest.items()},
    )


@contextlib.contextmanager
def _locked(layout: Layout, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the checkout's lock: two builds may start at the same time."""
    layout.cache.mkdir(parents=True, exist_ok=True)
    with (layout.cache / "lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another lucebox-patches to finish")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _work_directory(layout: Layout) -> Iterator[Path]:
    """Give an empty directory on the tree's file system; the lock makes one name enough.

    One name also means that what a killed run left behind is removed by the next one.
    """
    work = layout.cache / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
