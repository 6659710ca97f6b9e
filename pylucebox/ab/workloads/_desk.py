"""What a prompt is made with: the model's tokenizer, the room there is, and the forms the model understands."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Tokenize = Callable[[str], Sequence[int]]

_PROBE = (
    "def probe(value: int) -> str:\n    return f'{value:>8.3f}'\n\n"
    '{"id": 1024, "names": ["Anna", "Łukasz", "名前"], "ratio": -0.125}\n'
    "Le chat dort; 3 ± 1 = 2.\t<|im_start|>user\nHi<|im_end|>\n"
)


def fingerprint(tokenize: Tokenize) -> str:
    """Return a hash that differs between tokenizers: SHA-256 over the ids of a fixed text."""
    return hashlib.sha256(",".join(str(token) for token in tokenize(_PROBE)).encode()).hexdigest()


def draw(key: str, n: int) -> int:
    """Return a number below `n` that depends on `key` alone.

    Not `random`: only its floats are promised to stay the same in later versions of Python.
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % n


@dataclass(frozen=True, slots=True)
class Desk:
    """Makes prompts for one model.

    Attributes
    ----------
    tokenize
        Turns text into token ids, control tokens read as such.
    n_ctx
        Most tokens of a sequence, prompt and output together.
    is_chat
        Whether the model follows instructions. If not, prompts are the beginning of a text.
    """

    tokenize: Tokenize
    n_ctx: int
    is_chat: bool

    @property
    def stagger_s(self) -> float:
        """Pause between staggered requests, in seconds.

        A model that follows instructions is large enough to be still at work after it; a tiny one would be done.
        """
        return 3.0 if self.is_chat else 0.1

    def count(self, text: str) -> int:
        """Return how many tokens a text has."""
        return len(self.tokenize(text))

    def fill(self, source: str, n_tokens: int) -> str:
        """Return the longest run of whole lines from the start of `source`, repeated if short, of at most `n_tokens`.

        Parameters
        ----------
        source
            Text that ends in a line break, at least one line.
        n_tokens
            Limit. Less than the first line has gives an empty text.
        """
        endless = itertools.cycle(source.splitlines(keepends=True))
        lines: list[str] = []
        n_bytes = 0
        budget = 6 * n_tokens  # enough at once for most tokenizers; tokenising much more than needed is slow
        while True:
            while n_bytes <= budget:
                lines.append(next(endless))
                n_bytes += len(lines[-1])
            if self.count("".join(lines)) > n_tokens:
                break
            budget *= 2
        low, high = 0, len(lines)  # low lines fit; more than high lines are not looked at
        while low < high:
            middle = (low + high + 1) // 2
            if self.count("".join(lines[:middle])) <= n_tokens:
                low = middle
            else:
                high = middle - 1
        return "".join(lines[:low])

    def ask(self, user: str, *, thinking: bool = False) -> str:
        """Put one user message into the chat form of Qwen models (ChatML)."""
        thought = "<think>\n" if thinking else "<think>\n\n</think>\n\n"
        return f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{thought}"


def knows_chat(tokenize: Tokenize) -> bool:
    """Tell whether the tokenizer has the control tokens of ChatML."""
    return all(len(tokenize(mark)) == 1 for mark in ("<|im_start|>", "<|im_end|>"))
