"""The prompts of the workloads: an instruction for models that follow them, the beginning of a text for others."""

from __future__ import annotations

from typing import Final

from . import _corpus, _made
from ._desk import Desk, draw
from ._recipe import PromptMaker

_TAIL_TOKENS: Final = 96  # room for the instruction after the material

_SENTENCES: Final = (
    "The ferry leaves at seven and comes back before dark.",
    "She kept the old map because someone had written names on it.",
    "Nobody had wound the clock since the spring.",
    "If the bridge is closed, take the road along the river.",
    "The soup was too hot to eat and too good to leave.",
    "He counted the steps, forgot the number and counted again.",
    "Their train was late, so they walked through the market.",
    "A cat slept on the warm stones in front of the bakery.",
    "The letter arrived three weeks after the visitor.",
    "We need a longer rope or a shorter well.",
    "The lamp in the hall burns all night.",
    "Every winter the lake freezes from the edges.",
    "My neighbour repairs violins and never plays one.",
    "It rained so hard that the children stayed indoors.",
    "The museum shows only half of what it owns.",
    "You can hear the sea from the kitchen window.",
    "They sold the house but kept the apple tree.",
    "The first page was missing, and so was the last.",
    "Put the key under the third pot on the left.",
    "Tomorrow the shop opens an hour later than usual.",
)


def simple(instruction: str, beginning: str, other_instruction: str, other_beginning: str) -> PromptMaker:
    """Return a maker of fixed prompts; the second pair is the positive control."""

    def make(desk: Desk, _: int, variant: int) -> str:
        if desk.is_chat:
            return desk.ask(other_instruction if variant else instruction)
        return other_beginning if variant else beginning

    return make


def _rotated_code(offset: int) -> str:
    files = _corpus.code_files()
    offset %= len(files)
    return "".join(files[offset:] + files[:offset])


def code(offset: int) -> PromptMaker:
    """Return a maker of prompts full of source code, beginning with module number `offset`."""

    def make(desk: Desk, n_tokens: int, variant: int) -> str:
        source = _rotated_code(offset + 7 * variant)
        if not desk.is_chat:
            return desk.fill(source, n_tokens)
        return desk.ask(
            "Modules of a Python package follow.\n\n```python\n"
            + desk.fill(source, n_tokens - _TAIL_TOKENS)
            + "```\n\nWrite one more module in the same style: a class that runs a callable again after failures, with"
            " growing pauses, a limit of time, and the error of each attempt kept. Give it docstrings and type hints."
        )

    return make


def code_edit(desk: Desk, n_tokens: int, variant: int) -> str:
    """Ask for a whole module back with one name changed."""
    source = _rotated_code(11 + variant)
    if not desk.is_chat:
        request = "Repeat this code exactly:"
        return desk.ask(f"{request}\n```python\n{desk.fill(source, n_tokens - _TAIL_TOKENS)}```")
    return desk.ask(
        "Return this whole file again with every local variable named `value` renamed to `entry` and nothing else"
        f" changed.\n\n```python\n{desk.fill(source, n_tokens - _TAIL_TOKENS)}```"
    )


def count_after_filler(desk: Desk, n_tokens: int, variant: int) -> str:
    """Ask for counting after a lot of prose that has nothing to do with it."""
    filler = "".join(f"{title}\n\n{text}\n\n" for title, text in _corpus.articles())
    first = 1000 + 1000 * variant
    if desk.is_chat:
        return desk.ask(
            f"{desk.fill(filler, n_tokens - _TAIL_TOKENS)}\nLeave the texts above aside. Count upward from {first}, one"
            " number per line, and do not stop."
        )
    request = desk.ask(f"Count from {first} to {first + 900}, one per line.")
    return desk.fill(filler, n_tokens - _TAIL_TOKENS) + request


def count(desk: Desk, _: int, variant: int) -> str:
    """Ask for counting."""
    first = 1000 + 1000 * variant
    if desk.is_chat:
        return desk.ask(f"Count upward from {first}, one number per line, and do not stop.")
    return desk.ask(f"Count from {first} to {first + 400}, one per line.")


def count_words(desk: Desk, _: int, variant: int) -> str:
    """Ask for one word again and again."""
    word = ("BETA", "GAMMA")[variant]
    if desk.is_chat:
        return desk.ask(f"Write the word {word} again and again, with spaces between, and nothing else. Do not stop.")
    return f"{word} " * 60


def explain(desk: Desk, _: int, variant: int) -> str:
    """Ask for an explanation of one article."""
    text = _corpus.articles()[8 + variant][1]
    if desk.is_chat:
        return desk.ask(f"{text}\n\nExplain this to a beginner, with an example of your own.")
    return f"{text}\n\nIn other words:\n\n"


def summarise(desk: Desk, n_tokens: int, variant: int) -> str:
    """Ask for summaries of eight articles."""
    chosen = _corpus.articles()[variant : variant + 8]
    source = "".join(f"## {title}\n\n{article}\n\n" for title, article in chosen)
    text = desk.fill(source, min(n_tokens - _TAIL_TOKENS, desk.count(source)))
    if desk.is_chat:
        return desk.ask(f"{text}\nSummarise each of these texts in two sentences, under its title.")
    return f"{text}## Summary\n\n*"


