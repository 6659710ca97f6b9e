"""The real text of the corpus: Python sources of installed packages, their docstrings, and folders of documents."""

import ast
import hashlib
import importlib.util
import json
import random
import re
import sysconfig
import textwrap
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).with_name("corpus_sources.json")
MIN_CHARS, MAX_CHARS = 300, 60_000
MAX_LINE, MAX_NON_ASCII = 400, 0.02  # longer lines are data; a small vocabulary wants ASCII text
HELD_OUT_OF_100 = 7


@dataclass(frozen=True)
class Document:
    """A text and the place it comes from, relative to its source."""

    origin: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether the text belongs to the one in a hundred that training does not see."""
        origin = self.origin.split("#", maxsplit=1)[0]
        return int(hashlib.md5(origin.encode()).hexdigest(), 16) % 100 == HELD_OUT_OF_100


def read_text(path: Path) -> str | None:
    """Read a file if it is text worth training on, cut to `MAX_CHARS`; None if it is not."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if len(text) < MIN_CHARS or "\x00" in text:
        return None
    if sum(ord(char) > 127 for char in text) > MAX_NON_ASCII * len(text):
        return None
    if max(map(len, text.split("\n"))) > MAX_LINE:
        return None
    return text[:MAX_CHARS]


def _package_folder(package: str, folder: str) -> Path | None:
    if package == "stdlib":
        return Path(sysconfig.get_paths()["stdlib"])
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / folder


def code_documents(rng: random.Random) -> list[Document]:
    """Read the Python files of the packages in ``corpus_sources.json``, without repeats.

    Parameters
    ----------
    rng
        Draws which files of a package are taken.

    Returns
    -------
    list of Document
        In the order of the sources. Packages that are not installed are named on the terminal and left out.
    """
    seen, out = set(), []
    for source in json.loads(SOURCES.read_text(encoding="utf-8"))["code"]:
        name = f"{source['package']}/{source.get('folder', '')}".rstrip("/")
        root = _package_folder(source["package"], source.get("folder", ""))
        if root is None:
            print(f"not installed, left out of the corpus: {name}", flush=True)
            continue
        for path in sorted(root.rglob("*.py")):
            inside = f"/{path.relative_to(root).as_posix()}"
            if any(part in inside for part in source["skip"]) or rng.random() > source["share"]:
                continue
            text = read_text(path)
            if text is None:
                continue
            key = hashlib.md5(re.sub(r"\s+", "", text).encode()).digest()
            if key not in seen:
                seen.add(key)
                out.append(Document(name + inside, text))
    return out


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def prose_documents(code: list[Document], folders: list[Path], rng: random.Random) -> list[Document]:
    """Read Markdown and reStructuredText below some folders, and the docstrings of the code.

    Parameters
    ----------
    code
        What `code_documents` returned; the docstrings of a file become one document.
    folders
        Folders with documentation.
    rng
        Thins out changelogs.

    Returns
    -------
    list of Document
        Prose.
    """
    out = []
    for folder in folders:
        for path in sorted(p for pattern in ("*.md", "*.rst") for p in folder.rglob(pattern)):
            if "changelogs" in path.as_posix() and rng.random() < 0.7:
                continue
            text = read_text(path)
            if text:
                out.append(Document(f"{folder.name}/{path.relative_to(folder).as_posix()}", text))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for document in code:
        tree = None if "/test" in document.origin else _parse(document.text)
        if tree is None:
            continue
        strings = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)]
        strings = [string for string in strings if string and len(string) > 250]
        if strings:
            out.append(Document(document.origin + "#doc", "\n\n".join(strings)))
    return out


@dataclass(frozen=True)
class Function:
    """A Python function: its name and source."""

    name: str
    source: str


def functions_of(code: list[Document], rng: random.Random, limit: int) -> list[Function]:
    """Cut functions of moderate size out of Python files, in random order.

    Parameters
    ----------
    code
        Python files.
    rng
        Shuffles the functions.
    limit
        Most functions to return.

    Returns
    -------
    list of Function
        Functions of 5 to 46 lines.
    """
    out = []
    for document in code:
        tree = _parse(document.text)
        if tree is None:
            continue
        lines = document.text.split("\n")
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or not 4 <= node.end_lineno - node.lineno <= 45:
                continue
            source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            if 120 < len(source) < 1800 and source.startswith("def "):
                out.append(Function(node.name, source))
    rng.shuffle(out)
    return out[:limit]
