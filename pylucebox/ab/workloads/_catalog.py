"""The list of workloads, and the suites that they make up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from pylucebox.ab.records import Workload

from . import _prompts as prompts
from ._desk import Desk
from ._recipe import CARD, GREEDY, PLAIN, Part, Recipe, Sampling, build

_OPEN: Final = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1)  # the whole distribution

_STORY: Final = prompts.simple(
    "Write a short story about a lighthouse keeper who finds a letter that was meant for somebody else.",
    "The lighthouse at the end of the bay\n\nWhen the old keeper died, nobody in the village wanted to climb the"
    " stairs. For eleven nights the lamp stayed dark. On the twelfth, a letter came that was addressed to him, and the",
    "Write a short story about a ferry that arrives a day before it left.",
    "The ferry that came too early\n\nIt was still dark when the ferry reached the pier, a whole day before it was"
    " expected, and the",
)
_DIALOGUE: Final = prompts.simple(
    "Write a scene for two people in a railway waiting room. One has missed the last train, the other has no wish to"
    " leave. Dialogue only.",
    'Scene one\n\n"Where have you been?" asked Anna.\n\n"At the harbour," said Ben. "The boat is late."\n\n"Again?"\n',
    "Write a scene for two people who repair the same clock. Dialogue only.",
    'Scene two\n\n"Who wound the clock?" asked Clara.\n\n"Nobody did," said Daniel.\n\n',
)
_CPP: Final = prompts.simple(
    "Write a C++17 class template for a ring buffer of fixed size with iterators, and a small program that tests it.",
    "#include <string>\n#include <vector>\n\n// Keeps the last values of a stream.\nclass RingBuffer {\npublic:\n"
    "    explicit RingBuffer(size_t size) : size_(size), used_(0) {\n",
    "Write a C++17 class for a set of intervals that merges those that touch, and a small program that tests it.",
    "#include <map>\n#include <string>\n\n// Counts words.\nclass WordCounter {\npublic:\n    void add(",
)
_SQL: Final = prompts.simple(
    "Design SQL tables for a library with several branches, then write ten queries for its daily work, each with a"
    " comment.",
    "-- Tables of a library\nCREATE TABLE readers (\n    id INTEGER PRIMARY KEY,\n    name TEXT NOT NULL\n);\n\n"
    "CREATE TABLE loans (\n    id INTEGER PRIMARY KEY,\n",
    "Design SQL tables for a ferry company, then write ten queries for its daily work, each with a comment.",
    "-- Tables of a ferry company\nCREATE TABLE ferries (\n    id INTEGER PRIMARY KEY,\n    name TEXT NOT NULL\n);\n\n"
    "CREATE TABLE trips (\n",
)
_REGEX: Final = prompts.simple(
    "Write a Markdown cheat sheet of regular expressions: a table per topic, with an example and what it matches.",
    "# Regular expressions\n\n## Anchors\n\n| pattern | meaning |\n|---|---|\n| `^` | start of a line |\n| `$` | end of"
    " a line |\n| `\\b` | edge of a word |\n\n## Classes\n\n",
    "Write a Markdown cheat sheet of shell globbing: a table per topic, with an example and what it matches.",
    "# Globbing\n\n## Wildcards\n\n| pattern | meaning |\n|---|---|\n| `*` | any text |\n| `?` | one character |\n\n",
)
_TURNS: Final = r"""root ::= turn+
turn ::= number{40} digest{4}
number ::= "1" [0-9]{3} "\n"
digest ::= [0-9a-f]{64} "\n"
"""
"""Numbers and digests by turns; which of them is left to the model, so drafts hold in the former and seldom in the
latter."""


def _one(
    name: str,
    kind: str,
    title: str,
    part: Part,
    *,
    n_prompt: int = 512,
    needs_chat: bool = False,
) -> Recipe:
    return Recipe(name=name, kind=kind, title=title, parts=(part,), n_prompt=n_prompt, needs_chat=needs_chat)


_SINGLE: Final = (
    _one(
        "code-16k",
        "code",
        "A new module after 16K tokens of source code",
        Part(prompt=prompts.code(0), n_output=1024, plain_sampling=PLAIN),
        n_prompt=16_384,
    ),
    _one(
        "code-64k",
        "code",
        "A new module after 64K tokens of source code",
        Part(prompt=prompts.code(4), n_output=1024, plain_sampling=PLAIN),
        n_prompt=65_536,
    ),
    _one(
        "code-edit",
        "edit",
        "A module written again with one change",
        Part(prompt=prompts.code_edit, n_output=1024),
        n_prompt=4096,
    ),
    _one(
        "count-66k",
        "count",
        "Counting after 66K tokens of unrelated prose",
        Part(prompt=prompts.count_after_filler, n_output=512),
        n_prompt=67_584,
    ),
    _one("count-words", "count", "One word again and again", Part(prompt=prompts.count_words, n_output=512)),
    _one("prose-story", "prose", "A short story", Part(prompt=_STORY, n_output=512, plain_sampling=PLAIN)),
    _one("prose-essay", "prose", "An essay", Part(prompt=prompts.essay, n_output=512, plain_sampling=PLAIN)),
    _one("explain", "prose", "An article explained", Part(prompt=prompts.explain, n_output=512, plain_sampling=PLAIN)),
    _one(
        "summarise",
        "prose",
        "Eight articles summarised",
        Part(prompt=prompts.summarise, n_output=400, plain_sampling=PLAIN),
        n_prompt=4096,
    ),
    _one("json", "json", "Records in a fixed pattern", Part(prompt=prompts.json_records, n_output=768), n_prompt=2048),
    _one(
        "csv-table", "table", "A table that follows a rule", Part(prompt=prompts.csv_table, n_output=512), n_prompt=1024
    ),
    _one(
        "translate",
        "prose",
        "Twenty sentences translated",
        Part(prompt=prompts.translate, n_output=400, plain_sampling=PLAIN),
    ),
    _one(
        "maths",
        "maths",
        "Multiplications worked out",
        Part(prompt=prompts.maths(12, thinking=False), n_output=512, plain_sampling=PLAIN),
    ),
    _one("code-cpp", "code", "A C++ class", Part(prompt=_CPP, n_output=512, plain_sampling=PLAIN)),
    _one("sql", "code", "SQL tables and queries", Part(prompt=_SQL, n_output=512, plain_sampling=PLAIN)),
    _one(
        "regex-markdown",
        "table",
        "A cheat sheet in Markdown",
        Part(prompt=_REGEX, n_output=512, plain_sampling=PLAIN),
    ),
    _one("dialogue", "prose", "A scene for two", Part(prompt=_DIALOGUE, n_output=512, plain_sampling=PLAIN)),
    _one(
        "entropy",
        "noise",
        "Digests that nobody can guess: drafting must stop",
        Part(prompt=prompts.entropy, n_output=384, plain_sampling=_OPEN),
        n_prompt=1024,
    ),
    _one("copy", "copy", "A text repeated", Part(prompt=prompts.copy, n_output=1024), n_prompt=1280),
    _one(
        "drift",
        "mixed",
        "A text that changes its kind",
        Part(prompt=prompts.drift, n_output=1536, plain_sampling=_OPEN, plain_grammar=_TURNS),
        n_prompt=1024,
    ),
    _one(
        "think-long",
        "maths",
        "Long reasoning at temperature 1",
        Part(prompt=prompts.maths(40, thinking=True), n_output=8192, sampling=CARD),
        n_prompt=1024,
        needs_chat=True,
    ),
    _one(
        "short-answer",
        "code",
        "32 tokens after 64K tokens of source code",
        Part(prompt=prompts.code(14), n_output=32, plain_sampling=PLAIN),
        n_prompt=65_536,
    ),
)

_CARD: Final = tuple(
    _one(
        f"card-t1-{name}",
        kind,
        f"{title}, sampled at temperature 1",
        Part(prompt=prompt, n_output=n_output, sampling=CARD, plain_sampling=CARD),
        n_prompt=n_prompt,
    )
    for name, kind, title, prompt, n_prompt, n_output in (
        ("code-16k", "code", "A new module after 16K tokens of source code", prompts.code(20), 16_384, 1024),
        ("code-64k", "code", "A new module after 64K tokens of source code", prompts.code(24), 65_536, 1024),
        ("dialogue", "prose", "A scene for two", _DIALOGUE, 512, 512),
    )
)

_SWEEP_N_OUTPUT: Final = 256


def _sweep(recipe: Recipe) -> Recipe:
    """Return the short row of a workload for the table over kinds of text."""
    return replace(
        recipe,
        name=f"sweep-{recipe.name}",
        title=f"{recipe.title} (short)",
        parts=tuple(replace(part, n_output=_SWEEP_N_OUTPUT) for part in recipe.parts),
        n_prompt=512,
    )


_SWEEP: Final = (
    _one("sweep-count", "count", "Counting (short)", Part(prompt=prompts.count, n_output=_SWEEP_N_OUTPUT)),
    _one(
        "sweep-code",
        "code",
        "A new module after half a module (short)",
        Part(prompt=prompts.code(3), n_output=_SWEEP_N_OUTPUT, plain_sampling=PLAIN),
    ),
    *(
        _sweep(recipe)
        for recipe in _SINGLE
        if recipe.n_prompt <= 2048 and recipe.name not in {"think-long", "drift", "count-words"}
    ),
)


def _edge(name: str, title: str, part: Part, *, n_ctx: int | None = None) -> Recipe:
    return Recipe(name=f"edges-{name}", kind="edges", title=title, parts=(part,), has_control=False, n_ctx=n_ctx)


_EDGE_N_CTX: Final = 256

_EDGES: Final = (
    *(
        _edge(str(n), f"{n} token{'s' if n > 1 else ''} of output", Part(prompt=prompts.count, n_output=n))
        for n in (1, 2, 3, 8)
    ),
    _edge(
        "context",
        "The last four tokens of the context",
        Part(prompt=prompts.exact_length(_EDGE_N_CTX - 4), n_output=4),
        n_ctx=_EDGE_N_CTX,
    ),
    _edge("eos", "An answer that ends by itself", Part(prompt=prompts.short_reply, n_output=64)),
    _edge("stop", "A stop string among the drafts", Part(prompt=prompts.count, n_output=128, stop=("1019",))),
)


def _multi(name: str, title: str, parts: tuple[Part, ...]) -> Recipe:
    return Recipe(name=name, kind="multi", title=title, parts=parts, n_prompt=2048)


_MIXED: Final = (
    Part(prompt=prompts.count_words, n_output=384),
    Part(prompt=prompts.code(8), n_output=384, plain_sampling=PLAIN),
    Part(prompt=_STORY, n_output=384, plain_sampling=PLAIN),
    Part(prompt=prompts.entropy, n_output=384, plain_sampling=_OPEN),
)
_STAGGERED_N_OUTPUT: Final = (768, 384, 192, 64)

_MULTI: Final = (
    *(
        _multi(
            f"multi-{n}",
            f"{n} tasks of one kind together",
            tuple(Part(prompt=prompts.numbered_task(i + 1), n_output=384, sampling=GREEDY) for i in range(n)),
        )
        for n in (3, 4)
    ),
    _multi("multi-4-mixed", "Four kinds of text together", _MIXED),
)

_STAGGERED: Final = _multi(
    "multi-stagger",
    "Four requests that come and go one by one",
    tuple(
        Part(prompt=prompts.numbered_task(i + 5), n_output=n_output, start_share=i)
        for i, n_output in enumerate(_STAGGERED_N_OUTPUT)
    ),
)

_QUICK_MULTI: Final = Recipe(
    name="multi-3-short",
    kind="multi",
    title="Three tasks of one kind together (short)",
    parts=tuple(Part(prompt=prompts.numbered_task(i + 1), n_output=192) for i in range(3)),
)

RECIPES: Final = {
    recipe.name: recipe for recipe in (*_SINGLE, *_CARD, *_SWEEP, *_EDGES, *_MULTI, _STAGGERED, _QUICK_MULTI)
}
"""Every workload by name."""


def build_all(names: Iterable[str], desk: Desk) -> tuple[Workload, ...]:
    """Make workloads by name, without those that are not for the desk's model."""
    recipes = (RECIPES[name] for name in names)
    return tuple(build(recipe, desk) for recipe in recipes if desk.is_chat or not recipe.needs_chat)


def _names(*groups: tuple[Recipe, ...]) -> tuple[str, ...]:
    return tuple(recipe.name for group in groups for recipe in group)


SUITES: Final = {
    "quick": ("sweep-count", "sweep-json", "sweep-code", "sweep-prose-essay", "sweep-entropy", "multi-3-short"),
    "ci": ("sweep-count", "sweep-entropy", "multi-3-short"),
    "seed": (
        "code-16k",
        "code-64k",
        "count-66k",
        *_names(_SWEEP, _CARD),
        "multi-3",
        "multi-4",
    ),
    "full": _names(_SINGLE, _CARD, _SWEEP, _MULTI),
}
"""Names of workloads per suite, in running order.

Two kinds are in none and are asked for by name. The workloads at the edges are for the text check: a handful of tokens
has no speed worth the name, and its scatter would become the noise floor of all others. The staggered one needs arms
that are servers.
"""
