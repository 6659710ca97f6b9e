"""Building and testing prefixes of the series.

Prefix n is the base with the first n patches. All prefixes are built in the same directories one after the other, and
only the files that differ are rewritten, so that the compiler sees what changed and ccache hits. A prefix passes if our
native code builds against it, a plain greedy decode of the built-in model gives the tokens of the prefix before (unless
the patch says ``Changes-Output: yes``), and the ``Test`` of its last patch passes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .chain import Step
from .errors import ToolError, UsageError, VerifyError
from .layout import Layout, Say, write_text
from .objects import scan
from .pin import Pin
from .series import Series
from .store import Store, run_git
from .tree import COMPLETE, Stamp, sync_tree

_LOG_LINES_SHOWN = 50
_SMOKE = """
import json, pylucebox
with pylucebox.Engine.demo(mtp=False, n_threads=1) as engine:
    result = engine.generate("def add(a, b):", max_tokens=16)
print(json.dumps(list(result.token_ids)))
"""
_NOT_OURS = ("lib", "native", "__pycache__", "_build.json", "_native*.so", "_native*.pyd")


@dataclass(frozen=True)
class Outcome:
    """A prefix that passed: its length, last patch, whether the record of an earlier run was used, tokens, seconds."""

    prefix: int
    patch: str
    cached: bool
    tokens: list[int]
    duration_s: float

    def line(self) -> str:
        """Return it for people."""
        how = "as recorded" if self.cached else f"built and tested in {self.duration_s:.0f} s"
        return f"prefix {self.prefix} ({self.patch}): passes, {how}"


@dataclass(frozen=True)
class Workshop:
    """Builds the prefixes of `steps` on `pin` below ``vendor/.cache/verify``, with `jobs` compilations at once."""

    layout: Layout
    store: Store
    pin: Pin
    steps: Sequence[Step]
    say: Say
    jobs: int

    def name(self, prefix: int) -> str:
        """Return the last patch of a prefix."""
        return self.steps[prefix - 1].patch.name if prefix else "the plain base"

    def tree_of(self, prefix: int) -> str:
        """Return the tree id of a prefix."""
        return self.steps[prefix - 1].after if prefix else self.pin.tree

    def build(self, prefix: int) -> None:
        """Build a prefix and install the package with it; raises `VerifyError` or `ToolError`."""
        root = self.layout.verify
        tree, build, site = root / "tree", root / "build", root / "site"
        files = {path: [entry] for path, entry in self.store.manifest(self.tree_of(prefix)).items()}
        stamp = Stamp(COMPLETE, self.pin.identity(), Series().hash, [], self.tree_of(prefix), files)
        sync_tree(self.store, tree, stamp, [], discard=True)
        options = [f"-DLUCEBOX_LLAMA_CPP_DIR={tree}", f"-DPython_EXECUTABLE={sys.executable}", "-DLUCEBOX_WEB_PAGE=OFF"]
        if shutil.which("ccache"):
            options += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX")]
        if shutil.which("ninja") and not (build / "Makefile").exists():
            options += ["-G", "Ninja"]
        self.run(prefix, "configure", "cmake", "-S", str(self.layout.root), "-B", str(build), *options)
        targets = ("--target", "lucebox-libraries", "--parallel", str(self.jobs))
        self.run(prefix, "build", "cmake", "--build", str(build), *targets)
        shutil.rmtree(site, ignore_errors=True)
        where = ("--prefix", str(site), "--component", "pylucebox")
        self.run(prefix, "install", "cmake", "--install", str(build), *where)
        # Copies, not links: the package finds its native parts beside its own files.
        ours = shutil.ignore_patterns(*_NOT_OURS)
        shutil.copytree(self.layout.root / "pylucebox", site / "pylucebox", ignore=ours, dirs_exist_ok=True)

    def run(self, prefix: int, step: str, *command: str) -> str:
        """Run a command on the installed prefix and return what it printed; raises `VerifyError` if it fails."""
        root = self.layout.verify
        added = {"PYTHONPATH": str(root / "site"), "PYTHONDONTWRITEBYTECODE": "1"}
        added |= {"CCACHE_BASEDIR": str(self.layout.root), "CCACHE_NOHASHDIR": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=root,
                env=os.environ | added,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise ToolError(command[0], f"{step} cannot run", str(error), f"install {command[0]}") from error
        if done.returncode != 0:
            log = "\n".join(done.stdout.splitlines()[-_LOG_LINES_SHOWN:])
            again = f"cd {root} && PYTHONPATH={root / 'site'} {' '.join(command)}"
            raise VerifyError(
                f"prefix {prefix} ({self.name(prefix)}) fails at: {step}",
                f"exit code {done.returncode}; its last lines:\n{log}",
                f"run it again by hand: {again}",
                prefix=prefix,
                step=step,
            )
        return done.stdout

    def check(self, prefix: int, before: list[int] | None) -> list[int]:
        """Test a built prefix and return the tokens of its plain decode."""
        text = self.run(prefix, "plain decode", sys.executable, "-c", _SMOKE)
        tokens: list[int] = json.loads(text.splitlines()[-1])
        fields = self.steps[prefix - 1].patch.header.fields if prefix else {}
        if before is not None and tokens != before and not fields.get("Changes-Output", "").startswith("yes"):
            raise VerifyError(
                f"prefix {prefix} ({self.name(prefix)}) changes the output",
                f"{tokens} after {before}",
                "mend the patch, or say so in Changes-Output",
                prefix=prefix,
                step="plain decode",
            )
        test, root = fields.get("Test", ""), self.layout.root
        if test.startswith("$ "):
            self.run(prefix, test, "sh", "-c", test[2:])
        elif test:
            options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(root), "-c", str(root / "pyproject.toml")]
            ids = [str(root / name) for name in test.split()]
            self.run(prefix, test, sys.executable, "-m", "pytest", *options, *ids)
        return tokens


def verify(
    shop: Workshop, prefixes: Sequence[int], *, keep_going: bool, sites: Path | None = None
) -> tuple[list[Outcome], list[VerifyError]]:
    """Build and test prefixes; one that passed before with the same sources and tools is not built again.

    With `sites` all are built, the package of each is kept below that directory, and a JSON line on stdout says where.
    Raises `VerifyError` at the first failure, unless `keep_going` is set.
    """
    records_file = shop.layout.verify / "records.json"
    shop.layout.verify.mkdir(parents=True, exist_ok=True)
    records = _records(records_file)
    code = _code_id(shop.layout)
    outcomes: list[Outcome] = []
    failures: list[VerifyError] = []
    before: list[int] | None = None
    for prefix in prefixes:
        header = shop.steps[prefix - 1].patch.header.text() if prefix else ""
        key = hashlib.sha256("\0".join([shop.tree_of(prefix), header, code, str(before)]).encode()).hexdigest()
        start = time.monotonic()
        cached = key in records and sites is None
        try:
            if not cached:
                shop.say(f"prefix {prefix} of {len(shop.steps)}: {shop.name(prefix)}")
                shop.build(prefix)
                records[key] = shop.check(prefix, before)
                write_text(records_file, json.dumps(records))
            if sites is not None:
                name = f"{prefix:02}-{shop.name(prefix).removesuffix('.patch').replace(' ', '-')}"
                kept = shutil.copytree(shop.layout.verify / "site", sites.absolute() / name, dirs_exist_ok=True)
                print(json.dumps({"prefix": name, "site": str(kept)}), flush=True)
        except VerifyError as error:
            failures.append(error)
            if not keep_going:
                raise
            continue
        before = records[key]
        outcomes.append(Outcome(prefix, shop.name(prefix), cached, before, time.monotonic() - start))
        shop.say(outcomes[-1].line())
    return outcomes, failures


def changed_prefixes(layout: Layout, series: Series, since: str) -> list[int]:
    """Return the prefixes from the first patch on that differs from the commit `since` of the user's repository.

    The one before it comes first, so that a change of the output by that patch shows.
    """

    def shown(path: str) -> bytes | None:
        done = run_git(["-C", str(layout.root), "show", f"{since}:{path}"], {}, b"")
        return done.stdout if done.returncode == 0 else None

    if run_git(["-C", str(layout.root), "rev-parse", "--verify", "--quiet", f"{since}^{{commit}}"], {}, b"").returncode:
        raise UsageError("there is nothing to compare with", f"{since} is not a commit here", "give one with --since")
    if shown("vendor/upstream.toml") != layout.pin_file.read_bytes():
        return list(range(len(series.patches) + 1))
    lines = (shown("patches/series") or b"").decode().splitlines()
    names = [name for name in (line.split("#")[0].strip() for line in lines) if name]
    for position, patch in enumerate(series.patches):
        if names[position : position + 1] != [patch.name] or shown(f"patches/{patch.name}") != patch.content:
            return list(range(position, len(series.patches) + 1))
    return [len(series.patches)] if len(names) > len(series.patches) else []


def bisect(shop: Workshop, good: int, bad: int, command: Sequence[str]) -> int:
    """Return the first prefix between `good` and `bad` on which a command fails, by halving."""
    if not 0 <= good < bad <= len(shop.steps):
        seen = f"good {good}, bad {bad}, the series has {len(shop.steps)}"
        raise UsageError("these are no ends to search between", seen, "give 0 <= good < bad <= number of patches")
    shop.layout.verify.mkdir(parents=True, exist_ok=True)
    while bad - good > 1:
        middle = (good + bad) // 2
        shop.build(middle)
        try:
            shop.run(middle, "the command", *command)
            good = middle
        except VerifyError:
            bad = middle
        shop.say(f"prefix {middle} is {'good' if good == middle else 'bad'}")
    return bad


def _records(path: Path) -> dict[str, list[int]]:
    """Return what passed before; a record that is missing or damaged costs a build."""
    try:
        found: dict[str, list[int]] = json.loads(path.read_text(encoding="utf-8"))
        return {key: [int(token) for token in tokens] for key, tokens in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _code_id(layout: Layout) -> str:
    """Return an id of everything besides the tree that a result depends on: our sources, tests, and the tools."""
    ours = [
        (part, path, entry)
        for part in ("pylucebox", "tests", "cmake")
        for path, entry in sorted(scan(layout.root / part).items())
        if not path.startswith(("lib/", "_build.json")) and not path.endswith((".so", ".pyd"))
    ]
    tools = [path for path in map(shutil.which, ("cc", "c++", "cmake")) if path]
    versions = [subprocess.run([tool, "--version"], capture_output=True, check=False).stdout for tool in tools]
    return hashlib.sha256(repr([ours, sys.version, versions]).encode()).hexdigest()
