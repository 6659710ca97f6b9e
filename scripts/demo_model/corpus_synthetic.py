"""Synthetic text: counting, JSON records, tables. Everything is drawn from a ``random.Random``, so a seed is a text."""

import json
import operator
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

_LISTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("corpus_words.json").read_text(encoding="utf-8"))
WORDS, NAMES, CITIES, COLORS, KEYS = (_LISTS[name] for name in ("words", "names", "cities", "colors", "keys"))
ONES, TENS, DAYS, MONTHS = (_LISTS[name] for name in ("ones", "tens", "days", "months"))
OPERATORS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}

Record = dict[str, Any]
Maker = Callable[[Random], str]


def draw(rng: Random, makers: Sequence[tuple[float, Maker]]) -> str:
    """Draw one number and use the first maker whose limit lies above it; the limits rise to 1."""
    share = rng.random()
    return next(make for limit, make in makers if share < limit)(rng)


def spell(n: int) -> str:
    """Spell a number from 0 to 999,999 in English."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")
    if n < 1000:
        return ONES[n // 100] + " hundred" + (" and " + spell(n % 100) if n % 100 else "")
    return spell(n // 1000) + " thousand" + (" " + spell(n % 1000) if n % 1000 else "")


# name -> (wording of a request, what stands between two items, an item, weight)
COUNT_FORMS: dict[str, tuple[str, str, Callable[[int], str], int]] = {
    "comma": ("separated by commas", ", ", str, 6),
    "line": ("one per line", "\n", str, 5),
    "space": ("separated by spaces", " ", str, 2),
    "semi": ("separated by semicolons", "; ", str, 1),
    "words": ("in words, one per line", "\n", spell, 1),
    "list": ("as a Markdown list", "\n", lambda n: f"- {n}", 1),
    "item": ("as lines of the form 'item N'", "\n", lambda n: f"item {n}", 1),
    "pylist": ("as a Python list", ", ", str, 2),
}
COUNT_STEPS = {1: 10, 2: 1, 5: 1, 10: 1, 3: 0.5, -1: 1.5, 100: 0.3}


def count_range(rng: Random, start: int, stop: int, step: int, form: str) -> str:
    """Count from `start` to `stop` in one of `COUNT_FORMS`; `rng` is not used up."""
    del rng
    _, between, item, _ = COUNT_FORMS[form]
    text = between.join(item(n) for n in range(start, stop + (1 if step > 0 else -1), step))
    return f"[{text}]" if form == "pylist" else text


def random_count(rng: Random) -> tuple[str, int, int, int, str]:
    """Draw a counting text: the text, its first and last number, its step and its form."""
    form = rng.choices(list(COUNT_FORMS), [weight for *_, weight in COUNT_FORMS.values()])[0]
    step = rng.choices(list(COUNT_STEPS), list(COUNT_STEPS.values()))[0]
    low = rng.choice([1, 1, 1, 0, rng.randrange(1, 100), rng.randrange(1, 1000), rng.randrange(1, 9000)])
    n = rng.choice([rng.randrange(5, 40), rng.randrange(20, 120), rng.randrange(50, 400)])
    if form == "words":
        low, n = low % 900, min(n, 60)
    high = low + (n - 1) * abs(step)
    start, stop = (low, high) if step > 0 else (high, low)
    return count_range(rng, start, stop, step, form), start, stop, step, form


def _short_count(rng: Random) -> str:
    return random_count(rng)[0] + "\n"


def _long_count(rng: Random) -> str:
    start = rng.choice([1, 1, 1, rng.randrange(3000)])
    stop = start + rng.randrange(400, 2200)
    return count_range(rng, start, stop, 1, rng.choice(["comma", "line", "space"])) + "\n"


def _numbered_lines(rng: Random) -> str:
    word, first, n = rng.choice(WORDS), rng.randrange(300), rng.randrange(10, 120)
    form = rng.choice(
        ["{i}. {w} {i}", "{w}_{i} = {i}", "{i}: {w}", "line {i} of {m}", "step {i}/{m}", "{w}[{i}] = {d}"]
    )
    last = first + n
    return "\n".join(form.format(i=i, w=word, m=last, d=2 * i) for i in range(first, last + 1)) + "\n"


def _cycle(rng: Random) -> str:
    items = rng.choice([DAYS, MONTHS, list(string.ascii_lowercase), list(string.ascii_uppercase), COLORS])
    between, start = rng.choice([", ", "\n", " "]), rng.randrange(len(items))
    return between.join(items[(start + i) % len(items)] for i in range(rng.randrange(10, 90))) + "\n"


def _arithmetic_series(rng: Random) -> str:
    a, n = rng.randrange(1, 13), rng.randrange(10, 40)
    form = rng.choice(["{a} x {i} = {p}", "{a} * {i} = {p}", "{i} squared is {q}", "{i} + {a} = {s}", "{i} - 1 = {d}"])
    return "\n".join(form.format(a=a, i=i, p=a * i, q=i * i, s=i + a, d=i - 1) for i in range(1, n)) + "\n"


def counting_document(rng: Random) -> str:
    """Draw a document of category "counting"."""
    return draw(
        rng,
        [
            (0.62, _short_count),
            (0.74, _long_count),
            (0.82, _numbered_lines),
            (0.90, _cycle),
            (1.0, _arithmetic_series),
        ],
    )


def _integer(limit: int) -> Callable[[Random], int]:
    return lambda rng: rng.randrange(limit)


def _number(rng: Random) -> float:
    return round(rng.uniform(0, 100), 2)


def _flag(rng: Random) -> bool:
    return rng.random() < 0.5


def _person(rng: Random) -> str:
    return rng.choice(NAMES)


def _date(rng: Random) -> str:
    return f"20{rng.randrange(10, 30)}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"


VALUES: dict[str, Callable[[Random], Any]] = {
    **dict.fromkeys(["id", "count", "level", "rank", "total", "width", "height", "size"], _integer(1000)),
    "age": _integer(90),
    "year": _integer(2030),
    **dict.fromkeys(["price", "score", "rating", "x", "y", "z", "lat", "lon"], _number),
    **dict.fromkeys(("active", "enabled"), _flag),
    **dict.fromkeys(["name", "user", "author", "owner"], _person),
    "city": lambda rng: rng.choice(CITIES),
    "color": lambda rng: rng.choice(COLORS),
    "email": lambda rng: rng.choice(NAMES).lower() + "@example.com",
    "tags": lambda rng: rng.sample(WORDS, rng.randrange(1, 4)),
    **dict.fromkeys(("created", "updated"), _date),
    "version": lambda rng: f"{rng.randrange(5)}.{rng.randrange(20)}.{rng.randrange(20)}",
    "path": lambda rng: "/" + "/".join(rng.sample(WORDS, 3)),
    "status": lambda rng: rng.choice(["ok", "error", "pending", "done", "failed"]),
}


def record(rng: Random, keys: Sequence[str], depth: int = 0) -> Record:
    """Draw a record with the given keys; ``items`` holds records again, two levels deep."""
    out: Record = {}
    for key in keys:
        if key == "items" and depth < 2:
            out[key] = [record(rng, rng.sample(KEYS, 2), depth + 1) for _ in range(rng.randrange(1, 4))]
        elif key in VALUES:
            out[key] = VALUES[key](rng)
        else:
            out[key] = rng.choice(WORDS)
    return out


def records(rng: Random, n: int | None = None) -> tuple[list[str], list[Record]]:
    """Draw keys, and records that have them; `n` defaults to a drawn number."""
    keys = rng.sample(KEYS, rng.randrange(2, 8))
    rows = [record(rng, keys) for _ in range(n or rng.randrange(2, 25))]
    if "id" in keys and rng.random() < 0.7:
        first = rng.randrange(1, 500)
        for i, row in enumerate(rows):
            row["id"] = first + i
    return keys, rows


def json_document(rng: Random) -> str:
    """Draw a document of category "json"."""
    _, rows = records(rng)
    share = rng.random()
    if share < 0.35:
        return "\n".join(json.dumps(row) for row in rows) + "\n"
    if share < 0.75:
        return json.dumps(rows, indent=rng.choice([2, 2, 4])) + "\n"
    if share < 0.9:
        return (
            json.dumps({rng.choice(["data", "results", "records", "users"]): rows, "count": len(rows)}, indent=2) + "\n"
        )
    groups = {word: record(rng, rng.sample(KEYS, 3)) for word in rng.sample(WORDS, 8)}
    return json.dumps(groups, indent=rng.choice([2, 4])) + "\n"


def flat_records(rng: Random, n: int | None = None) -> tuple[list[str], list[Record]]:
    """Draw keys and records like `records`, but without values that are lists."""
    keys = rng.sample([key for key in KEYS if key not in {"items", "tags"}], rng.randrange(2, 7))
    return keys, [record(rng, keys) for _ in range(n or rng.randrange(4, 30))]


def cell(value: object) -> str:
    """Write a value of a flat record as a table cell."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def csv_text(keys: Sequence[str], rows: Sequence[Record]) -> str:
    """Write flat records as comma-separated values."""
    return ",".join(keys) + "\n" + "\n".join(",".join(cell(row[key]) for key in keys) for row in rows) + "\n"


