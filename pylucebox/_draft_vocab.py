"""Choose the tokens that a draft head covers.

An LM head is most of what a draft reads, and rare tokens are rarely drafted. A draft outside the head's tokens is
rejected like any other wrong one, so the choice costs drafts, never text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pylucebox._errors import InvalidArgumentError, LoadError, ModelFormatError, StrPath
from pylucebox._gguf import ArraySpan, GgufModel
from pylucebox._mtp_checks import n_vocab

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ids = npt.NDArray[np.int64]

__all__ = ["choose_draft_ids", "read_draft_ids"]

# enum llama_token_type in include/llama.h: control tokens, and those that a user added, such as tags of tool calls.
_CONTROL, _USER_DEFINED = 3, 4
_SPECIAL: Final = (_CONTROL, _USER_DEFINED)
_I32: Final = 5  # enum gguf_type in ggml/include/gguf.h


def choose_draft_ids(model: GgufModel, n_tokens: int) -> Ids:
    """Return the ids of a draft vocabulary of a given size: every special token, then the lowest ordinary ids.

    Tokenizers number ordinary tokens by how early they were merged, and so about by frequency. Special tokens stand at
    the top and must be in: a draft that can never end a turn is wrong at each end.

    Parameters
    ----------
    model
        A file with the tokenizer.
    n_tokens
        Size of the vocabulary.

    Returns
    -------
    array of int64
        `n_tokens` ids, ascending.

    Raises
    ------
    InvalidArgumentError
        There are fewer tokens, or more special ones.
    ModelFormatError
        The file does not tell which tokens are special.
    LoadError
        The file cannot be read any more.
    """
    import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

    types = _token_types(model)
    special = np.flatnonzero(np.isin(types, _SPECIAL))
    ordinary = np.flatnonzero(~np.isin(types, _SPECIAL))
    if not len(special) < n_tokens <= len(types):
        allowed = f"{len(special) + 1} to {len(types)}: {len(special)} of the tokens are special and always covered"
        raise InvalidArgumentError(argument="draft_vocab", value=n_tokens, allowed=allowed)
    return np.sort(np.concatenate([special, ordinary[: n_tokens - len(special)]])).astype(np.int64)


def read_draft_ids(path: StrPath, n_vocab: int) -> Ids:
    """Read ids from a text file, separated by white space or commas.

    Returns
    -------
    array of int64
        Ascending, each once.

    Raises
    ------
    InvalidArgumentError
        Something in the file is no id of the vocabulary, or there is none.
    LoadError
        The file cannot be read.
    """
    try:
        words = Path(path).read_text(encoding="utf-8").replace(",", " ").split()
    except (OSError, UnicodeDecodeError) as error:
        seen = (error.strerror if isinstance(error, OSError) else None) or "it is not a text file"
        raise LoadError(f"cannot read the draft ids in {str(path)!r}", path=path, seen=seen) from error
    bad = next((word for word in words if not (word.isascii() and word.isdecimal() and int(word) < n_vocab)), None)
    if bad is not None or not words:
        allowed = f"token ids from 0 to {n_vocab - 1}, separated by white space or commas"
        raise InvalidArgumentError(argument="draft_vocab", value=bad, allowed=allowed)
    return check_draft_ids([int(word) for word in words], n_vocab)


def check_draft_ids(ids: Sequence[int], n_vocab: int) -> Ids:
    """Return ids ascending and each once.

    Raises
    ------
    InvalidArgumentError
        One is outside the vocabulary, or there is none.
    """
    import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

    found = np.unique(np.asarray(ids, np.int64))
    if not len(found) or found[0] < 0 or found[-1] >= n_vocab:
        value = None if not len(found) else int(found[0] if found[0] < 0 else found[-1])
        raise InvalidArgumentError(argument="draft_vocab", value=value, allowed=f"token ids from 0 to {n_vocab - 1}")
    return found


def _token_types(model: GgufModel) -> Ids:
    import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

    key = "tokenizer.ggml.token_type"
    stored, size = model.head.metadata.get(key), n_vocab(model)
    if isinstance(stored, ArraySpan) and stored.element_type == _I32:
        types = np.frombuffer(model.head.read_bytes(stored.offset, stored.n_bytes), "<i4")
    elif isinstance(stored, tuple):
        types = np.asarray(stored)
    else:
        types = np.empty(0)
    if not size or len(types) != size:
        seen = f"{key} lists {len(types)} tokens, the vocabulary has {size}"
        raise ModelFormatError(f"cannot choose draft tokens from {str(model.path)!r}", path=model.path, seen=seen)
    return types.astype(np.int64)
