"""Prompts of `lucebox demo`, of the kinds of text the built-in model has seen.

Three are decoded greedily and four are sampled with a fixed seed: a small greedy model soon repeats itself, and text
that repeats itself flatters the drafts. Each prompt keeps the model writing for about a hundred tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DemoPrompt:
    """One prompt.

    Attributes
    ----------
    name
        Kind of text.
    text
        Prompt; may hold the special tokens of the chat template.
    temperature
        0 for greedy decoding.
    seed
        Seed of the random stream; of no effect when greedy.
    """

    name: str
    text: str
    temperature: float = 0.0
    seed: int = 0


def _user(text: str) -> str:
    """Put one user message into the built-in model's chat format, with thinking off."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


PROMPTS: tuple[DemoPrompt, ...] = (
    DemoPrompt(
        "code",
        '''"""Read simple key-value files."""

import os
import re


class ParseError(ValueError):
    """Raised when a line cannot be read."""


def read_settings(path):
    """Return the settings of a file as a dictionary.

    Empty lines and lines that begin with a hash sign are left out.
    """
    settings = {}
    with open(path) as f:
        for number, line in enumerate(f, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
''',
        temperature=0.7,
        seed=1,
    ),
    DemoPrompt(
        "prose",
        """Working with streams
--------------------

A stream is a source of data that can be read in parts. When the reader is slower than the writer, the data is kept in
a buffer. If the buffer is full, the writer has to wait until""",
        temperature=0.7,
        seed=1,
    ),
    DemoPrompt("counting", _user("Count from 120 to 190, separated by commas.")),
    DemoPrompt(
        "json",
        """[
  {
    "id": 301,
    "name": "Clara",
    "city": "Lisbon",
    "active": true,
    "score": 71.25
  },
  {
    "id": 302,
    "name": "Jonas",
    "city": "Oslo",
    "active": false,
    "score": 18.5
  },
""",
        temperature=0.7,
        seed=2,
    ),
    DemoPrompt(
        "table",
        """| id | name | city | rank |
|---|---|---|---|
| 51 | Emma | Vienna | 7 |
| 52 | Felix | Prague | 12 |
| 53 | Grace | Dublin | 3 |
| 54 | Hugo | Athens | 9 |
""",
        temperature=0.7,
        seed=1,
    ),
    DemoPrompt(
        "edit",
        _user(
            """Rename the function `average` to `weighted_mean`:
```python
def average(values, weights=None):
    \"\"\"Return the weighted mean of the values.\"\"\"
    if weights is None:
        weights = [1.0] * len(values)
    total = 0.0
    for value, weight in zip(values, weights):
        total += value * weight
    if not weights:
        raise ValueError("no weights")
    return total / sum(weights)
```"""
        ),
    ),
    DemoPrompt(
        "chat",
        _user(
            """Convert this CSV to JSON:
name,city,age
Anna,Oslo,31
Ben,Rome,45
Clara,Tokyo,28
Daniel,Lima,60
Emma,Cairo,39
"""
        ),
    ),
)
