"""Command line of the patch tool.

Text for people goes to stderr; with ``--json`` exactly one JSON object goes to stdout, an ``error`` object included.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import export as exporting
from . import lint as linting
from . import report as reporting
from . import session as sessions
from . import upstreams, verify, workspace
from .chain import CLEAN, EMPTY, OFFSET
from .errors import EXIT_ENVIRONMENT, EXIT_FOUND, EXIT_OK, EXIT_VERIFY, PatchError, UsageError
from .layout import Layout, locked
from .series import Series
from .state import Session
from .tree import Changes

_ROOT = Path(__file__).resolve().parents[2]
_MAX_PATHS_SHOWN = 10
_TOOL = "lucebox-patches"
_EPILOG = (
    "Exit codes: 0 done; 1 a check found something, or the tree is not ready; 2 usage, series, or a state that does "
    "not fit; 3 pin or hash; 4 a conflict waits for you; 5 changes made by hand would be lost; 6 a patch does not "
    "apply to its base, or a prefix fails; 7 git, pip, cmake, network or disk."
)
Answer = tuple[int, dict[str, Any]]
Run = Callable[[Layout, argparse.Namespace], Answer]


def main(arguments: Sequence[str] | None = None, root: Path = _ROOT) -> int:
    """Run one command on the checkout at `root` and return the exit code (see `errors`)."""
    options = _parser().parse_args(arguments)
    try:
        run: Run = options.run
        recovered = options.run is not _status and sessions.recover(Layout(root), _say)
        taken_up = recovered and (options.command == "refresh" or vars(options).get("finish", False))
        code, data = (EXIT_OK, {"recovered": True}) if taken_up else run(Layout(root), options)
    except PatchError as error:
        _say(f"error: {error}")
        code, data = error.exit_code, {"error": error.as_dict()}
    except OSError as error:
        _say(f"error: {options.command} failed: {error}")
        code, data = EXIT_ENVIRONMENT, {"error": {"type": "OSError", "seen": str(error), "exit_code": EXIT_ENVIRONMENT}}
    try:
        if options.json:
            print(json.dumps({"command": options.command, **data}, indent=1, default=str))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_TOOL,
        description="Keep vendor/llama.cpp equal to the upstream pinned in vendor/upstream.toml plus patches/series, "
        "change the series, and move it to another upstream.",
        epilog=_EPILOG,
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Run, text: str, **arguments: dict[str, Any]) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", epilog=_EPILOG)
        added.add_argument("--json", action="store_true", help="print one JSON object on stdout")
        added.set_defaults(run=run)
        for key, options in arguments.items():
            positional = options.pop("positional", False)
            added.add_argument(key if positional else f"--{key.replace('_', '-')}", **options)
        return added

    def flag(text: str) -> dict[str, Any]:
        return {"action": "store_true", "help": text}

    def value(text: str, default: Any = "", **more: Any) -> dict[str, Any]:
        return {"default": default, "help": text, **more}

    def name(text: str, **more: Any) -> dict[str, Any]:
        return {"positional": True, "help": text, **more}

    archive = value("take this archive instead of downloading it", None, type=Path, metavar="FILE")
    jobs = value("compilations at once (default: number of CPUs)", os.cpu_count() or 1, type=int)
    command(
        "fetch",
        _fetch,
        "get the pinned upstream, or another one to rebase onto, into the store",
        version=name("version of the pinned package, for example 11401.0.0 (default: the pin)", nargs="?", default=""),
        archive=archive,
        sha256=value("refuse an archive of another version that has not this hash"),
        git=value("take a commit or tag of a git repository instead", metavar="URL@COMMIT"),
    )
    command(
        "apply",
        _apply,
        "make the tree the pinned base plus the series; nothing to do when up to date",
        fetch=flag("download the base if it is needed and not here"),
        strict=flag("exit 1 if a hunk is not where its patch says"),
        force_clean=flag("make the tree anew and discard changes made in it by hand"),
    )
    command("status", _status, "tell the state; exit code 0 only if a build can use the tree")
    command(
        "new",
        _new,
        "start a patch; edit files in vendor/llama.cpp, then `refresh`",
        patch=name("lower-case words with hyphens, with or without .patch"),
        subject=value("area: summary in the imperative, at most 72 characters", None, required=True),
        **{"class": value("default: hook", "hook", dest="kind", choices=("hook", "feature", "fix", "backport"))},
        after=value("put it behind this patch (default: the last)", metavar="PATCH"),
    )
    command("edit", _edit, "go back to a patch to change it; then `refresh`", patch=name("its name"))
    refresh = command(
        "refresh",
        _refresh,
        "fold what was changed by hand into a patch and bring the later ones after it",
        patch=name("what to change (default: the one of `new` or `edit`, else the last)", nargs="?", default=""),
    )
    command("abort", _abort, "give up an edit, refresh or rebase and restore what was before")
    command(
        "export",
        _export,
        "write patch files, EXPECTED and README table in their one form",
        check=flag("write nothing; exit 1 and show the difference if there is one"),
    )
    command("lint", _lint, "check the form and the rules of the series", fix=flag("run `export` first"))
    rebase = command(
        "rebase-onto",
        _rebase,
        "carry the series onto another upstream that was fetched",
        version=name("version, build, commit or tree", nargs="?", default=""),
        abort=flag("restore what was before"),
        finish=flag("write series, pin and report"),
        report=flag("write the report of the rebase so far"),
        ack=value("accept that an upstream hunk is not in the result", [], action="append", metavar="ID=REASON"),
        dir=value("where reports go (default: docs/rebase)", Path("docs/rebase"), type=Path),
    )
    for resumable in (refresh, rebase):
        resumable.add_argument("--continue", dest="go_on", action="store_true", help="go on after a conflict")
    command(
        "drop-upstreamed",
        _drop,
        "take out patches that the sources already hold, with the evidence",
        dry_run=flag("only name them"),
    )
    command("report", _report, "print the series as Markdown, for release notes")
    command(
        "canary",
        _canary,
        "tell how the series would reach the newest upstream; changes nothing",
        version=name("another version than the newest", nargs="?", default=""),
        archive=archive,
    )
    command(
        "verify",
        _verify,
        "build and test the whole series, or prefixes of it",
        prefixes=flag("all prefixes, the plain base included"),
        changed=flag("the prefixes from the first changed patch on"),
        since=value("commit that --changed compares with (default: HEAD)", "HEAD"),
        keep_going=flag("go on after a failure"),
        jobs=jobs,
        sites=value("keep the package of each prefix here and print a line for `lucebox ab --series`", None, type=Path),
    )
    command(
        "bisect",
        _bisect,
        "find the first patch with which a command fails",
        good=value("prefix on which it succeeds (default: 0, the plain base)", 0, type=int),
        bad=value("prefix on which it fails (default: the whole series)", None, type=int),
        jobs=jobs,
        run_this=name("runs with the prefix's pylucebox first on PYTHONPATH", nargs="+", metavar="-- COMMAND"),
    )
    return parser


def _fetch(layout: Layout, options: argparse.Namespace) -> Answer:
    pin, unpacked = workspace.fetch(
        layout, _say, version=options.version, archive=options.archive, git=options.git, sha256=options.sha256
    )
    tree = "unpacked to vendor/llama.cpp" if unpacked else "vendor/llama.cpp left as it is"
    _say(f"fetch: {pin.package} is llama.cpp {pin.build} ({pin.llama_cpp_version}), tree {pin.tree}")
    _say(f"fetch: sha256 {pin.sha256 or 'none, from git'}; {tree}")
    return EXIT_OK, {"upstream": pin.identity(), "sha256": pin.sha256, "commit": pin.commit, "unpacked": unpacked}


def _apply(layout: Layout, options: argparse.Namespace) -> Answer:
    result = workspace.apply(layout, _say, fetch_missing=options.fetch, discard=options.force_clean)
    what = f"llama.cpp {result.pin.build} with {_series_words(result.series)}"
    if result.session:
        _say("apply: an edit, refresh or rebase is open: vendor/llama.cpp is yours and stays as it is")
    elif result.changed:
        _say(f"apply: {what}: {len(result.synced.written)} file(s) written, {len(result.synced.removed)} removed")
    else:
        _say(f"apply: {what}: up to date")
    offsets = [{"patch": step.patch.name, **asdict(offset)} for step in result.steps for offset in step.offsets]
    for offset in offsets:
        _say("warning: {patch}: {file}: hunk {hunk} applied {lines:+d} line(s) off".format(**offset))
    hand_made = [*result.changes.modified, *result.changes.added]
    if hand_made:
        _say(f"warning: the tree holds changes that are in no patch: {_some(hand_made)}")
    return EXIT_FOUND if options.strict and offsets else EXIT_OK, {
        "changed": result.changed,
        "session": result.session,
        "upstream": result.pin.identity(),
        **_series_data(result.series),
        "tree": result.tree,
        **asdict(result.synced),
        "offsets": offsets,
        "modified": result.changes.modified,
        "added": result.changes.added,
    }


def _status(layout: Layout, _: argparse.Namespace) -> Answer:
    result = workspace.status(layout)
    touched = {patch.name: patch for patch in result.stamp.series} if result.stamp is not None else {}
    patches = []
    pin, here = result.pin, "here" if result.source_at_hand else "not fetched"
    _say(f"pin:     llama.cpp {pin.build} ({pin.llama_cpp_version}, {pin.licence}) from {pin.package}; {here}")
    _say(f"tree:    {result.state} ({result.reason})")
    _say(f"series:  {_series_words(result.series)}")
    for patch in result.series.patches:
        present = patch.name in touched and touched[patch.name].sha256 == patch.sha256
        fields = patch.header.fields
        files = touched[patch.name].files if present else None
        row = {"name": patch.name, "sha256": patch.sha256, "in_tree": present, "files": files, "fields": fields}
        patches.append(row)
        about = ", ".join(fields.get(key, "?") for key in ("Class", "Forwarded", "Last-Update"))
        where = "in tree    " if present else "not in tree"
        _say(f"  {where}  {patch.name} ({about}) {', '.join(files or ())}".rstrip())
    changes = result.changes or Changes()
    for word, paths in (("changed by hand", changes.modified), ("added by hand", changes.added)):
        if paths:
            _say(f"{word}: {_some(paths)}")
    if changes.missing:
        why = "a source distribution carries only a part; in a checkout `apply --force-clean` brings them back"
        _say(f"missing: {len(changes.missing)} file(s); {why}")
    ready = result.state == workspace.APPLIED
    return EXIT_OK if ready else EXIT_FOUND, {
        "state": result.state,
        "reason": result.reason,
        "ready": ready,
        "upstream": result.pin.identity(),
        "archive_sha256": result.pin.sha256,
        "source_at_hand": result.source_at_hand,
        **_series_data(result.series),
        "patches": patches,
        "tree": result.stamp.tree if result.stamp is not None else None,
        "tree_series_hash": result.stamp.series_hash if result.stamp is not None else None,
        **asdict(changes),
        "session": result.session,
    }


def _new(layout: Layout, options: argparse.Namespace) -> Answer:
    session = sessions.new(
        layout, _say, options.patch, subject=options.subject, kind=options.kind, after=options.after, today=_today()
    )
    _say(f"new: {session.patch} is open. Edit files in vendor/llama.cpp, build, then `{_TOOL} refresh`.")
    return EXIT_OK, {"patch": session.patch, "order": session.order}


def _edit(layout: Layout, options: argparse.Namespace) -> Answer:
    session = sessions.edit(layout, _say, options.patch)
    left = len(session.order) - len(session.done) - 1
    _say(f"edit: vendor/llama.cpp holds the series up to {session.patch}; `refresh` brings back {left} later one(s)")
    return EXIT_OK, {"patch": session.patch, "later": session.order[len(session.done) + 1 :]}


def _refresh(layout: Layout, options: argparse.Namespace) -> Answer:
    session, changed = sessions.refresh(layout, _say, options.patch, today=_today(), resume=options.go_on)
    _say(f"refresh: {', '.join(changed) or 'nothing changed'}")
    if session.skeleton:
        _say("refresh: now fill in the header of the new patch file where it says TODO, then `export` and `lint`")
    return EXIT_OK, {"written": changed, "patches": [asdict(done) for done in session.done]}


def _abort(layout: Layout, _: argparse.Namespace) -> Answer:
    saved = sessions.abort(layout, _say)
    how = f"; `git apply --directory=vendor/llama.cpp {saved}` brings back what was changed by hand" if saved else ""
    _say(f"abort: the series is as before, see `status` for the tree{how}")
    return EXIT_OK, {"saved": saved or None}


def _export(layout: Layout, options: argparse.Namespace) -> Answer:
    changed = exporting.export(layout, _say, check=options.check)
    _say(f"export: {', '.join(changed) or 'everything is in its form'}")
    return EXIT_OK, {"written": changed}


def _lint(layout: Layout, options: argparse.Namespace) -> Answer:
    fixed = exporting.export(layout, _say, check=False) if options.fix else []
    findings = linting.lint(layout, _say)
    for finding in findings:
        _say(f"{finding.where}: {finding.code} {finding.text}")
    if workspace.read_session_file(layout) is not None:
        _say("an edit, refresh or rebase is open; what is on disk was checked, not what is in vendor/llama.cpp")
    _say(f"lint: {len(findings)} finding(s)" + (f"; written: {', '.join(fixed)}" if fixed else ""))
    data = {"findings": [asdict(finding) for finding in findings], "written": fixed}
    return EXIT_FOUND if findings else EXIT_OK, data


def _rebase(layout: Layout, options: argparse.Namespace) -> Answer:
    if options.abort:
        return _abort(layout, options)
    if options.version:
        sessions.rebase(layout, _say, upstreams.find(workspace.open_store(layout), options.version))
    elif options.go_on:
        sessions.go_on(layout, _say)
    work, session = sessions.Work.open(layout, _say), sessions.load(layout, sessions.REBASE)
    if session.conflicts:
        raise workspace.pending(session.patch, session.conflicts, session.kind)
    for name, _, reason in (text.partition("=") for text in options.ack):
        if not reason:
            raise UsageError("nothing was acknowledged", f"{name} has no reason", "give --ack ID=REASON")
        session.acknowledged[name] = reason
    session.save(layout)
    found = reporting.audit(work, session)
    missing, data = found.open(session), reporting.as_data(work, session, found)
    written = sessions.finish_rebase(layout, _say, _today(), missing) if options.finish else []
    if options.finish or options.report:
        written += reporting.write(layout, options.dir, data)
    for name in missing:
        _say(f"upstream's change {name} is not in the result; `rebase-onto --ack {name}=REASON` if that is right")
    for done in session.done:
        if done.outcome in EMPTY and done.name not in session.dropped:
            _say(f"{done.name} changes nothing any more; `drop-upstreamed` takes it out")
    _say(f"rebase-onto: {'done' if options.finish else 'all is carried; `verify`, then `rebase-onto --finish`'}")
    _say(f"written: {', '.join(written) or 'nothing'}")
    return EXIT_OK, {**data, "missing": missing, "written": written}


def _drop(layout: Layout, options: argparse.Namespace) -> Answer:
    found = sessions.drop_upstreamed(layout, _say, _today(), dry_run=options.dry_run)
    for name, evidence in found.items():
        _say(f"{'would drop' if options.dry_run else 'dropped'} {name}: {evidence}")
    then = "; now --continue or --finish" if found and workspace.read_session_file(layout) is not None else ""
    _say(f"drop-upstreamed: {len(found)} patch(es){then}")
    return EXIT_FOUND if found and options.dry_run else EXIT_OK, {"dropped": found}


def _report(layout: Layout, options: argparse.Namespace) -> Answer:
    work = sessions.Work.open(layout, _say)
    about = f"{len(work.steps)} patches on llama.cpp {work.pin.build} ({work.pin.llama_cpp_version})"
    text = f"{about}, tree `{work.tip}`.\n\n{exporting.table(work.steps)}"
    if not options.json:
        print(text, end="")
    return EXIT_OK, {"markdown": text}


def _canary(layout: Layout, options: argparse.Namespace) -> Answer:
    work = sessions.Work.open(layout, _say)
    with locked(layout, _say):
        version = options.version.removeprefix("b")
        target = upstreams.fetch_version(layout, work.store, work.pin, _say, version=version, archive=options.archive)
    carried = sessions.classify(work, target)
    rows = [{"patch": step.patch.name, **asdict(one)} for step, one in zip(work.steps, carried, strict=True)]
    easy = all(one.outcome in (CLEAN, OFFSET) for one in carried)
    _say(f"canary: {work.pin.build} to {target.build}: {'every patch applies' if easy else 'a person is needed'}")
    data = {"from": work.pin.identity(), "to": target.identity(), "sha256": target.sha256, "patches": rows}
    return EXIT_OK if easy else EXIT_FOUND, data


def _workshop(layout: Layout, options: argparse.Namespace) -> tuple[verify.Workshop, Session | None]:
    work = sessions.Work.open(layout, _say)
    if workspace.read_session_file(layout) is None:
        return verify.Workshop(layout, work.store, work.pin, work.steps, _say, options.jobs), None
    session = sessions.load(layout, sessions.REBASE)
    pin, steps = sessions.target_pin(work, session), sessions.result(work, session)
    return verify.Workshop(layout, work.store, pin, steps, _say, options.jobs), session


def _verify(layout: Layout, options: argparse.Namespace) -> Answer:
    shop, session = _workshop(layout, options)
    prefixes = list(range(len(shop.steps) + 1)) if options.prefixes else [len(shop.steps)]
    if options.changed:
        prefixes = verify.changed_prefixes(layout, Series(tuple(step.patch for step in shop.steps)), options.since)
    outcomes, failures = verify.verify(shop, prefixes, keep_going=options.keep_going, sites=options.sites)
    if session is not None:
        session.verified = [outcome.line() for outcome in outcomes] + [failure.failed for failure in failures]
        session.save(layout)
    for failure in failures:
        _say(f"error: {failure}")
    _say(f"verify: {len(outcomes)} prefix(es) pass, {len(failures)} fail")
    return EXIT_VERIFY if failures else EXIT_OK, {
        "passed": [asdict(outcome) for outcome in outcomes],
        "failed": [failure.as_dict() for failure in failures],
    }


def _bisect(layout: Layout, options: argparse.Namespace) -> Answer:
    shop, _ = _workshop(layout, options)
    bad = verify.bisect(shop, options.good, len(shop.steps) if options.bad is None else options.bad, options.run_this)
    _say(f"bisect: the first prefix that fails is {bad}, {shop.steps[bad - 1].patch.name}")
    return EXIT_OK, {"prefix": bad, "patch": shop.steps[bad - 1].patch.name}


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def _series_words(series: Series) -> str:
    count = len(series.patches)
    return f"{count} patch{'' if count == 1 else 'es'} (series {series.short_hash})"


def _series_data(series: Series) -> dict[str, Any]:
    return {"series_hash": series.hash, "series_hash_short": series.short_hash, "num_patches": len(series.patches)}


def _some(paths: Sequence[str]) -> str:
    more = len(paths) - _MAX_PATHS_SHOWN
    return ", ".join(paths[:_MAX_PATHS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _say(text: str) -> None:
    print(f"{_TOOL}: {text}", file=sys.stderr, flush=True)
