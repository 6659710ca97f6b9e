"""Prompts: plain text or a chat, from a JSON file, as token ids of the demo model."""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

PROMPTS_FILE = Path(__file__).with_name("prompts.json")


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes
    ----------
    name, category
        Its key in the file, and what kind of text it is.
    ids
        Token ids; the model has no start token.
    """

    name: str
    category: str
    ids: list[int]


def chat_text(messages: list[dict[str, str]], *, enable_thinking: bool) -> str:
    """Write messages as the chat template does, up to where the answer begins."""
    text = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return text + "<|im_start|>assistant\n<think>\n" + ("" if enable_thinking else "\n</think>\n\n")


def load_prompts(path: Path, tokenizer: Tokenizer) -> list[Prompt]:
    """Read a file of prompts.

    Parameters
    ----------
    path
        JSON file ``{name: {"text": ...}}`` or ``{name: {"messages": [...], "enable_thinking": ...}}``; ``"category"``
        is optional.
    tokenizer
        The demo model's.

    Returns
    -------
    list of Prompt
        In the order of the file.
    """
    prompts = []
    for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
        text = entry.get("text")
        if text is None:
            text = chat_text(entry["messages"], enable_thinking=entry.get("enable_thinking", True))
        prompts.append(Prompt(name, entry.get("category", ""), tokenizer.encode(text).ids))
    return prompts
