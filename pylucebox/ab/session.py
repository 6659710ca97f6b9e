"""A whole session: prepare or resume, run, conclude, write the reports."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pylucebox._errors import InvalidArgumentError
from pylucebox.ab import arms as arm_forms
from pylucebox.ab.engine_arm import identify
from pylucebox.ab.environment import HostMachine, environment, file_facts, require_same
from pylucebox.ab.errors import ComparisonError, SessionFileError
from pylucebox.ab.launch import ProcessLauncher
from pylucebox.ab.planner import Wishes, build_plan
from pylucebox.ab.ports import Display, SystemClock
from pylucebox.ab.prepare import Prepared, prepare
from pylucebox.ab.records import Arm, Plan, Workload
from pylucebox.ab.runner import Runner
from pylucebox.ab.store import ENVIRONMENT, PLAN, SUMMARY, DirectoryStore, Session, load_cycles, load_session
from pylucebox.ab.verdict import summarise

__all__ = [
    "Asked",
    "OpenDisplay",
    "command_line",
    "conclude",
    "default_directory",
    "notes_on",
    "run_new",
    "run_resumed",
    "write_reports",
]

_SPLIT = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")

OpenDisplay = Callable[[Plan], AbstractContextManager[Display]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a new session is made from.

    Attributes
    ----------
    arms, baseline, wishes
        As `build_plan` takes them.
    suite, only, model, sidecar, n_ctx
        As `prepare` takes them.
    common
        Arguments of `pylucebox.Engine` that all engine arms share.
    command
        Command line, for the record.
    health_timeout_s, timeout_s
        As `ProcessLauncher` takes them.
    """

    arms: tuple[Arm, ...]
    baseline: str | None
    wishes: Wishes
    suite: str
    only: tuple[str, ...]
    model: str | None
    sidecar: str | None
    n_ctx: int | None
    common: Mapping[str, Any]
    command: tuple[str, ...]
    health_timeout_s: float = 600.0
    timeout_s: float = 3600.0


def _prepared(asked: Asked) -> Prepared:
    return prepare(suite=asked.suite, only=asked.only, model=asked.model, sidecar=asked.sidecar, n_ctx=asked.n_ctx)


def _check_arms(plan: Plan, drafts: tuple[bool, str]) -> None:
    """Refuse what could only end in invalid runs.

    Raises
    ------
    ComparisonError
        An arm cannot do what it is for.
    """
    for arm in plan.arms:
        own_mtp = arm.options.get("mtp", "auto") not in ("auto", "off")
        needs = arm.kind == "engine" and arm.options.get("spec") == "require" and not (arm.python or arm.site)
        if needs and not own_mtp and not drafts[0]:
            raise ComparisonError(
                f"arm {arm.name!r} needs drafts", seen=drafts[1], advice="Give the MTP file with --mtp FILE."
            )
        odd = [workload.name for workload in plan.suite.workloads if not _can_run(arm, workload)]
        if odd:
            seen = f"{', '.join(odd)}: requests that start at different times or differ in length need a server arm"
            advice = "Leave these workloads out with --workload, or compare servers."
            raise ComparisonError(f"arm {arm.name!r} cannot run all workloads", seen=seen, advice=advice)


def _can_run(arm: Arm, workload: Workload) -> bool:
    if arm.kind != "engine" or len(workload.requests) == 1:
        return True
    alike = {(request.max_tokens, request.stop) for request in workload.requests}
    return len(alike) == 1 and not workload.staggered


def _model_files(path: str) -> list[Path]:
    """Return the file, or all splits of it."""
    split = _SPLIT.search(path)
    if split is None:
        return [Path(path)]
    stem = path[: split.start()]
    return [Path(f"{stem}-{number:05d}-of-{split[1]}.gguf") for number in range(1, int(split[1]) + 1)]


def _environment(plan: Plan, prepared: Prepared, command: Sequence[str]) -> dict[str, Any]:
    files = _model_files(prepared.model_path)
    if prepared.sidecar_path is not None and prepared.sidecar_path != prepared.model_path:
        files.append(Path(prepared.sidecar_path))
    return environment(
        suite=plan.suite,
        native=prepared.native,
        files=[file_facts(path) for path in files],
        arms={arm.name: _build_of(arm) for arm in plan.arms if arm.kind != "engine" or arm.python or arm.site},
        command=command,
        environ=os.environ,
        machine=HostMachine().state(),
    )


def _build_of(arm: Arm) -> dict[str, Any]:
    """Return what can be known of the program behind an arm."""
    if arm.kind == "engine":
        return identify(arm)
    if arm.kind == "url":
        return {}
    program = shutil.which(arm.command[0])
    return {} if program is None else file_facts(Path(program))


def run_new(asked: Asked, directory: Path, open_display: OpenDisplay) -> Session:
    """Run a new session.

    Parameters
    ----------
    asked
        What to compare.
    directory
        Where to write; must not hold a session yet.
    open_display
        Opens the display once the plan is known.

    Raises
    ------
    LuceboxError
        The session cannot be planned, or its results cannot be kept.
    """
    if (directory / PLAN).exists():
        allowed = "a directory without a session; continue this one with --resume"
        raise InvalidArgumentError(argument="out", value=str(directory), allowed=allowed)
    prepared = _prepared(asked)
    every = arm_forms.sentinel_arm(asked.arms, asked.common)
    plan = build_plan(
        asked.arms,
        asked.baseline,
        prepared.suite,
        asked.wishes,
        sentinel=(prepared.sentinel, every) if asked.wishes.sentinel_every else None,
        model=asked.model,
        sidecar=asked.sidecar,
    )
    _check_arms(plan, prepared.drafts)
    env = _environment(plan, prepared, asked.command)
    store = DirectoryStore(directory)
    with store.locked():
        store.write_json(ENVIRONMENT, env)
        store.write_plan(plan)
        begun = Session(plan=plan, env=env, runs=(), directory=directory)
        with open_display(plan) as display:
            return _run(begun, store, _launcher(asked, plan, prepared), display)