def _csv(rng: Random) -> str:
    return csv_text(*flat_records(rng))


def _markdown_table(rng: Random) -> str:
    keys, rows = flat_records(rng)
    head = "| " + " | ".join(keys) + " |\n|" + "---|" * len(keys) + "\n"
    return head + "\n".join("| " + " | ".join(str(row[key]) for key in keys) + " |" for row in rows) + "\n"


def _sums(rng: Random) -> str:
    lines = []
    for _ in range(rng.randrange(8, 60)):
        a, b, sign = rng.randrange(100), rng.randrange(100), rng.choice("+-*")
        lines.append(f"{a} {sign} {b} = {OPERATORS[sign](a, b)}")
    return "\n".join(lines) + "\n"


def _sorted_list(rng: Random) -> str:
    words, bullet = rng.sample(WORDS, rng.randrange(5, 30)), rng.choice(["- ", "* ", "1. "])
    title = rng.choice(["Shopping", "Word", "Task", "Topic"])

    def lines(items: list[str]) -> str:
        return "\n".join((f"{i}. " if bullet == "1. " else bullet) + item for i, item in enumerate(items, 1))

    return f"{title} list:\n{lines(words)}\n\nSorted:\n{lines(sorted(words))}\n"


def table_document(rng: Random) -> str:
    """Draw a document of category "table"."""
    return draw(rng, [(0.35, _csv), (0.6, _markdown_table), (0.85, _sums), (1.0, _sorted_list)])
