"""Changing the series: ``new``, ``edit``, ``refresh``, ``rebase-onto``, ``abort``, ``drop-upstreamed``.

All of them are one operation: start from a tree, carry a list of patches onto it one after the other (see
`chain.carry`), stop where a person is needed, and at the end write the series and put the tree into place. What was
done so far stands in ``vendor/.cache/session.json``, so that a run that was cut off goes on with ``--continue``. Patch
files, pin and EXPECTED change only at the end, and in one step: the new contents go to a journal first, and whatever
command runs next finishes a journal that it finds. Before that, `abort` restores what was there.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .chain import CLEAN, Carried, Step, build_chain, carry, changed_files, has_markers, merge, where
from .errors import CheckError, DirtyTreeError, EmptyPatchError, SeriesError, UsageError
from .export import rendered
from .layout import Layout, Say, locked, write_text
from .pin import Pin, parse_pin, read_pin, replace_pin
from .series import NAME, REQUIRED, SERIES_FILE, SUBJECT, Header, Patch, Series, read_series, series_text
from .state import Done, Session
from .store import Store
from .tree import COMPLETE, read_stamp, snapshot
from .upstreams import ensure_base
from .workspace import APPLIED, DIRTY, apply, open_store, pending, place, read_session_file, status

EDIT, REFRESH, REBASE = "edit", "refresh", "rebase"
EDITED, BY_HAND = "edited", "resolved by hand"
_INDEX = re.compile(rb"^index [0-9a-f.]+", re.MULTILINE)
_AUTHOR = "pylucebox contributors <pylucebox@lucebox.invalid>"
_REASON = "TODO: why, for a reader who knows llama.cpp."


@dataclass(frozen=True)
class Work:
    """What every operation needs: the checkout, the store, and the series on disk with its trees."""

    layout: Layout
    store: Store
    pin: Pin
    steps: list[Step]

    @classmethod
    def open(cls, layout: Layout, say: Say) -> Work:
        """Read pin and series and build the chain."""
        store, pin = open_store(layout), read_pin(layout.pin_file)
        steps = build_chain(store, ensure_base(layout, store, pin, say, fetch=False), read_series(layout.patches))
        return cls(layout, store, pin, steps)

    @property
    def names(self) -> list[str]:
        """The patches of the series."""
        return [step.patch.name for step in self.steps]

    @property
    def series(self) -> str:
        """What a session records to see that nobody changed the series meanwhile."""
        return f"{Series(tuple(step.patch for step in self.steps)).hash} {self.pin.tree}"

    @property
    def tip(self) -> str:
        """The tree after the whole series."""
        return self.steps[-1].after if self.steps else self.pin.tree

    def index(self, name: str) -> int:
        """Return the place of a patch, its name with or without ``.patch``; raises `UsageError` if there is none."""
        full = f"{Path(name).name.removesuffix('.patch')}.patch"
        if full not in self.names:
            seen = f"{name} is not in the series, which has {', '.join(self.names) or 'nothing'}"
            raise UsageError("there is no such patch", seen, "give one of the series")
        return self.names.index(full)


def load(layout: Layout, *kinds: str) -> Session:
    """Return the open session; raises `UsageError` if there is none of these kinds."""
    data = read_session_file(layout)
    if data is None or (kinds and data["kind"] not in kinds):
        seen = "nothing is open" if data is None else f"open is: {data['kind']} {data['patch']}".rstrip()
        remedy = "--continue goes on, `abort` ends it" if data else "start with `new`, `edit` or `rebase-onto VERSION`"
        raise UsageError(f"there is no {' or '.join(kinds) or 'edit, refresh or rebase'} to go on with", seen, remedy)
    return Session(**{**data, "done": [Done(**item) for item in data["done"]]})


def new(layout: Layout, say: Say, patch: str, *, subject: str, kind: str, after: str, today: str) -> Session:
    """Open an edit for a patch that does not exist yet; changes that the tree already holds become part of it.

    Raises `UsageError` for a name or subject that is not usable, or a tree in another state. Behind another patch than
    the last (`after`) the tree must be without changes.
    """
    with locked(layout, say):
        name = patch if patch.endswith(".patch") else f"{patch}.patch"
        for wrong, seen, remedy in (
            (not NAME.fullmatch(name), f"the name {name!r}", "take lower-case words with hyphens, no number in front"),
            ((layout.patches / name).exists(), f"{name} exists already", "take another name, or `edit` that patch"),
            (not SUBJECT.fullmatch(subject), f"the subject {subject!r}", "write `area: summary`, at most 72"),
        ):
            if wrong:
                raise UsageError("the patch cannot be made", seen, remedy)
        _expect(layout, APPLIED, *([] if after else [DIRTY]))
        work = Work.open(layout, say)
        place_at = work.index(after) + 1 if after else len(work.steps)
        fields = dict.fromkeys(REQUIRED, "TODO") | {
            "Class": kind,
            "Origin": "own",
            "Forwarded": "no",
            "Changes-Output": "no",
            "Last-Update": today,
        }
        date = f"{datetime.date.fromisoformat(today):%a, %d %b %Y} 00:00:00 +0000"
        header = Header({"From": _AUTHOR, "Date": date, "Subject": subject}, _REASON, fields)
        order = [*work.names[:place_at], name, *work.names[place_at:]]
        session = Session(EDIT, work.pin.tree, work.series, order, _unchanged(work, place_at), patch=name)
        session.skeleton = header.text()
        if session.tip == work.tip:
            session.at, now = work.tip, snapshot(work.store, layout.tree)
            session.given = [] if now == work.tip else [work.tip, now]
            session.save(layout)
        else:
            _put(work, session, session.tip, discard=False)
        return session


def edit(layout: Layout, say: Say, patch: str) -> Session:
    """Open an edit of a patch: the tree then holds the series up to and with it."""
    with locked(layout, say):
        _expect(layout, APPLIED)
        work = Work.open(layout, say)
        at = work.index(patch)
        session = Session(EDIT, work.pin.tree, work.series, work.names, _unchanged(work, at), patch=work.names[at])
        _put(work, session, work.steps[at].after, discard=False, steps=work.steps[: at + 1])
        return session


def refresh(layout: Layout, say: Say, patch: str, *, today: str, resume: bool) -> tuple[Session, list[str]]:
    """Fold what was changed by hand into a patch and bring the later ones after it.

    In an edit it is the patch of the edit; otherwise `patch`, or the last of the series. With `resume` a refresh that
    stopped is taken up. Returns the session as it ended, and the files of the series that were written.

    Raises
    ------
    PendingError
        If a later patch stops in conflict; the session stays open.
    EmptyPatchError
        If a patch would change nothing; the session stays open.
    UsageError
        If nothing was changed, or the change does not fit the named patch.
    """
    with locked(layout, say):
        work = Work.open(layout, say)
        if resume:
            session = _resumed(work, REFRESH)
        elif read_session_file(layout) is not None:
            session = _resumed(work, EDIT)
            if patch and patch.removesuffix(".patch") != session.patch.removesuffix(".patch"):
                seen = f"{session.patch} is open"
                raise UsageError(f"nothing was folded into {patch}", seen, "`refresh` without a name, or `abort` first")
            after = snapshot(work.store, layout.tree)
            if session.skeleton and after == session.tip:
                seen = "the tree is as before the patch"
                raise UsageError("there is nothing to refresh", seen, "edit files in vendor/llama.cpp, or `abort`")
            session.given = [session.at, after]
            session.done.append(Done(session.patch, session.tip, after, EDITED))
        else:
            session = _fold(work, patch)
        session.kind = REFRESH
        _carry_rest(work, session, say)
        return session, _finish(work, session, say, today)


def rebase(layout: Layout, say: Say, target: Pin) -> None:
    """Carry the series onto another upstream in the store; the classification of all patches comes first.

    Raises `PendingError` if a patch stops in conflict; the session stays open.
    """
    with locked(layout, say):
        _expect(layout, APPLIED)
        work = Work.open(layout, say)
        if target.tree == work.pin.tree:
            raise UsageError("there is nothing to rebase", f"{target.build} is the pinned upstream", "name another one")
        for step, carried in zip(work.steps, classify(work, target), strict=True):
            say(f"  {carried.outcome:<28} {step.patch.name} {', '.join(carried.conflicts)}".rstrip())
        session = Session(REBASE, target.tree, work.series, work.names, at=work.tip, pin=target.assignments())
        _carry_rest(work, session, say)


def classify(work: Work, target: Pin) -> list[Carried]:
    """Tell for each patch how it would reach another upstream; one in conflict is left out for those after it."""
    tree, found = target.tree, []
    for step in work.steps:
        carried = carry(work.store, tree, step.before, step.after)
        found.append(carried)
        tree = tree if carried.conflicts else carried.tree
    return found


def go_on(layout: Layout, say: Say) -> None:
    """Take up a rebase after a conflict was resolved in the vendor tree, or a run that was cut off."""
    with locked(layout, say):
        work = Work.open(layout, say)
        _carry_rest(work, _resumed(work, REBASE), say)


def finish_rebase(layout: Layout, say: Say, today: str, missing: Sequence[str]) -> list[str]:
    """Write series and pin of a rebase that has carried everything; `missing` must be acknowledged first."""
    with locked(layout, say):
        work, session = Work.open(layout, say), load(layout, REBASE)
        _check_unchanged(work, session)
        if session.conflicts or len(session.done) < len(session.order):
            raise pending(session.patch, session.conflicts, REBASE)
        if missing:
            seen = f"{len(missing)} change(s) of upstream are not in the result: {', '.join(missing)}"
            remedy = "look at each in the report, then `rebase-onto --ack ID=REASON`"
            raise CheckError("the rebase is not finished", seen, remedy, missing=list(missing))
        if by_hand := changed_files(work.store, session.at, snapshot(work.store, layout.tree)):
            remedy = "move these changes aside, finish, and fold them into a patch with `refresh PATCH`"
            raise UsageError("the rebase is not finished", f"changed by hand since: {', '.join(by_hand)}", remedy)
        return _finish(work, session, say, today)


def abort(layout: Layout, say: Say) -> str:
    """Give up the session and restore the tree, but for a new last patch; returns where changes by hand were saved."""
    with locked(layout, say):
        session, work = load(layout), Work.open(layout, say)
        saved = ""
        # What stood there before `new` cannot be told from what came after, so all of it stays.
        if not (session.skeleton and session.at == work.tip and session.given):
            now = snapshot(work.store, layout.tree)
            taken = work.store.diff(*session.given) if session.given else b""
            diff = taken + (work.store.diff(session.at, now) if now not in (work.tip, *session.given) else b"")
            if diff:
                number = next(n for n in range(1, 10**6) if not (layout.cache / f"aborted-{n}.diff").exists())
                saved = f"vendor/.cache/aborted-{number}.diff"
                write_text(layout.root / saved, diff)
            place(layout, work.store, work.pin, work.steps, work.tip, discard=True)
        layout.session_file.unlink()
        return saved


def drop_upstreamed(layout: Layout, say: Say, today: str, *, dry_run: bool) -> dict[str, str]:
    """Take out patches that change nothing, with evidence: in the open session, or else in the series on disk.

    Returns the evidence by patch name; it is kept in ``patches/DROPPED.md``.
    """
    with locked(layout, say):
        if read_session_file(layout) is not None:
            session, work = load(layout), Work.open(layout, say)
            found = {}
            for done in (one for one in session.done if one.before == one.after):
                step = work.steps[work.index(done.name)]
                diff = work.store.diff(step.before, step.after)
                found[done.name] = f"{done.outcome}; {where(work.store, done.after, diff)}"
            if not dry_run:
                session.dropped |= found
                session.save(layout)
            return found
        store, pin = open_store(layout), read_pin(layout.pin_file)
        tree = ensure_base(layout, store, pin, say, fetch=False)
        kept, found = [], {}
        for patch in read_series(layout.patches).patches:
            after, offsets, _ = store.apply(tree, patch.diff)
            if after and after != tree:
                kept.append(Step(patch, tree, after, changed_files(store, tree, after), offsets))
                tree = after
            elif after or store.apply(tree, patch.diff, "--reverse")[0]:
                found[patch.name] = where(store, tree, patch.diff)
            else:
                raise SeriesError(layout.patches, [(0, f"{patch.name} neither applies nor is it in the sources")])
        if found and not dry_run:
            _write(layout, store, pin, kept, found, say, today)
        return found


def result(work: Work, session: Session) -> list[Step]:
    """Return the steps of the series as the session has them so far, dropped patches left out."""
    old = {step.patch.name: step.patch for step in work.steps}
    return [
        Step(
            old.get(done.name) or Patch(done.name, session.skeleton.encode()),
            done.before,
            done.after,
            changed_files(work.store, done.before, done.after),
            (),
        )
        for done in session.done
        if done.name not in session.dropped
    ]


def target_pin(work: Work, session: Session) -> Pin:
    """Return the pin that the result of the session belongs to."""
    return parse_pin(session.pin, work.layout.session_file) if session.pin else work.pin


def recover(layout: Layout, say: Say) -> bool:
    """Finish a change of the series that was cut off while it was being written; returns whether there was one."""
    if not layout.journal.exists():
        return False
    with locked(layout, say):
        if layout.journal.exists():
            _replay_journal(layout, say)
    say("a change of the series that was cut off while it was written is complete now")
    return True


def _expect(layout: Layout, *states: str) -> None:
    now = status(layout)
    if now.state == DIRTY and DIRTY not in states and now.changes:
        raise DirtyTreeError(layout.tree, sorted({*now.changes.modified, *now.changes.added}))
    if now.state not in states:
        open_now = now.session is not None
        remedy = "`refresh`, --continue or `abort` ends what is open" if open_now else "`apply` makes the tree ready"
        raise UsageError("this cannot start now", f"the tree is {now.state}: {now.reason}", remedy)


def _check_unchanged(work: Work, session: Session) -> None:
    if session.series != work.series:
        seen = "patches or pin on disk are not those it was opened with"
        remedy = "`lucebox-patches abort` saves your changes and ends it"
        raise UsageError(f"the {session.kind} cannot go on", seen, remedy)


def _unchanged(work: Work, count: int) -> list[Done]:
    return [Done(step.patch.name, step.before, step.after) for step in work.steps[:count]]


def _fold(work: Work, patch: str) -> Session:
    """Start a refresh from changes by hand on top of the whole series."""
    _expect(work.layout, APPLIED, DIRTY)
    if not work.steps:
        raise UsageError("there is nothing to refresh", "the series is empty", "`lucebox-patches new` starts a patch")
    at = work.index(patch) if patch else len(work.steps) - 1
    step = work.steps[at]
    now = snapshot(work.store, work.layout.tree)
    after, conflicts = merge(work.store, work.tip, step.after, now)
    if conflicts:
        seen = f"later patches touch the same lines of {', '.join(conflicts)}"
        remedy = f"save the change elsewhere, `apply --force-clean`, then `lucebox-patches edit {step.patch.name}`"
        raise UsageError(f"the change does not fit {step.patch.name}", seen, remedy)
    done = [*_unchanged(work, at), Done(step.patch.name, step.before, after, EDITED)]
    return Session(REFRESH, work.pin.tree, work.series, work.names, done, at=work.tip, given=[work.tip, now])


def _resumed(work: Work, kind: str) -> Session:
    """Return the open session with the resolution that stands in the vendor tree, if it had stopped."""
    session, stamp = load(work.layout, kind), read_stamp(work.layout.tree)
    _check_unchanged(work, session)
    if stamp is None or stamp.state != COMPLETE or stamp.tree != session.at:
        # The run that opened or stopped the session was cut off before the tree was in place.
        _put(work, session, session.at, discard=False)
        if session.conflicts:
            raise pending(session.patch, session.conflicts, kind)
    if session.conflicts:
        after = snapshot(work.store, work.layout.tree)
        manifest = work.store.manifest(after)
        present = [path for path in session.conflicts if path in manifest]
        texts = work.store.read(manifest[path].split(" ")[1] for path in present)
        if marked := [path for path, text in zip(present, texts, strict=True) if has_markers(text)]:
            raise pending(session.patch, marked, kind)
        session.done.append(Done(session.patch, session.tip, after, BY_HAND))
        session.conflicts, session.at = [], after
    return session


def _carry_rest(work: Work, session: Session, say: Say) -> None:
    session.patch = ""
    for name in session.order[len(session.done) :]:
        step = work.steps[work.index(name)]
        carried = carry(work.store, session.tip, step.before, step.after)
        if carried.conflicts:
            session.patch, session.conflicts = name, list(carried.conflicts)
            _put(work, session, carried.tree, discard=True)
            raise pending(name, carried.conflicts, session.kind, step.patch.header.reason)
        offsets = [asdict(offset) for offset in carried.offsets]
        session.done.append(Done(name, session.tip, carried.tree, carried.outcome, offsets))
        if carried.outcome != CLEAN:
            say(f"{name}: {carried.outcome}")
    session.save(work.layout)
    if session.kind == REBASE:
        _put(work, session, session.tip, discard=True)


def _finish(work: Work, session: Session, say: Say, today: str) -> list[str]:
    """Write what the session has arrived at."""
    empty = [done.name for done in session.done if done.before == done.after and done.name not in session.dropped]
    if empty:
        raise EmptyPatchError(empty)
    old = {step.patch.name: (work.store.diff(step.before, step.after), step.files) for step in work.steps}
    steps = []
    for step in result(work, session):
        diff, files = old.get(step.patch.name, (b"", ()))
        if also := sorted(set(step.files) - set(files)):
            say(f"{step.patch.name}: now changes also {', '.join(also)}")
        # Blob ids on the `index` lines follow the patches before; they are no change of this one.
        same = _INDEX.sub(b"", diff) == _INDEX.sub(b"", work.store.diff(step.before, step.after))
        header = step.patch.header if same else step.patch.header.updated(today)
        steps.append(replace(step, patch=replace(step.patch, content=header.text().encode())))
    return _write(work.layout, work.store, target_pin(work, session), steps, session.dropped, say, today)


def _write(  # noqa: PLR0917 - all of it is what is written
    layout: Layout, store: Store, pin: Pin, steps: Sequence[Step], dropped: Mapping[str, str], say: Say, today: str
) -> list[str]:
    """Make a series the one on disk, all of it or nothing; returns the files that were changed."""
    files = rendered(layout, store, pin.tree, steps)
    listing, drops = layout.patches / SERIES_FILE, layout.patches / "DROPPED.md"
    files[listing] = series_text(listing.read_text("utf-8"), [step.patch.name for step in steps]).encode()
    files[layout.pin_file] = replace_pin(layout.pin_file.read_text("utf-8"), pin).encode()
    if dropped:
        text = drops.read_text("utf-8") if drops.is_file() else "# Patches that the sources made superfluous\n\n"
        lines = [f"- {today} {name}, base {pin.build}: {evidence}\n" for name, evidence in dropped.items()]
        files[drops] = (text + "".join(lines)).encode()
    changed = {str(p.relative_to(layout.root)): c for p, c in files.items() if not p.is_file() or p.read_bytes() != c}
    texts = {path: content.decode("utf-8", "surrogateescape") for path, content in changed.items()}
    gone = sorted(set(read_series(layout.patches).names) - {step.patch.name for step in steps})
    write_text(layout.journal, json.dumps({"write": texts, "remove": gone}))
    _replay_journal(layout, say)
    return [*(Path(path).name for path in changed), *gone]


def _replay_journal(layout: Layout, say: Say) -> None:
    try:
        journal = json.loads(layout.journal.read_text(encoding="utf-8"))
        texts, gone = dict(journal["write"]), list(journal["remove"])
    except (ValueError, KeyError, TypeError) as error:
        seen, remedy = f"{type(error).__name__}: {error}", "remove it, and restore patches/ from version control"
        raise UsageError(f"{layout.journal} cannot be read", seen, remedy) from error
    for path, text in texts.items():
        write_text(layout.root / path, text.encode("utf-8", "surrogateescape"))
    for name in gone:
        (layout.patches / name).unlink(missing_ok=True)
    layout.session_file.unlink(missing_ok=True)
    if layout.tree.exists():
        apply(layout, say, discard=True, hold_lock=False)
    layout.journal.unlink()


def _put(work: Work, session: Session, tree: str, *, discard: bool, steps: Sequence[Step] = ()) -> None:
    """Record and place a tree; in this order, so that `_resumed` can tell and mend a run that was cut off."""
    own, session.at = session.at, tree
    session.save(work.layout)
    pin, holds = target_pin(work, session), steps or result(work, session)
    place(work.layout, work.store, pin, holds, tree, discard=discard, mine=[own, *session.given])
