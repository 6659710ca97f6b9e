"""Byte-level vocabulary and chat template of the small models.

Every text has exactly one token per byte (plus the special tokens), so tokens and bytes can be counted by eye and
any text, JSON and UTF-8 included, can be read and produced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Token types of GGUF (``enum llama_token_type`` in ``include/llama.h``)."""

N_BYTES = 256

_SPECIAL: tuple[tuple[str, int], ...] = (
    ("<|endoftext|>", CONTROL),
    ("<|im_start|>", CONTROL),
    ("<|im_end|>", CONTROL),
    ("<think>", USER_DEFINED),
    ("</think>", USER_DEFINED),
    ("<tool_call>", USER_DEFINED),
    ("</tool_call>", USER_DEFINED),
)

CHAT_TEMPLATE = """\
{%- set first = messages[0] -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if first.role == 'system' -%}{{- first.content + '\\n\\n' -}}{%- endif -%}
{{- 'Functions, one JSON description per line:\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\\n</tools>\\nA call is written as:\\n<tool_call>{"name": "f", "arguments": {}}</tool_call><|im_end|>\\n' -}}
{%- elif first.role == 'system' -%}
{{- '<|im_start|>system\\n' + first.content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- elif message.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if message.reasoning_content -%}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' -}}{%- endif -%}
{%- if message.content -%}{{- message.content -}}{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{%- if not loop.first or message.content -%}{{- '\\n' -}}{%- endif -%}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments if call.function.arguments is string else (call.function.arguments | tojson) -}}
{{- '}</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}
"""
"""ChatML with thinking and tools.

Like Qwen3's, it closes an empty ``<think>`` when thinking is switched off and writes nothing when it is on. No newline
follows ``<tool_call>``: a bias on that one token is then enough to make a model call a tool under upstream's grammar.
"""


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of a small model.

    Attributes
    ----------
    tokens
        Token texts in the spelling of the file.
    types
        int32 ``[n_vocab]``, token types of GGUF.
    """

    tokens: tuple[str, ...]
    types: npt.NDArray[np.int32]

    def id_of(self, token: str) -> int:
        """Return the id of a token given in the spelling of the file."""
        return self.tokens.index(token)


def byte_vocabulary(multiple: int) -> Vocabulary:
    """Make the vocabulary: id ``b`` is byte ``b``, then the special tokens, then unused ones.

    Parameters
    ----------
    multiple
        The size is rounded up to a multiple of this with unused tokens.
    """
    tokens = [*_byte_spellings(), *(text for text, _ in _SPECIAL)]
    types = [NORMAL] * N_BYTES + [kind for _, kind in _SPECIAL]
    n_unused = -len(tokens) % multiple
    tokens += [f"<|unused_{index}|>" for index in range(n_unused)]
    types += [UNUSED] * n_unused
    return Vocabulary(tuple(tokens), np.asarray(types, np.int32))


def _byte_spellings() -> list[str]:
    # GPT-2's rule: a visible Latin-1 byte is its own character, the n-th of the others is code point 256 + n
    visible = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(N_BYTES) if byte not in visible]
    return [chr(byte if byte in visible else N_BYTES + hidden.index(byte)) for byte in range(N_BYTES)]
