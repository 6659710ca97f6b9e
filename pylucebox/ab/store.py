"""The directory of a session: written so that whatever ends the program leaves everything measured before readable."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pylucebox.ab.codec import canonical
from pylucebox.ab.errors import ComparisonError, SessionFileError
from pylucebox.ab.records import CycleRecord, Plan, RunRecord
from pylucebox.ab.results import SCHEMA, Summary

__all__ = ["DirectoryStore", "MemoryStore", "Session", "Store", "load_cycles", "load_session", "write_atomically"]

PLAN, ENVIRONMENT, RUNS, SUMMARY = "plan.json", "env.json", "runs.jsonl", "summary.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session as it was read.

    Attributes
    ----------
    plan, env, runs
        Contents of its files.
    summary
        None when the session was not summarised yet.
    directory
        Where it lies; None for one in memory.
    """

    plan: Plan
    env: Mapping[str, Any]
    runs: tuple[RunRecord, ...]
    summary: Summary | None = None
    directory: Path | None = None


class Store(Protocol):
    """Keeps what a session measures."""

    def append(self, record: RunRecord, cycles: Sequence[CycleRecord]) -> None:
        """Keep a run; it is safe once this returns."""

    def keep_tokens(self, digest: str, token_ids: Sequence[int]) -> None:
        """Keep the ids behind a digest."""

    def tokens(self, digest: str) -> tuple[int, ...] | None:
        """Return the ids behind a digest, None when they were not kept."""

    def write_plan(self, plan: Plan) -> None:
        """Replace the plan."""


@dataclass
class MemoryStore:
    """Keeps a session in memory, for simulations."""

    records: list[RunRecord] = field(default_factory=list)
    cycles: dict[tuple[int, int], tuple[CycleRecord, ...]] = field(default_factory=dict)
    texts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    plan: Plan | None = None

    def append(self, record: RunRecord, cycles: Sequence[CycleRecord]) -> None:
        """Keep a run."""
        self.records.append(record)
        self.cycles[record.index, record.attempt] = tuple(cycles)

    def keep_tokens(self, digest: str, token_ids: Sequence[int]) -> None:
        """Keep the ids behind a digest."""
        self.texts.setdefault(digest, tuple(token_ids))

    def tokens(self, digest: str) -> tuple[int, ...] | None:
        """Return the ids behind a digest, None when they were not kept."""
        return self.texts.get(digest)

    def write_plan(self, plan: Plan) -> None:
        """Replace the plan."""
        self.plan = plan


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that a reader, or a crash, sees the old content or the new one and nothing between.

    Raises
    ------
    SessionFileError
        It cannot be written.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise SessionFileError("cannot write", path=path, seen=error.strerror or str(error)) from error


def _zipped(content: bytes) -> bytes:
    return gzip.compress(content, compresslevel=6, mtime=0)


