"""Random edits become patches; applying and exporting them is the identity, and git agrees about the result."""

from __future__ import annotations

import random

import pytest
from patch_fakes import UPSTREAM, Checkout, tree_id

_ODD = ["", "--- a/a.cpp", "+++ b/x", "@@ -1,2 +1,2 @@", "diff --git a/x b/x", "-- ", "From x", "---", "\\ No newline"]
_ALPHABET = "abc xyz\t{}();+-@\\ \"'é山"


def _line(source: random.Random) -> bytes:
    """Return a line that may look like a part of a diff or of a mail, and may lack the usual end."""
    text = source.choice(_ODD) if source.random() < 0.3 else "".join(source.choices(_ALPHABET, k=source.randrange(12)))
    return text.encode() + source.choice([b"\n"] * 8 + [b"\r\n"])


def _edited(source: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    for _ in range(source.randrange(1, 5)):
        at = source.randrange(len(lines) + 1)
        lines[at : at + source.choice([0, 0, 1, 3])] = [_line(source) for _ in range(source.randrange(4))]
    joined = b"".join(lines)
    return joined[:-1] if source.random() < 0.2 else joined


def _edit_tree(source: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """Change, add and remove some files; at least one thing is different afterwards."""
    changed = dict(files)
    while changed == files:
        for path in source.sample(sorted(changed), k=2):
            changed[path] = _edited(source, changed[path])
        if source.random() < 0.4:
            changed[f"new {source.randrange(9)}/ä.txt"] = _edited(source, b"")
        if source.random() < 0.2:
            del changed[source.choice(sorted(changed))]
    return changed


@pytest.mark.parametrize("seed", range(4))
def test_random_edits_come_back_as_they_were(checkout: Checkout, seed: int) -> None:
    source = random.Random(seed)
    files = dict(UPSTREAM)
    checkout.ok("export")
    for number in range(3):
        checkout.ok("new", f"patch-{number}", "--subject", f"a: change {number}")
        previous, files = files, _edit_tree(source, files)
        for path in previous.keys() - files.keys():
            (checkout.tree / path).unlink()
        for path, content in files.items():
            (checkout.tree / path).parent.mkdir(parents=True, exist_ok=True)
            (checkout.tree / path).write_bytes(content)
        checkout.ok("refresh")
    assert checkout.content() == files
    assert (checkout.patches / "EXPECTED").read_text("utf-8").strip() == checkout.stamp()["tree"] == tree_id(files)
    before = checkout.everything()
    checkout.ok("export", "--check")
    checkout.ok("apply", "--strict", "--force-clean")
    assert checkout.everything() == before
    # The patches are good from the base on, too, and not only one after the other in place.
    checkout.ok("edit", "patch-0")
    checkout.ok("abort")
    assert checkout.everything() == before
