"""Upstream trees in the store, each on a commit of our own below ``refs/upstream/`` whose message is its pin.

The commit is ours because the source distributions carry no git objects, and because a packer leaves files out: such a
tree is not a tree of upstream's history. Blob ids are content hashes all the same, so merges find what they need.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from .archive import unpack
from .download import cached_archive, download_archive, store_archive
from .errors import HashMismatchError, SourceMissingError, ToolError, UsageError
from .layout import Layout, Say, work_directory
from .objects import EXECUTABLE, REGULAR
from .pin import Pin, parse_pin
from .store import Store

_REF = "refs/upstream/"
_RELEASE = re.compile(rb"^set\(LLAMA_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)\)", re.MULTILINE)


def known(store: Store) -> dict[str, Pin]:
    """Return the upstreams in the store by tree id."""
    listing = store.git("for-each-ref", "--format=%(refname)%00%(contents)%00", _REF).stdout.decode().split("\0")
    return {
        ref.strip().removeprefix(_REF): parse_pin(text, store.path)
        for ref, text in zip(listing[::2], listing[1::2], strict=False)
    }


def find(store: Store, version: str) -> Pin:
    """Return the upstream that was fetched as `version`, a version or a build; raises `SourceMissingError`."""
    pins = known(store)
    found = [pin for tree, pin in pins.items() if version in (tree, pin.build, pin.version, pin.commit)]
    if len(found) > 1:
        seen = "; ".join(f"tree {pin.tree} from {pin.package}" for pin in found)
        raise UsageError(f"{version} is not unique", seen, "name the tree id instead")
    if found:
        return found[0]
    seen = f"the store has {', '.join(sorted(pin.build for pin in pins.values())) or 'none'}"
    raise SourceMissingError(f"upstream {version} is not here", seen, f"run `lucebox-patches fetch {version}` first")


def base(store: Store, pin: Pin) -> str:
    """Return the tree id of an upstream in the store, or an empty text."""
    return pin.tree if store.has(f"{_REF}{pin.tree}", "tree") else ""


def ensure_base(layout: Layout, store: Store, pin: Pin, say: Say, *, fetch: bool) -> str:
    """Return the pin's tree id after making sure that the store holds it.

    Raises
    ------
    SourceMissingError
        If it must be got and `fetch` is not set.
    HashMismatchError, UnsafeArchiveError, ToolError
        If what was got is not the pinned upstream.
    """
    if base(store, pin):
        return pin.tree
    if pin.commit:
        if not fetch:
            raise SourceMissingError("the vendor tree cannot be made", f"{pin.package} is not in the store", _HOW)
        return fetch_git(store, pin.git, pin.commit, pin, say).tree
    archive = cached_archive(layout.cache, pin.sha256)
    if archive is None:
        if not fetch:
            seen = f"the archive of {pin.package} (sha256 {pin.sha256}) is not in vendor/.cache"
            raise SourceMissingError("the vendor tree cannot be made", seen, _HOW)
        archive, _, _ = download_archive(layout.cache, pin.package, pin.sha256, say)
    return import_archive(layout, store, archive, pin).tree


_HOW = "run `lucebox-patches fetch`, which downloads it, or `lucebox-patches fetch --archive FILE`"


def import_archive(layout: Layout, store: Store, archive: Path, pin: Pin) -> Pin:
    """Import an archive; a pin without a tree gets tree and release number from it.

    Raises
    ------
    HashMismatchError, UnsafeArchiveError
        Nothing is recorded then.
    """
    with work_directory(layout) as work:
        manifest = unpack(archive, pin.sha256, pin.subdir, work)
        store.blobs(work, manifest)
    return _record(store, store.write_tree(manifest), pin, f"{pin.subdir} in {archive}")


def fetch_version(
    layout: Layout, store: Store, pin: Pin, say: Say, *, version: str, archive: Path | None, sha256: str = ""
) -> Pin:
    """Get another version of the pinned package; empty means the newest. What comes is recorded by its hash."""
    if archive is not None:
        path, found = store_archive(archive, layout.cache, sha256)
    else:
        requirement = f"{pin.name}=={version}" if version else pin.name
        path, found, name = download_archive(layout.cache, requirement, sha256, say)
        version = version or name.removesuffix(".tar.gz").rpartition("-")[2]
    other = replace(pin, version=version, build=f"b{version.split('.')[0]}", sha256=found, tree="")
    return import_archive(layout, store, path, replace(other, git="", commit="", subdir=pin.subdir or "llama.cpp"))


def fetch_git(store: Store, url: str, commit: str, pin: Pin, say: Say) -> Pin:
    """Get a commit, branch or tag of a git repository; a pin that already names the commit must match."""
    if url.startswith("-") or commit.startswith("-"):
        raise UsageError("this is no repository", f"{url}@{commit}", "give URL@COMMIT")
    say(f"fetching {commit} of {url} with git")
    # The one call that may need the user's network settings (proxies, certificates) works on the environment; the
    # configuration files stay out, since they could rewrite the address or filter the objects.
    done = store.git("fetch", "--quiet", "--depth=1", "--no-tags", url, commit, allowed=(0, 1, 128))
    if done.returncode != 0:
        seen = done.stderr.decode(errors="replace").strip()
        raise ToolError("git", f"{url}@{commit} could not be fetched", seen, "check address, commit and network")
    found, tree = store.git("rev-parse", "FETCH_HEAD^{commit}", "FETCH_HEAD^{tree}").stdout.decode().split()
    if pin.commit == commit:
        return _record(store, tree, pin, pin.package)
    build = commit if re.fullmatch(r"b[0-9]+", commit) else f"g{found[:9]}"
    other = Pin("llama.cpp", build, pin.licence, build, pin.llama_cpp_version, "", git=url, commit=found)
    return _record(store, tree, other, other.package)


def _record(store: Store, tree: str, pin: Pin, what: str) -> Pin:
    manifest = store.manifest(tree)
    odd = sorted(path for path, entry in manifest.items() if entry.split(" ")[0] not in (REGULAR, EXECUTABLE))
    if odd:
        raise UsageError(f"{what} is refused", f"{odd[0]} is a link or a submodule", "use another upstream")
    if not pin.tree:
        entry = manifest.get("CMakeLists.txt")
        parts = _RELEASE.findall(store.read([entry.split(" ")[1]])[0]) if entry else []
        release = b".".join(parts).decode() if len(parts) == 3 else "unknown"
        pin = replace(pin, tree=tree, llama_cpp_version=release)
    if tree != pin.tree:
        raise HashMismatchError(what, "its git tree id", pin.tree, tree)
    store.git("update-ref", f"{_REF}{tree}", store.commit(tree, None, pin.assignments()))
    return pin
