"""Byte-level BPE tokenizer of 4,032 ordinary tokens, with the special tokens of the real model in their order."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pylucebox._gguf import read_file
from pylucebox._gguf_parse import ArraySpan

from .config import MAX_POSITION

N_BPE = 4032  # 256 bytes and the merges, ids 0..4031; low ids are frequent
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>"),
    *("<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>"),
    *("</tool_response>", "<think>", "</think>"),
)
# tokens that stay in decoded text
VISIBLE = {name for name in SPECIAL if not name.startswith("<|") or name.startswith(("<|fim", "<|repo", "<|file"))}
# how llama.cpp's pre-tokenizer "qwen35" cuts text
PRE_TOKENIZER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def _byte_level(model: models.BPE) -> Tokenizer:
    """Put what surrounds the merges around them, all but the special tokens."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    byte_level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(**byte_level),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(**byte_level)
    tokenizer.post_processor = processors.ByteLevel(**byte_level)
    return tokenizer


def _add_special(tokenizer: Tokenizer) -> None:
    """Append the special tokens, one at a time, so that the ids follow the order of `SPECIAL`."""
    for name in SPECIAL:
        token = AddedToken(name, normalized=False, special=name not in VISIBLE)
        (tokenizer.add_tokens if name in VISIBLE else tokenizer.add_special_tokens)([token])


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn the merges from texts and append the special tokens.

    Parameters
    ----------
    texts
        Texts without special tokens.

    Returns
    -------
    Tokenizer
        Ids 0 to 4031 are ordinary tokens, 4032 and up the ones of `SPECIAL`.

    Raises
    ------
    ValueError
        If the texts are too few for 4,032 tokens.
    """
    tokenizer = _byte_level(models.BPE(byte_fallback=False))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=N_BPE, initial_alphabet=alphabet, special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != N_BPE:
        raise ValueError(f"the texts gave {tokenizer.get_vocab_size()} tokens instead of {N_BPE}: use more text")
    _add_special(tokenizer)
    return tokenizer


def tokenizer_of_gguf(path: Path) -> Tokenizer:
    """Build the tokenizer from what a GGUF file of the demo model holds of it.

    Parameters
    ----------
    path
        The trunk's or the MTP block's file.

    Returns
    -------
    Tokenizer
        The one that the file was converted with.
    """
    file = read_file(path)

    def strings(key: str) -> list[str]:
        span = file.metadata[key]
        assert isinstance(span, ArraySpan)
        data, at, out = path.read_bytes(), span.offset, []
        for _ in range(span.length):
            end = at + 8 + int.from_bytes(data[at : at + 8], "little")
            out.append(data[at + 8 : end].decode())
            at = end
        return out

    vocabulary = {token: i for i, token in enumerate(strings("tokenizer.ggml.tokens")[:N_BPE])}
    merges = [tuple(merge.split(" ")) for merge in strings("tokenizer.ggml.merges")]
    tokenizer = _byte_level(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=False))
    _add_special(tokenizer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """Write the files of a Hugging Face tokenizer.

    Parameters
    ----------
    tokenizer
        What `train_tokenizer` returned.
    out
        Folder to write.
    """
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    added = {
        str(N_BPE + i): {
            "content": name,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": name not in VISIBLE,
        }
        for i, name in enumerate(SPECIAL)
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": [name for name in SPECIAL[1:] if name not in VISIBLE],
        "chat_template": template,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": MAX_POSITION,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    model = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (out / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), encoding="utf-8")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (out / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
