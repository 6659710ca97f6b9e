"""Synthetic conversations and editing tasks, in the chat format of the tokenizer's template."""

import builtins
import json
import keyword
import re
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from .corpus_synthetic import (
    CITIES,
    COUNT_FORMS,
    KEYS,
    OPERATORS,
    WORDS,
    cell,
    csv_text,
    flat_records,
    random_count,
    record,
    records,
)
from .corpus_text import Function

IDENTIFIER = re.compile(r"\b[a-z_][a-z_0-9]{2,}\b")
RESERVED = set(keyword.kwlist) | set(dir(builtins)) | {"self", "cls", "args", "kwargs"}
# what chat_template.jinja writes around the tools
TOOLS_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>\n"
TOOLS_TAIL = (
    "\n</tools>\n\nIf you choose to call a function reply in the following format:\n\n<tool_call>\n"
    "<function=example_function>\n<parameter=example_parameter>\nvalue\n</parameter>\n</function>\n</tool_call>"
)


class Turn(NamedTuple):
    """A question, its answer, and the thought in between."""

    question: str
    answer: str
    thought: str


class Edit(NamedTuple):
    """A request to change code, and the code before and after."""

    request: str
    before: str
    after: str


def edit_task(rng: Random, functions: Sequence[Function]) -> Edit:
    """Draw a task: rename a variable or the function, copy, or take out comments."""
    name, source = (function := rng.choice(functions)).name, function.source
    identifiers = sorted(set(IDENTIFIER.findall(source)) - RESERVED - {name})
    share = rng.random()
    if share < 0.55 and identifiers:
        old = rng.choice(identifiers)
        new = rng.choice(WORDS) + rng.choice(["", "_" + rng.choice(WORDS), "_" + str(rng.randrange(10))])
        request = rng.choice(
            [
                f"Rewrite this function with the variable `{old}` renamed to `{new}`:",
                f"Rename `{old}` to `{new}` in this code:",
                f"Replace every `{old}` by `{new}`:",
            ]
        )
        return Edit(request, source, re.sub(rf"\b{old}\b", new, source))
    if share < 0.75:
        new = rng.choice(WORDS) + "_" + rng.choice(WORDS)
        return Edit(f"Rename the function `{name}` to `{new}`:", source, re.sub(rf"\b{name}\b", new, source))
    if share < 0.9:
        request = rng.choice(
            ["Repeat this code exactly:", "Copy this function without changes:", "Print this code again:"]
        )
        return Edit(request, source, source)
    kept = "\n".join(line for line in source.split("\n") if not line.strip().startswith("#"))
    return Edit("Remove the comment lines from this function:", source, kept)


def edit_turn(edit: Edit) -> Turn:
    """Put an editing task as a question."""
    question = f"{edit.request}\n```python\n{edit.before}\n```"
    return Turn(question, f"```python\n{edit.after}\n```", "I copy the code and apply the change.")


def edit_document(rng: Random, functions: Sequence[Function]) -> str:
    """Draw a document of category "edit"."""
    edit = edit_task(rng, functions)
    if rng.random() < 0.4:
        return (
            f"### Task\n{edit.request}\n\n### Before\n```python\n{edit.before}\n```\n\n"
            f"### After\n```python\n{edit.after}\n```\n"
        )
    if rng.random() < 0.5:
        return f"# {edit.request}\n{edit.before}\n\n# result\n{edit.after}\n"
    return conversation(rng, [edit_turn(edit)])


def conversation(rng: Random, turns: Sequence[Turn]) -> str:
    """Write turns in the chat format; only the last answer shows its thought, or an empty one."""
    text = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" if rng.random() < 0.15 else ""
    thinks = rng.random() < 0.35
    for i, turn in enumerate(turns, 1):
        text += f"<|im_start|>user\n{turn.question}<|im_end|>\n<|im_start|>assistant\n"
        if i == len(turns):
            text += f"<think>\n{turn.thought}\n</think>\n\n" if thinks else "<think>\n\n</think>\n\n"
        text += turn.answer + "<|im_end|>\n"
    return text


def _count_turn(rng: Random) -> Turn:
    text, start, stop, step, form = random_count(rng)
    how = COUNT_FORMS[form][0]
    by = "" if abs(step) == 1 else f" in steps of {abs(step)}"
    question = rng.choice(
        [
            f"Count from {start} to {stop}{by}, {how}.",
            f"Please count from {start} to {stop}{by} {how}.",
            f"Write the numbers from {start} to {stop}{by}, {how}.",
            f"List all numbers from {start} to {stop}{by} {how}.",
        ]
    )
    return Turn(question, text, f"The user wants the numbers from {start} to {stop}. I list them {how}.")


