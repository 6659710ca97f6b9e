"""Build the training corpus, the tokenizer and the packed token files.

Reads the Python packages installed beside it (``corpus_sources.json``) and folders of documentation, and draws the
synthetic text. Writes, below the output folder:

* ``tokenizer/``: the files of a Hugging Face tokenizer;
* ``data/train.bin``: uint16 tokens, documents end with ``<|endoftext|>``;
* ``data/val_<category>.bin``: held-out tokens; ``data/meta.json``: the counts.

    python -m scripts.demo_model.make_corpus --out CORPUS --docs FOLDER --docs FOLDER
"""

import argparse
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from .config import END_OF_TEXT, ModelConfig
from .corpus_chat import chat_document, edit_document
from .corpus_synthetic import counting_document, json_document, table_document
from .corpus_text import Document, Function, code_documents, functions_of, prose_documents
from .tokenizer import save_tokenizer, train_tokenizer

SEED, TRAIN_SEED, HELD_OUT_SEED = 20261129, 1, 2
# characters of synthetic text per category, in millions
SYNTHETIC_MCHARS = {"counting": 9, "json": 9, "table": 7, "edit": 12, "chat": 20}
HELD_OUT_SHARE = 0.04
# characters per category that the tokenizer learns from, in millions
TOKENIZER_MCHARS = {"code": 14, "prose": 8, "chat": 3, "json": 1.5, "table": 1, "counting": 0.5}
MAX_HELD_OUT_TOKENS = 140_000
MARKUP = re.compile(r"<\|im_start\|>|<\|im_end\|>|</?think>|</?tool_call>|</?tool_response>")
BATCH = 2000

Texts = dict[str, list[str]]


def fill(make: Callable[[], str], n_chars: float) -> list[str]:
    """Call `make` until its texts have `n_chars` characters."""
    texts, n = [], 0
    while n < n_chars:
        texts.append(make())
        n += len(texts[-1])
    return texts


def synthetic_texts(seed: int, mchars: float, functions: list[Function], prose: list[str]) -> Texts:
    """Draw the synthetic categories, `mchars` times `SYNTHETIC_MCHARS` million characters of each."""
    rng = random.Random(seed)
    makers = {
        "counting": lambda: counting_document(rng),
        "json": lambda: json_document(rng),
        "table": lambda: table_document(rng),
        "edit": lambda: edit_document(rng, functions),
        "chat": lambda: chat_document(rng, functions, prose),
    }
    return {category: fill(make, SYNTHETIC_MCHARS[category] * mchars * 1e6) for category, make in makers.items()}


def tokenizer_sample(texts: Texts, rng: random.Random) -> list[str]:
    """Draw the texts that the tokenizer learns from, without the chat markup."""
    sample = []
    for category, mchars in TOKENIZER_MCHARS.items():
        n = 0
        for text in rng.sample(texts[category], len(texts[category])):
            sample.append(MARKUP.sub("", text))
            n += len(text)
            if n > mchars * 1e6:
                break
    return sample


def encode(tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """Tokenise texts into one uint16 array, each followed by ``<|endoftext|>``."""
    parts = []
    for i in range(0, len(texts), BATCH):
        parts += [np.array([*e.ids, END_OF_TEXT], np.uint16) for e in tokenizer.encode_batch(texts[i : i + BATCH])]
    return np.concatenate(parts)


def write_tokens(
    tokenizer: Tokenizer, train: Texts, held_out: Texts, out: Path, rng: random.Random
) -> dict[str, object]:
    """Write the packed token files.

    Parameters
    ----------
    tokenizer
        The trained tokenizer.
    train, held_out
        Texts per category.
    out
        Folder to write.
    rng
        Shuffles the documents.

    Returns
    -------
    dict
        Token counts, also written to ``meta.json``.
    """
    out.mkdir(parents=True, exist_ok=True)
    flat = [text for texts in train.values() for text in texts]
    rng.shuffle(flat)
    tokens = encode(tokenizer, flat)
    tokens.tofile(out / "train.bin")
    meta = {"end_of_text": END_OF_TEXT, "vocab": ModelConfig().vocab_size, "train_tokens": len(tokens), "held_out": {}}
    for category, texts in held_out.items():
        rng.shuffle(texts)
        tokens = encode(tokenizer, texts)[:MAX_HELD_OUT_TOKENS]
        tokens.tofile(out / f"val_{category}.bin")
        meta["held_out"][category] = len(tokens)
    (out / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
    return meta


def collect(docs: list[Path], scale: float, rng: random.Random) -> tuple[Texts, Texts]:
    """Gather all texts.

    Parameters
    ----------
    docs
        Folders of documentation.
    scale
        Size of the synthetic part, 1 for the built-in model.
    rng
        Draws among the real texts.

    Returns
    -------
    tuple
        Training and held-out texts per category.
    """
    code = code_documents(rng)
    prose = prose_documents(code, docs, rng)

    def split(documents: list[Document], *, held_out: bool) -> list[Document]:
        return [document for document in documents if document.held_out == held_out]

    parts = []
    for held_out, limit, seed, mchars in (
        (False, 40_000, TRAIN_SEED, scale),
        (True, 2_000, HELD_OUT_SEED, HELD_OUT_SHARE),
    ):
        own_code = split(code, held_out=held_out)
        functions = functions_of(own_code, rng, limit)
        texts = {
            "code": [document.text for document in own_code],
            "prose": [document.text for document in split(prose, held_out=held_out)],
        }
        parts.append(texts | synthetic_texts(seed, mchars, functions, texts["prose"]))
    return parts[0], parts[1]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument(
        "--docs", type=Path, action="append", default=[], help="folder of .md and .rst files; repeatable"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="size of the synthetic part (default: 1)")
    args = parser.parse_args()
    rng = random.Random(SEED)
    train, held_out = collect(args.docs, args.scale, rng)
    for category, texts in train.items():
        size, held_out_size = (sum(map(len, part[category])) / 1e6 for part in (train, held_out))
        print(f"{category}: {len(texts)} texts, {size:.2f} MB; held out {held_out_size:.2f} MB", flush=True)
    tokenizer = train_tokenizer(tokenizer_sample(train, rng))
    save_tokenizer(tokenizer, args.out / "tokenizer")
    print(json.dumps(write_tokens(tokenizer, train, held_out, out=args.out / "data", rng=rng)))


if __name__ == "__main__":
    main()
