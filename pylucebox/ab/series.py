"""What each patch of a series is worth: every prefix of it, built, against the prefix before.

The builds come from a command that prints one JSON object per line, in the order of the series, beginning with the base
without patches: ``{"prefix": "0003-name", "site": "/folder/with/pylucebox"}``, and optionally ``"python"``, an
interpreter that has it installed, and ``"claim"``, the figure in the patch's header. It is expected to keep what it has
built. Nothing is measured before it has ended, because a compiler would disturb it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pylucebox.ab.codec import Record
from pylucebox.ab.errors import ComparisonError
from pylucebox.ab.results import SCHEMA
from pylucebox.ab.session import Asked
from pylucebox.ab.store import DirectoryStore, Session, load_session

__all__ = ["PatchResult", "PrefixBuild", "find_builds", "measure_series", "series_document", "series_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixBuild(Record):
    """A build of the first patches of the series.

    Attributes
    ----------
    prefix
        Name of its last patch, or of the base.
    site
        Folder that `pylucebox` is imported from.
    python
        Interpreter; None for the present one.
    claim
        What the patch's header says it brings.
    """

    prefix: str
    site: str | None = None
    python: str | None = None
    claim: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchResult(Record):
    """What a patch changes.

    Attributes
    ----------
    patch, claim
        As in `PrefixBuild`.
    verdict, ratio, low, high
        Pooled over the workloads, with the patch against without.
    verdicts
        By workload.
    exit_code, directory
        Of its session.
    """

    patch: str
    verdict: str
    exit_code: int
    directory: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    claim: str | None = None
    verdicts: dict[str, str]


def find_builds(command: Sequence[str]) -> list[PrefixBuild]:
    """Run the command that builds all prefixes, and return them.

    Raises
    ------
    ComparisonError
        It failed, or printed something else.
    """
    failed = f"cannot build the prefixes with {command[0]!r}"
    try:
        done = subprocess.run(list(command), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise ComparisonError(failed, seen=error.strerror or str(error), advice="Check the command.") from error
    if done.returncode != 0:
        seen = f"it ended with status {done.returncode}"
        raise ComparisonError(failed, seen=seen, advice="Run it by hand and mend what it reports.")
    builds = []
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        try:
            builds.append(PrefixBuild.from_dict(json.loads(line)))
        except ValueError as error:
            advice = 'It must print lines such as {"prefix": "0001-name", "site": "/folder"} and nothing else.'
            raise ComparisonError(failed, seen=f"{line[:80]!r}: {error}", advice=advice) from error
    names = [build.prefix for build in builds]
    lacking = [build.prefix for build in builds if build.site is None and build.python is None]
    if len(builds) < 2 or len(set(names)) < len(names) or lacking:
        seen = f"prefixes {names}" + (f", of which {lacking} have neither site nor python" if lacking else "")
        raise ComparisonError(failed, seen=seen, advice="Two or more prefixes of different names are needed.")
    return builds


def _asked_for(asked: Asked, before: PrefixBuild, after: PrefixBuild) -> Asked:
    """Return what compares two prefixes at the one setting that was asked for."""
    setting = asked.arms[0]
    arms = tuple(
        replace(setting, name=name, site=build.site, python=build.python)
        for name, build in (("without", before), ("with", after))
    )
    return replace(asked, arms=arms, baseline="without")


def measure_series(
    asked: Asked,
    builds: Sequence[PrefixBuild],
    directory: Path,
    run: Callable[[Asked, Path], Session],
    say: Callable[[str], None],
) -> list[PatchResult]:
    """Compare every prefix with the one before.

    Parameters
    ----------
    asked
        The session of one pair; its only arm is the setting that all builds run.
    builds
        In the order of the series.
    directory
        Each patch gets a session in a folder of its own. Patches whose session is complete are not measured again.
    run
        Runs or resumes a session in a directory.
    say
        Prints a line.

    Returns
    -------
    list of PatchResult
        Also written to ``series.json`` after each patch.

    Raises
    ------
    ComparisonError
        The setting is not one engine arm.
    """
    if len(asked.arms) != 1 or asked.arms[0].kind != "engine":
        seen = ", ".join(arm.name for arm in asked.arms)
        raise ComparisonError("a series is measured at one setting of the engine", seen=seen, advice="Use --arms k3.")
    results: list[PatchResult] = []
    for number, (before, after) in enumerate(pairwise(builds), 1):
        place = directory / f"{number:02d}-{after.prefix}"
        say(f"patch {number} of {len(builds) - 1}: {after.prefix}")
        session = _complete(place) or run(_asked_for(asked, before, after), place)
        results.append(_result(after, session, place.name))
        DirectoryStore(directory).write_json("series.json", series_document(results))
    return results


def _complete(directory: Path) -> Session | None:
    if not (directory / "summary.json").is_file():
        return None
    session = load_session(directory)
    return session if session.summary is not None and session.summary.complete else None


def _result(build: PrefixBuild, session: Session, name: str) -> PatchResult:
    summary = session.summary
    if summary is None:
        raise ComparisonError(f"the session of {build.prefix!r} has no summary", seen=name)
    pooled = summary.pooled[0]
    return PatchResult(
        patch=build.prefix,
        claim=build.claim,
        verdict=pooled.verdict,
        ratio=pooled.ratio,
        low=pooled.low,
        high=pooled.high,
        verdicts={row.workload: row.verdict for workload in summary.workloads for row in workload.rows},
        exit_code=summary.exit_code,
        directory=name,
    )


def series_rows(results: Sequence[PatchResult]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of a table: patch, ratio, interval, verdict, claim."""
    for result in results:
        known = result.ratio is not None and result.low is not None and result.high is not None
        ratio = f"{result.ratio:.3f}" if known else "-"
        interval = f"{result.low:.3f} to {result.high:.3f}" if known else "-"
        yield result.patch, ratio, interval, result.verdict, result.claim or "-"


def series_document(results: Sequence[PatchResult]) -> dict[str, Any]:
    """Return what ``series.json`` holds."""
    return {"schema": SCHEMA, "patches": [result.as_dict() for result in results]}