def essay(desk: Desk, _: int, variant: int) -> str:
    """Ask for an essay without material."""
    if desk.is_chat:
        subject = ("why people keep things they do not use", "why people like to walk the same way")[variant]
        return desk.ask(f"Write an essay of five paragraphs on {subject}.")
    return _corpus.articles()[variant][1]


def json_records(desk: Desk, _: int, variant: int) -> str:
    """Ask for more records like those shown."""
    first = 301 + 100 * variant
    if desk.is_chat:
        shown = _made.json_array(first, 40)
        return desk.ask(
            f"```json\n{shown}\n```\n\nExtend this array to 80 records that follow the pattern. Answer with the whole"
            " array and nothing else."
        )
    return desk.ask(f"Convert this CSV to JSON:\n{_made.csv_people(first, 14)}")


def csv_table(desk: Desk, _: int, variant: int) -> str:
    """Ask for the continuation of a table that follows a rule."""
    first = 1 + 40 * variant
    if desk.is_chat:
        return desk.ask(f"Continue this table by 60 rows. Write only the rows.\n\n{_made.progression(first, 40)}")
    factor = 7 + variant
    return "".join(f"{factor} x {i} = {factor * i}\n" for i in range(1, 15))


def translate(desk: Desk, _: int, variant: int) -> str:
    """Ask for a translation of fixed sentences."""
    sentences = _SENTENCES[::-1] if variant else _SENTENCES
    if desk.is_chat:
        numbered = "".join(f"{i}. {sentence}\n" for i, sentence in enumerate(sentences, 1))
        return desk.ask(f"Translate each sentence into French and keep the numbers.\n\n{numbered}")
    return "".join(f"English: {sentence}\n" for sentence in sentences) + "\nFrench:"


def maths(n: int, *, thinking: bool) -> PromptMaker:
    """Return a maker of multiplications to be worked out."""

    def make(desk: Desk, _: int, variant: int) -> str:
        pairs = _made.products(f"maths {variant} {thinking}", n)
        if desk.is_chat:
            tasks = "".join(f"{i}. {a} * {b}\n" for i, (a, b) in enumerate(pairs, 1))
            return desk.ask(f"Work these out step by step, by partial products:\n\n{tasks}", thinking=thinking)
        start = pairs[0][0]
        return "".join(f"{i} squared is {i * i}\n" for i in range(start, start + 12))

    return make


def entropy(desk: Desk, _: int, variant: int) -> str:
    """Ask for digests that cannot be guessed: drafts are of no use here."""
    first = 100 * variant
    if desk.is_chat:
        return desk.ask(
            f"{_made.digest_lines(first, 8)}\nThese are the first rows of a table of random numbers. Go on with 60 more"
            " rows of the same form, as random as you can."
        )
    return _made.digest_lines(first, 8)


def drift(desk: Desk, _: int, variant: int) -> str:
    """Ask for a text that changes its kind, or begin one: numbers in order and digests by turns."""
    if desk.is_chat:
        thing, change = (("shopping basket", "discounts"), ("calendar", "time zones"))[variant]
        items = ("orders", "entries")[variant]
        return desk.ask(
            f"First write a Python class for a {thing}. Then tell a short story about the person who wrote it. Then"
            f" give ten example {items} as JSON. Then extend the class by {change}."
        )
    return "".join(
        _made.counting(1000 + 16 * turn, 16) + "\n" + _made.bare_digests(100 * (turn + 4 * variant), 4)
        for turn in range(3)
    )


def copy(desk: Desk, n_tokens: int, variant: int) -> str:
    """Ask for a text to be repeated."""
    chosen = _corpus.articles()[5 + 6 * variant : 11 + 6 * variant]
    # What is longer than this a tiny model does not repeat.
    n_copied = min(n_tokens - _TAIL_TOKENS, 1024 if desk.is_chat else 320)
    text = desk.fill("".join(f"{article}\n\n" for _, article in chosen), n_copied).rstrip()
    if desk.is_chat:
        return desk.ask(f"{text}\n\nRepeat the text above exactly, to its end.")
    return desk.ask(f"Repeat this text:\n{text}")


def short_reply(desk: Desk, _: int, variant: int) -> str:
    """Ask for a reply that ends after a few tokens."""
    question = f"What is {31 + variant} + 14?"
    return desk.ask(f"{question} Answer with the number only." if desk.is_chat else question)


def numbered_task(number: int) -> PromptMaker:
    """Return a maker of prompts that share their text and differ in one number."""

    def make(desk: Desk, n_tokens: int, variant: int) -> str:
        if desk.is_chat:
            source = desk.fill(_rotated_code(2), n_tokens - _TAIL_TOKENS)
            return desk.ask(
                f"Task {number + 10 * variant}.\n\n```python\n{source}```\n\nExplain what part {number} of this module"
                " does, then write a test for it."
            )
        first = 100 + 400 * number + draw(f"task {variant}", 90)
        return desk.ask(f"Convert this CSV to JSON:\n{_made.csv_people(first, 12)}")

    return make


def exact_length(n_tokens: int) -> PromptMaker:
    """Return a maker of prompts of `n_tokens` tokens, or of one less where the tokenizer leaves no other way."""

    def make(desk: Desk, _: int, variant: int) -> str:
        text = desk.fill(_made.counting(1 + 500 * variant, 400) + "\n", n_tokens - 4)
        while desk.count(text + " a") <= n_tokens:
            text += " a"
        return text

    return make
