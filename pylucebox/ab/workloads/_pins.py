"""Hashes of every prompt, so that a change of the corpus or of a recipe cannot go unnoticed.

Prompts are pinned for two tokenizers: that of the built-in model, whose prompts are beginnings of texts, and a stand-in
that needs no model and gets the instructions at full size.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from importlib import resources
from typing import Any, Final

from pylucebox.ab.records import Workload

STAND_IN_N_CTX: Final = 131_072
"""Context that the stand-in's prompts are pinned for: everything fits."""

_MARKS: Final = re.compile(r"<\|im_start\|>|<\|im_end\|>")


def stand_in_tokenize(text: str) -> list[int]:
    """Return one token per four bytes, a common mean for English and code, and one per control token of ChatML."""
    tokens: list[int] = []
    start = 0
    for mark in _MARKS.finditer(text):
        tokens += _four_bytes(text[start : mark.start()])
        tokens.append(1 if mark[0] == "<|im_start|>" else 2)
        start = mark.end()
    return tokens + _four_bytes(text[start:])


def _four_bytes(text: str) -> list[int]:
    content = text.encode()
    content += bytes(-len(content) % 4)
    return memoryview(content).cast("I").tolist()


def prompt_hashes(workload: Workload) -> list[str]:
    """Return the SHA-256 of each prompt of a workload, the control last if there is one."""
    requests = [*workload.requests, *([workload.control] if workload.control else [])]
    return [hashlib.sha256(request.prompt.encode()).hexdigest() for request in requests]


@functools.cache
def pins() -> dict[str, Any]:
    """Return the pinned hashes: per tokenizer its `fingerprint`, the context, and `prompt_hashes` by workload."""
    source = resources.files(__package__ or "pylucebox.ab.workloads") / "pins.json"
    content: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    return content
