"""Seeded damage to model files: what a bad download, a bug in a converter or somebody with time on their hands makes.

A case is a list of edits of the files of one model. It is applied to a copy in place and taken back afterwards, because
writing 15 MB anew for each of thousands of cases is what would take the time.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _layout import Field, Layout, layout_of
from _splits import split_model

import pylucebox
from pylucebox.testing import TinySpec, write_tiny_model

DEMO = Path(pylucebox.__file__).parent / "demo_model"
SEED = 20261
N_CASES = 2000

_POWERS = (4, 5, 6, 7, 8, 9, 12, 16, 20, 24, 31, 32, 40, 62, 63, 64)
_ODD = (0, 1, 2, 3, 5, 7, 8, 1000, -2, *(2**power + step for power in _POWERS for step in (-1, 0, 1)))
_ODD_FLOATS = (0.0, -1.0, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"), 0.5)

# How often each kind of field is hit; values of the architecture's own keys are where loaders believe most.
_WEIGHTS = {"value": 10, "float": 6, "kind": 5, "dim": 6, "dims": 3, "offset": 3, "count": 4, "length": 2, "text": 3}


@dataclass(frozen=True)
class Edit:
    """Bytes written over others, or, with `cut`, the end of the file."""

    file: str
    start: int
    content: bytes = b""
    cut: bool = False


@dataclass(frozen=True)
class Case:
    """One damaged model.

    Attributes
    ----------
    number
        Names the case: equal numbers are equal cases.
    model
        Name of the model that is damaged.
    edits
        What is done to its files.
    note
        The same in words.
    """

    number: int
    model: str
    edits: tuple[Edit, ...]
    note: str


@dataclass(frozen=True)
class Sample:
    """A model in order.

    Attributes
    ----------
    opened
        File that is opened.
    files
        All of its files, by their place in its folder.
    """

    opened: str
    files: Mapping[str, Path]


def write_samples(folder: Path) -> dict[str, Sample]:
    """Write the models that are damaged: the built-in one, small ones, and both as splits."""
    found: dict[str, Sample] = {}
    model, sidecar = DEMO / "tiny-qwen4exp-Q8_0.gguf", DEMO / "MTP" / "mtp-tiny-qwen4exp-Q8_0.gguf"
    built_in = folder / "built-in"
    (built_in / "MTP").mkdir(parents=True)
    shutil.copy(model, built_in)
    shutil.copy(sidecar, built_in / "MTP")
    splits = folder / "built-in splits"
    (splits / "MTP").mkdir(parents=True)
    split_model(model, splits, 3)
    shutil.copy(sidecar, splits / "MTP")
    write_tiny_model(folder / "in-file" / "tiny.gguf", TinySpec(n_ctx_train=256))
    write_tiny_model(folder / "borrowing" / "tiny.gguf", TinySpec(mtp="shared", n_ctx_train=256, weight_type="q8_0"))
    write_tiny_model(folder / "whole" / "tiny.gguf", TinySpec(n_ctx_train=256, ple_layer=None))
    (folder / "in-file splits").mkdir()
    split_model(folder / "whole" / "tiny.gguf", folder / "in-file splits", 2)
    shutil.rmtree(folder / "whole")
    for home in sorted(path for path in folder.iterdir()):
        files = {str(path.relative_to(home)): path for path in sorted(home.rglob("*.gguf"))}
        opened = min(name for name in files if not name.startswith("MTP"))
        found[home.name] = Sample(opened, files)
    return found


class Damage:
    """Makes cases from models.

    Parameters
    ----------
    samples
        Of `write_samples`.
    """

    def __init__(self, samples: Mapping[str, Sample]) -> None:
        self._samples = samples
        self._layouts: dict[tuple[str, str], Layout] = {}
        self._fields: dict[tuple[str, str], dict[str, list[Field]]] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        for name, sample in samples.items():
            for file, path in sample.files.items():
                content = path.read_bytes()
                layout = layout_of(content)
                by_kind: dict[str, list[Field]] = {}
                for field in layout.fields:
                    by_kind.setdefault(field.what, []).append(field)
                self._layouts[name, file] = layout
                self._fields[name, file] = by_kind
                self._sizes[name, file] = len(content)

    def case(self, number: int) -> Case:
        """Return case `number`."""
        rng = random.Random(f"{SEED} {number}")
        name = rng.choice(sorted(self._samples))
        edits, notes = [], []
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            file = rng.choice(sorted(self._samples[name].files))
            edit, note = self._edit(rng, name, file)
            edits.append(edit)
            notes.append(f"{file}: {note}")
            if edit.cut:
                break
        return Case(number, name, tuple(edits), "; ".join(notes))

    def _edit(self, rng: random.Random, name: str, file: str) -> tuple[Edit, str]:
        layout, size = self._layouts[name, file], self._sizes[name, file]
        kind = rng.choices(("field", "bytes", "data", "cut"), (80, 8, 4, 8))[0]
        if kind == "cut":
            at = rng.choice((rng.randrange(layout.end), rng.randrange(size), size - 1, layout.end))
            return Edit(file, at, cut=True), f"cut at {at}"
        if kind == "bytes":
            at = rng.randrange(layout.end - 4)
            content = rng.randbytes(rng.choice((1, 1, 4)))
            return Edit(file, at, content), f"{content.hex()} at {at}"
        if kind == "data":
            if size - layout.end < 64:
                return Edit(file, 0, b"X"), "magic"
            at = rng.randrange(layout.end, size - 32)
            content = rng.choice((b"\xff", b"\x7f", b"\0")) * min(rng.choice((4, 32, 65536)), size - at)
            return Edit(file, at, content), f"{len(content)} bytes of data at {at}"
        by_kind = self._fields[name, file]
        kinds = [kind for kind in _WEIGHTS if kind in by_kind]
        what = rng.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]
        fields = by_kind[what]
        own = [field for field in fields if field.owner.startswith("qwen4exp.")]
        field = rng.choice(own if own and rng.random() < 0.6 else fields)
        content = _other(rng, field)
        return Edit(file, field.start, content), f"{field.what} of {field.owner[:40]!r} = {content[:16].hex()}"


def _other(rng: random.Random, field: Field) -> bytes:
    if field.what == "float":
        return struct.pack("<f" if field.n_bytes == 4 else "<d", rng.choice(_ODD_FLOATS))
    if field.what == "text":
        return rng.randbytes(field.n_bytes if rng.random() < 0.2 else 1)
    value = rng.randrange(46) if field.what == "kind" else rng.choice(_ODD)
    return (value & (256**field.n_bytes - 1)).to_bytes(field.n_bytes, "little")


@contextmanager
def damaged(home: Path, edits: Sequence[Edit]) -> Iterator[None]:
    """Apply the edits to the files in `home`, and take them back."""
    undo: list[Edit] = []
    try:
        for edit in edits:
            with (home / edit.file).open("r+b") as file:
                file.seek(edit.start)
                undo.append(Edit(edit.file, edit.start, file.read() if edit.cut else file.read(len(edit.content))))
                file.seek(edit.start)
                if edit.cut:
                    file.truncate()
                else:
                    file.write(edit.content)
        yield
    finally:
        for edit in reversed(undo):
            with (home / edit.file).open("r+b") as file:
                file.seek(edit.start)
                file.write(edit.content)