def _json_turn(rng: Random) -> Turn:
    n = rng.randrange(2, 12)
    keys, rows = records(rng, n)
    fields = ", ".join(keys)
    question = rng.choice(
        [
            f"Output a JSON array of {n} records with the fields {fields}.",
            f"Give me {n} JSON objects with the keys {fields}.",
            f"Make {n} example records with {fields} as JSON.",
        ]
    )
    answer = "```json\n" + json.dumps(rows, indent=2) + "\n```"
    return Turn(question, answer, f"I make {n} records with the fields {fields}.")


def _table_turn(rng: Random) -> Turn:
    n = rng.randrange(3, 15)
    keys, rows = flat_records(rng, n)
    if rng.random() < 0.5:
        as_text = [{key: cell(row[key]) for key in keys} for row in rows]
        answer = "```json\n" + json.dumps(as_text, indent=2) + "\n```"
        return Turn(f"Convert this CSV to JSON:\n{csv_text(keys, rows)}", answer, "I convert each row to an object.")
    question = f"Make a CSV table with the columns {', '.join(keys)} and {n} rows."
    return Turn(question, csv_text(keys, rows).strip(), f"I write {n} rows.")


def _sum_turn(rng: Random) -> Turn:
    a, b, sign = rng.randrange(200), rng.randrange(200), rng.choice("+-*")
    question = rng.choice([f"What is {a} {sign} {b}?", f"Compute {a} {sign} {b}."])
    return Turn(question, f"{a} {sign} {b} = {OPERATORS[sign](a, b)}", f"I compute {a} {sign} {b}.")


def _code_turn(rng: Random, functions: Sequence[Function]) -> Turn:
    if rng.random() < 0.6:
        return edit_turn(edit_task(rng, functions))
    function = rng.choice(functions)
    lines = function.source.split("\n")
    head = "\n".join(lines[: max(1, len(lines) // 3)])
    question = f"Continue this code:\n```python\n{head}\n```"
    return Turn(question, f"```python\n{function.source}\n```", f"I complete the function {function.name}.")


def _sort_turn(rng: Random) -> Turn:
    words = rng.sample(WORDS, rng.randrange(4, 15))
    thought = "I sort the words in alphabetical order."
    return Turn("Sort these words: " + ", ".join(words), ", ".join(sorted(words)), thought)


def _repeat_turn(rng: Random, prose: Sequence[str]) -> Turn:
    text = rng.choice(prose)
    start = text.find("\n\n", rng.randrange(max(1, len(text) - 800)))
    paragraph = text[start : start + 600].strip().split("\n\n")[0] or "Nothing."
    return Turn(f"Repeat this text:\n{paragraph}", paragraph, "I repeat the text.")


def random_turn(rng: Random, functions: Sequence[Function], prose: Sequence[str]) -> Turn:
    """Draw a question with its answer."""
    share = rng.random()
    for limit, make in ((0.34, _count_turn), (0.52, _json_turn), (0.62, _table_turn), (0.72, _sum_turn)):
        if share < limit:
            return make(rng)
    if share < 0.9:
        return _code_turn(rng, functions)
    return _sort_turn(rng) if share < 0.95 else _repeat_turn(rng, prose)


def _tool_conversation(rng: Random) -> str:
    name = rng.choice(["get_weather", "search", "read_file", "run_query", "send_mail"])
    argument = rng.choice(["city", "query", "path", "name"])
    value = rng.choice(CITIES + WORDS)
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    tool = {"type": "function", "function": {"name": name, "parameters": parameters}}
    reply = json.dumps(record(rng, rng.sample(KEYS, 3)))
    thought = "" if rng.random() < 0.5 else f"I call {name}."
    return (
        f"<|im_start|>system\n{TOOLS_HEAD}{json.dumps(tool)}{TOOLS_TAIL}<|im_end|>\n"
        f"<|im_start|>user\nCall {name} with {argument} {value}.<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\n{thought}\n</think>\n\n<tool_call>\n<function={name}>\n"
        f"<parameter={argument}>\n{value}\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
        f"<|im_start|>user\n<tool_response>\n{reply}\n</tool_response><|im_end|>\n"
        f"<|im_start|>assistant\n<think>\n\n</think>\n\nThe result is {reply}<|im_end|>\n"
    )


def chat_document(rng: Random, functions: Sequence[Function], prose: Sequence[str]) -> str:
    """Draw a document of category "chat": one to three turns, or a tool call."""
    if rng.random() < 0.05:
        return _tool_conversation(rng)
    n_turns = rng.choices([1, 2, 3], [6, 2, 1])[0]
    return conversation(rng, [random_turn(rng, functions, prose) for _ in range(n_turns)])
