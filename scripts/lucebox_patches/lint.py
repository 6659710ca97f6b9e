"""What a patch must be beyond applying: one table of rules, all findings reported in one run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .chain import Step, build_chain
from .export import rendered
from .layout import Layout, Say
from .pin import read_pin
from .series import FIELDS, HEAD, NAME, REQUIRED, SUBJECT, read_series
from .upstreams import ensure_base
from .workspace import open_store

_CLASSES = ("hook", "feature", "fix", "backport")
_URL = re.compile(r"https?://\S+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_CHANGES = re.compile(r"no$|yes[:,]? \S")
_SECRET = re.compile(rb"https?://[^/\s:]+:[^@\s]+@|gh[pousr]_[A-Za-z0-9]{20}|/home/|/Users/|/root/|C:\\Users")
_DEAD_CODE = re.compile(r"\s*//\s*(?:if|for|while|return|else|[\w:>.-]+\([^)]*\))\s*.*[;{}]\s*$")
_SWITCHES = ("/lucebox-switches.cu", "/lucebox-packed-inputs.inc", "/lucebox-cells.h")  # read the environment
_MAX_HOOK_LINES = 40
_MAX_DELETED = 20


@dataclass(frozen=True)
class Finding:
    """One finding: the rule, the patch or file, and what is wrong."""

    code: str
    where: str
    text: str


@dataclass(frozen=True)
class FileDiff:
    """The part of a diff that concerns one file, with its added and removed lines."""

    path: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    is_new: bool


def lint(layout: Layout, say: Say) -> list[Finding]:
    """Check series, patches, EXPECTED and README; raises as `chain.build_chain` if the series does not even apply."""
    store, pin, series = open_store(layout), read_pin(layout.pin_file), read_series(layout.patches)
    steps = build_chain(store, ensure_base(layout, store, pin, say, fetch=False), series)
    findings = [Finding(code, one.patch.name, text) for one in steps for code, text in check_patch(layout, one, steps)]
    for path, content in rendered(layout, store, pin.tree, steps).items():
        if not path.is_file() or path.read_bytes() != content:
            code = "L14" if path == layout.expected else "L06"
            findings.append(Finding(code, path.name, "`export` would write it otherwise"))
    readme = layout.patches / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    gone = set(re.findall(r"[a-z0-9][a-z0-9-]*\.patch", text)) - set(series.names)
    findings += [Finding("L15", "README.md", f"it names {name}, which is not in the series") for name in gone]
    return sorted(findings, key=lambda finding: (finding.where, finding.code, finding.text))


def check_patch(layout: Layout, step: Step, steps: Sequence[Step]) -> Iterator[tuple[str, str]]:
    """Yield (rule, text) for everything wrong with one patch."""
    name, header, diffs = step.patch.name, step.patch.header, list(file_diffs(step.patch.diff))
    fields, subject = header.fields, header.head.get("Subject", "")
    kind, origin, forwarded = (fields.get(key, "") for key in ("Class", "Origin", "Forwarded"))
    before = {other.patch.name for other in steps[: steps.index(step)]}
    needs = {word.strip() for word in fields.get("Needs", "").split(",")} - {""}
    tests = [] if fields.get("Test", "").startswith("$ ") else fields.get("Test", "").split()
    gone = [test for test in tests if not (layout.root / test.partition("::")[0]).exists()]
    far = origin.startswith(("backport, ", "other, ")) and _URL.search(origin)
    sent = forwarded == "no" or forwarded.startswith("not-needed") or _URL.match(forwarded)
    unknown = sorted(fields.keys() - FIELDS.keys())
    missing = [key for key in REQUIRED if not fields.get(key)]
    lacks = [*(key for key in HEAD if not header.head.get(key)), *missing, *([] if header.reason else ["the reason"])]
    same = [other for other in steps if other.patch.header.head.get("Subject") == subject]
    removed = sum(len(diff.removed) for diff in diffs)
    api = any(diff.path.startswith(("include/", "ggml/include/")) for diff in diffs)
    for code, wrong, text in (
        ("L02", not NAME.fullmatch(name), "a name is lower-case words; the order is in `series`"),
        ("L02", not SUBJECT.fullmatch(subject), f"the subject is not `area: summary` of at most 72: {len(subject)}"),
        ("L02", kind not in _CLASSES, f"Class is {kind!r}, known are {', '.join(_CLASSES)}"),
        ("L03", lacks, f"missing: {', '.join(lacks)}"),
        ("L03", unknown, f"unknown: {', '.join(unknown)}"),
        ("L03", "TODO" in header.text(), "something is still TODO"),
        ("L04", not (origin == "own" or far), "Origin is neither `own` nor `backport` or `other` with a URL"),
        ("L04", not sent, "Forwarded is not `no`, `not-needed` or a URL"),
        ("L04", not _DATE.fullmatch(fields.get("Last-Update", "")), "Last-Update is not YYYY-MM-DD"),
        ("L04", not _CHANGES.match(fields.get("Changes-Output", "")), "Changes-Output is not `no`, or `yes` and why"),
        ("L07", step.offsets, "hunks are at other lines than they say; `export` corrects them"),
        ("L12", _SECRET.search(step.patch.content), "it holds a path of a machine or a secret"),
        ("L13", needs - before, f"it needs {', '.join(sorted(needs - before))}, which does not stand before it"),
        ("L16", len(same) > 1, "another patch has its subject"),
        ("L17", api and kind == "hook", "it changes a public header, so it is no hook"),
        ("L18", removed > _MAX_DELETED and "Deletes" not in fields, f"it removes {removed} lines; say why in Deletes"),
        ("L19", gone, f"Test names what does not exist: {', '.join(gone)}"),
    ):
        if wrong:
            yield code, text
    for diff in diffs:
        big = len(diff.added) > _MAX_HOOK_LINES and not diff.is_new
        excused = kind != "hook" and fields.get("Why-Not-Own-File")
        crlf = [line for line in (*diff.added, *diff.removed) if line.endswith("\r")]
        blank = [line for line in diff.added if line.rstrip("\r") != line.rstrip()]
        reads_environment = not diff.path.endswith(_SWITCHES) and any("getenv(" in line for line in diff.added)
        for code, wrong, text in (
            ("L08", crlf, "it touches lines with CRLF"),
            ("L08", blank, "an added line ends in white space"),
            ("L10", big and not excused, f"{len(diff.added)} lines belong in a file of ours, or say Why-Not-Own-File"),
            ("L11", reads_environment, "it reads an environment variable"),
            ("L11", any(_DEAD_CODE.match(line) for line in diff.added), "it has code in a comment"),
        ):
            if wrong:
                yield code, f"{diff.path}: {text}"


def file_diffs(diff: bytes) -> Iterator[FileDiff]:
    """Split a diff in the form of `export` into files."""
    for part in re.split(r"^diff --git ", diff.decode("utf-8", "replace"), flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        start = next((number for number, line in enumerate(lines) if line.startswith("@@")), len(lines))
        added, removed = (tuple(line[1:] for line in lines[start:] if line.startswith(sign)) for sign in "+-")
        yield FileDiff(lines[0].rpartition(" b/")[2], added, removed, "\nnew file mode" in "\n".join(lines[:start]))
