"""Texts that are computed: records, tables, sums, digests. A number is a text, the same in every version of Python."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from ._desk import draw

_NAMES: Final = ("Anna", "Ben", "Clara", "Daniel", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas", "Klara", "Lukas")
_CITIES: Final = ("Oslo", "Rome", "Lisbon", "Vienna", "Prague", "Dublin", "Athens", "Lima", "Cairo", "Tokyo")
_STATES: Final = ("ok", "pending", "failed", "done")


def records(first: int, n: int) -> list[dict[str, object]]:
    """Return `n` records with the ids `first`, `first` + 1, ..."""
    return [
        {
            "id": number,
            "name": _NAMES[draw(f"name {number}", len(_NAMES))],
            "city": _CITIES[draw(f"city {number}", len(_CITIES))],
            "active": draw(f"active {number}", 2) == 1,
            "score": draw(f"score {number}", 10_000) / 100,
        }
        for number in range(first, first + n)
    ]


def json_array(first: int, n: int, *, is_open: bool = False) -> str:
    """Return `records` as an indented JSON array; an open one ends after a comma, to be continued."""
    text = json.dumps(records(first, n), indent=2)
    return text.removesuffix("\n]") + ",\n" if is_open else text


def csv_people(first: int, n: int) -> str:
    """Return the names, cities and states of `n` records as comma-separated values."""
    states = (_STATES[draw(f"state {number}", len(_STATES))] for number in range(first, first + n))
    rows = zip(records(first, n), states, strict=True)
    return "name,city,status\n" + "".join(f"{row['name']},{row['city']},{state}\n" for row, state in rows)


def progression(first: int, n: int) -> str:
    """Return a table whose columns grow by fixed steps."""
    rows = (f"{i},{3 * i + 1},{7 * i - 2},{10 * i - 1}" for i in range(first, first + n))
    return "step,length,width,sum\n" + "".join(f"{row}\n" for row in rows)


def markdown_rows(first: int, n: int) -> str:
    """Return `n` records as a Markdown table."""
    rows = (f"| {row['id']} | {row['name']} | {row['city']} | {row['score']} |\n" for row in records(first, n))
    return "| id | name | city | score |\n|---|---|---|---|\n" + "".join(rows)


def products(key: str, n: int) -> list[tuple[int, int]]:
    """Return pairs of three-digit factors."""
    return [(100 + draw(f"{key} a {i}", 900), 100 + draw(f"{key} b {i}", 900)) for i in range(n)]


def digest_lines(first: int, n: int) -> str:
    """Return numbered SHA-256 digests, which no model can guess."""
    digests = bare_digests(first, n).splitlines()
    return "".join(f"{first + i:04d} {digest}\n" for i, digest in enumerate(digests))


def bare_digests(first: int, n: int) -> str:
    """Return the same without numbers."""
    return "".join(hashlib.sha256(str(i).encode()).hexdigest() + "\n" for i in range(first, first + n))


def counting(first: int, n: int, *, between: str = "\n") -> str:
    """Return `n` whole numbers from `first` on."""
    return between.join(str(number) for number in range(first, first + n))