def run_resumed(asked: Asked, directory: Path, open_display: OpenDisplay) -> Session:
    """Go on with a session that was stopped.

    Parameters
    ----------
    asked
        Only `Asked.command` and the time limits count; everything else is in the plan.
    directory
        Of the session.
    open_display
        As for `run_new`.

    Raises
    ------
    EnvironmentMismatchError
        The machine, the model or the build is another one.
    LuceboxError
        The session cannot be read, or its results cannot be kept.
    """
    if not (directory / PLAN).is_file():
        seen = "there is no plan.json"
        raise SessionFileError("cannot resume", path=directory, seen=seen, advice="Give the directory of a session.")
    store = DirectoryStore(directory)
    with store.locked():
        store.drop_torn_line()
        found = load_session(directory)
        names = tuple(workload.name.partition("@")[0] for workload in found.plan.suite.workloads)
        again = replace(
            asked, suite=found.plan.suite.name, only=names, model=found.plan.model, sidecar=found.plan.sidecar
        )
        prepared = _prepared(replace(again, n_ctx=found.plan.suite.n_ctx))
        env = _environment(found.plan, prepared, asked.command)
        require_same(found.env, env)
        with open_display(found.plan) as display:
            return _run(found, store, _launcher(again, found.plan, prepared), display)


def _launcher(asked: Asked, plan: Plan, prepared: Prepared) -> ProcessLauncher:
    return ProcessLauncher(
        model=plan.model,
        sidecar=plan.sidecar,
        model_path=prepared.model_path,
        sidecar_path=prepared.sidecar_path,
        health_timeout_s=asked.health_timeout_s,
        timeout_s=asked.timeout_s,
    )


def _run(found: Session, store: DirectoryStore, launcher: ProcessLauncher, display: Display) -> Session:
    """Run what is left of a session and conclude it."""
    runner = Runner(
        found.plan,
        launcher=launcher,
        store=store,
        clock=SystemClock(),
        machine=HostMachine(),
        display=display,
        kept=found.runs,
    )
    stopped = runner.run()
    return conclude(replace(found, plan=runner.plan, runs=tuple(runner.records)), store, stopped=stopped)


def notes_on(session: Session) -> list[str]:
    """Return what a reader of the results must know, one sentence each."""
    notes = []
    plan = session.plan
    if plan.isolation == "request":
        notes.append("Runs of an arm shared a process (--isolation request): a quick look, not for publication.")
    if any(arm.kind == "url" for arm in plan.arms):
        notes.append("An arm is a server that ran already: other clients and what it cached cannot be excluded.")
    untold = {
        run.arm for run in session.runs if run.valid and any(sequence.n_cached is None for sequence in run.sequences)
    }
    if untold:
        notes.append(f"Cached prompt tokens are not reported by: {', '.join(sorted(untold))}.")
    loads = [run.machine.get("before", {}).get("load1") for run in session.runs]
    known = [load for load in loads if load is not None]
    n_cpus = session.env.get("comparable", {}).get("cpu", {}).get("affinity_cpus") or 1
    if known and max(known) > n_cpus:
        notes.append(f"The machine was busy: a load of up to {max(known):.1f} on {n_cpus} processors.")
    built = [run.spec["graphs_built"] for run in session.runs if run.valid and run.spec and "graphs_built" in run.spec]
    if any(built):
        notes.append(f"Graphs were built while measuring, up to {max(built)} times in a run.")
    return notes


def conclude(session: Session, store: DirectoryStore, *, stopped: str | None) -> Session:
    """Summarise a session and write ``summary.json`` and the reports.

    Parameters
    ----------
    session
        With its runs.
    store
        Where to write.
    stopped
        Why it ended early; None when it did not.

    Raises
    ------
    SessionFileError
        Nothing can be written.
    """
    summary = summarise(
        session.plan,
        session.env,
        session.runs,
        complete=stopped is None,
        stopped=stopped,
        notes=notes_on(session),
    )
    done = replace(session, summary=summary)
    store.write_json(SUMMARY, summary.as_dict())
    write_reports(done, store)
    return done


def write_reports(session: Session, store: DirectoryStore) -> None:
    """Write ``report.md`` and ``report.html``.

    Raises
    ------
    SessionFileError
        They cannot be written.
    """
    from pylucebox.ab import report_html, report_md  # noqa: PLC0415 - not needed while measuring

    store.write_text("report.md", report_md.render(session))
    store.write_text("report.html", report_html.render(session, lambda record: load_cycles(session.directory, record)))


def default_directory(now: str) -> Path:
    """Return a fresh directory name in the present one.

    Parameters
    ----------
    now
        A time as text that sorts.
    """
    path = Path(f"lucebox-ab-{now}")
    number = 1
    while path.exists():
        number += 1
        path = Path(f"lucebox-ab-{now}-{number}")
    return path


def command_line() -> tuple[str, ...]:
    """Return the command line of this program."""
    return (Path(sys.argv[0]).name, *sys.argv[1:])