class DirectoryStore:
    """A session directory that is being written. One process at a time has it.

    Parameters
    ----------
    directory
        Made when it does not exist.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def locked(self) -> Iterator[DirectoryStore]:
        """Hold the directory; the lock ends with the process, whatever ends it.

        Raises
        ------
        ComparisonError
            Another process has it.
        SessionFileError
            It cannot be made or written to.
        """
        path = self.directory / ".lock"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            handle = path.open("ab")
        except OSError as error:
            raise SessionFileError("cannot write", path=path, seen=error.strerror or str(error)) from error
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                failed = f"the session in {str(self.directory)!r} is in use"
                advice = "Wait for the other `lucebox ab`, or give another --out."
                raise ComparisonError(failed, seen="another process runs it", advice=advice) from error
            yield self

    def append(self, record: RunRecord, cycles: Sequence[CycleRecord]) -> None:
        """Keep a run: first its cycles, then the line that makes it count.

        Raises
        ------
        SessionFileError
            The disk is full, for example. The file then ends with the run before.
        """
        if cycles:
            lines = "\n".join(canonical(cycle) for cycle in cycles)
            write_atomically(_cycles_path(self.directory, record), _zipped(lines.encode()))
        self._append_line(canonical(record).encode() + b"\n")

    def _append_line(self, line: bytes) -> None:
        path = self.directory / RUNS
        try:
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise SessionFileError("cannot write", path=path, seen=error.strerror or str(error)) from error
        try:
            size = os.fstat(handle).st_size
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[os.write(handle, rest) :]
                os.fsync(handle)
            except OSError as error:
                with suppress(OSError):
                    os.ftruncate(handle, size)
                seen = f"{error.strerror or error}; the runs before this one are kept"
                raise SessionFileError("cannot write", path=path, seen=seen) from error
        finally:
            os.close(handle)

    def keep_tokens(self, digest: str, token_ids: Sequence[int]) -> None:
        """Keep the ids behind a digest, once for all runs that gave them.

        Raises
        ------
        SessionFileError
            They cannot be written.
        """
        path = self.directory / "tokens" / f"{digest}.json.gz"
        if not path.exists():
            write_atomically(path, _zipped(canonical(list(token_ids)).encode()))

    def tokens(self, digest: str) -> tuple[int, ...] | None:
        """Return the ids behind a digest, None when they were not kept or cannot be read."""
        try:
            return tuple(json.loads(gzip.decompress((self.directory / "tokens" / f"{digest}.json.gz").read_bytes())))
        except (OSError, EOFError, ValueError):
            return None

    def write_plan(self, plan: Plan) -> None:
        """Replace the plan."""
        self.write_json(PLAN, plan.as_dict())

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a JSON file.

        Raises
        ------
        SessionFileError
            It cannot be written.
        """
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(self.directory / name, (text + "\n").encode("utf-8", "backslashreplace"))

    def write_text(self, name: str, content: str) -> Path:
        """Replace a text file and return its path.

        Raises
        ------
        SessionFileError
            It cannot be written.
        """
        path = self.directory / name
        write_atomically(path, content.encode("utf-8", "backslashreplace"))
        return path

    def drop_torn_line(self) -> None:
        """Cut off the end of a line that was being written when the program was killed.

        Raises
        ------
        SessionFileError
            The file cannot be changed.
        """
        path = self.directory / RUNS
        try:
            if not path.exists():
                return
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole != len(content):
                os.truncate(path, whole)
        except OSError as error:
            raise SessionFileError("cannot mend", path=path, seen=error.strerror or str(error)) from error


def _cycles_path(directory: Path, record: RunRecord) -> Path:
    return directory / "cycles" / f"{record.index}-{record.attempt}.jsonl.gz"


def load_cycles(directory: Path | None, record: RunRecord) -> tuple[CycleRecord, ...]:
    """Return the cycles of a run; none when they were not kept or cannot be read."""
    if directory is None:
        return ()
    try:
        lines = gzip.decompress(_cycles_path(directory, record).read_bytes()).decode().splitlines()
        return tuple(CycleRecord.from_dict(json.loads(line)) for line in lines)
    except (OSError, EOFError, ValueError):
        return ()


def load_session(directory: Path) -> Session:
    """Read a session.

    Parameters
    ----------
    directory
        Written by `lucebox ab`, finished or not.

    Raises
    ------
    SessionFileError
        A file is missing, is not what it should be, or is of a newer version.
    """
    plan = _read_object(directory / PLAN)
    env = _read_object(directory / ENVIRONMENT)
    summary_path = directory / SUMMARY
    summary = _read_object(summary_path) if summary_path.exists() else None
    try:
        return Session(
            plan=Plan.from_dict(plan),
            env=env,
            runs=_read_runs(directory / RUNS),
            summary=None if summary is None else Summary.from_dict(summary),
            directory=directory,
        )
    except (ValueError, TypeError) as error:
        raise _unreadable(directory, str(error)) from error


def _unreadable(path: Path, seen: str) -> SessionFileError:
    advice = "Give the directory that `lucebox ab` wrote (--out); a file that was changed by hand cannot be used."
    return SessionFileError("cannot read the session file", path=path, seen=seen, advice=advice)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise _unreadable(path, str(error)) from error
    if not isinstance(content, dict):
        raise _unreadable(path, "it holds no JSON object")
    if content.get("schema") != SCHEMA:
        raise _unreadable(path, f"it has version {content.get('schema')!r}, this program reads {SCHEMA}")
    return content


def _read_runs(path: Path) -> tuple[RunRecord, ...]:
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    records = []
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline was never finished
        try:
            records.append(RunRecord.from_dict(json.loads(line)))
        except ValueError as error:
            raise _unreadable(path, f"line {number}: {error}") from error
    return tuple(records)
