"""The text that long prompts are filled with, shipped with the package so that it is the same everywhere.

`code.txt` is a frozen copy of modules of this package, `prose.txt` short articles written for this purpose. Both are
data: they do not change with the package, or figures of two versions could not be compared.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Final

from pylucebox._errors import BuildError

_FOLDER: Final = Path(__file__).with_name("corpus")

FILES: Final = {
    "code.txt": "f2ee484d4c9b7c3f302da2d6e4f49dcc14b9781c57499fd29df8463368dfefd7",
    "prose.txt": "ef04e8bd40412b34c6907b7e307bde206ec2d61b685223ef97671e0637ebbde2",
}
"""SHA-256 of each file."""

CORPUS_SHA256: Final = hashlib.sha256("".join(FILES.values()).encode()).hexdigest()
"""One hash for the whole corpus: SHA-256 over the hex digests of `FILES` in their order."""

WARMUP_ARTICLE: Final = "Paper sizes"
"""Kept out of every measured prompt, so that warming up teaches the engine nothing about what is measured."""


@functools.cache
def read(name: str) -> str:
    """Return a file of the corpus.

    Raises
    ------
    BuildError
        The file is missing or is not the one that was pinned.
    """
    path = _FOLDER / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BuildError(f"cannot read {path}", seen=str(error), advice="Install pylucebox again.") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != FILES[name]:
        raise BuildError(
            f"{path} is not the pinned text",
            seen=f"SHA-256 {digest}, expected {FILES[name]}",
            advice="Install pylucebox again; results measured with other text cannot be compared.",
        )
    return content.decode("utf-8")


@functools.cache
def code_files() -> tuple[str, ...]:
    """Return the modules of the code corpus, each with the line that names it in front."""
    mark = "# ==== "
    return tuple(mark + part for part in read("code.txt").split(mark)[1:])


@functools.cache
def articles() -> tuple[tuple[str, str], ...]:
    """Return titles and texts of the articles, without the one kept for warming up."""
    return tuple((title, text) for title, text in _all_articles() if title != WARMUP_ARTICLE)


def warmup_article() -> str:
    """Return the text of the article that no measured prompt contains."""
    return next(text for title, text in _all_articles() if title == WARMUP_ARTICLE)


@functools.cache
def _all_articles() -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, list[str]]] = []
    for paragraph in read("prose.txt").strip().split("\n\n"):
        if paragraph.endswith((".", "!", "?")):
            found[-1][1].append(paragraph)
        else:
            found.append((paragraph, []))
    return tuple((title, "\n\n".join(paragraphs)) for title, paragraphs in found)
