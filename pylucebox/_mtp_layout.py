"""Recognise how a GGUF file stores the MTP block of qwen4exp, and tell whether this build can load it.

Converters disagree about names and about what an MTP file carries besides the block, so files in circulation come in
some ten layouts. llama.cpp b11434 asks for exactly the tensors it knows and refuses a file with any other, with a
message that speaks of tensor counts. Looking first gives a reason that a person can act on, and keeps a file out that
would stop the process: a second MTP block, for one, is an assertion there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pylucebox._errors import ModelFormatError
from pylucebox._gguf import ArraySpan, GgufModel, TensorInfo

__all__ = ["ARCH", "MtpBlock", "MtpLayout", "find_block", "is_head_only", "n_trunk_layers", "n_vocab"]

ARCH: Final = "qwen4exp"
"""The architecture this build drafts for."""

_CONVERT: Final = "convert it again with llama.cpp's convert_hf_to_gguf.py --mtp, or take a file made that way"


class MtpLayout(str, Enum):
    """Where the parts of the MTP block are."""

    SELF_CONTAINED = "self-contained"
    """A file with the block, its own mixer, embedding and LM head. Loaded."""

    BORROWED_TABLES = "borrowed-tables"
    """The same without embedding, LM head or both, which the model lends. Loaded."""

    WITH_TRUNK_MIXER = "with-trunk-mixer"
    """As self-contained, with a copy of the trunk's mixer that the block does not use. Loaded."""

    IN_FILE = "in-file"
    """The block is in the model's own file. Loaded."""

    MODEL_MIXER = "model-mixer"
    """The block's mixer has the name of the trunk's (``output_hc_*``). Not loaded."""

    SHARED_HEAD_NORM = "shared-head-norm"
    """The mixer's norm is stored as ``nextn.shared_head_norm``. Not loaded."""

    SPLIT_PROJECTION = "split-projection"
    """``nextn.fc_embd`` and ``nextn.fc_hidden`` in place of ``nextn.eh_proj``. Not loaded."""

    SUBSET_HEAD = "subset-head"
    """The LM head covers a part of the vocabulary. Not loaded."""

    PRIVATE_HEAD = "private-head"
    """The block has an LM head or embedding under a ``nextn`` name. Not loaded."""

    GLOBAL_NAMES = "global-names"
    """The block's tensors carry no block number. Not loaded."""

    OTHER_BLOCK = "other-block"
    """The block has not the number that follows the trunk's last layer. Not loaded."""

    WHOLE_MODEL = "whole-model"
    """A model with trunk and block, given as an MTP file. Not loaded as such."""

    UNKNOWN = "unknown"
    """None of these, or damaged. Not loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpBlock:
    """What was found.

    Attributes
    ----------
    layout
        How it is stored.
    problem
        Why this build cannot load it and what to do; empty if it can.
    borrows_embedding, borrows_head
        Whether the file leaves the token embedding, or the LM head, to the model.
    """

    layout: MtpLayout
    problem: str = ""
    borrows_embedding: bool = False
    borrows_head: bool = False

    @property
    def loadable(self) -> bool:
        """Whether this build can load the block."""
        return not self.problem


def n_trunk_layers(model: GgufModel) -> int | None:
    """Return the number of layers without MTP blocks; None when the file does not say how many layers it has."""
    n_layer = model.head.get_int(f"{ARCH}.block_count")
    return None if n_layer is None else n_layer - _n_nextn(model)


def n_vocab(model: GgufModel) -> int | None:
    """Return the size of the vocabulary; None when the file does not tell."""
    tokens = model.head.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, ArraySpan):
        return tokens.length
    return model.head.get_int(f"{ARCH}.vocab_size")


def is_head_only(model: GgufModel) -> bool:
    """Tell whether a file holds an MTP block and no trunk layer."""
    n_trunk = n_trunk_layers(model)
    if n_trunk is None or not _n_nextn(model):
        return False
    return n_trunk < 1 or not any(block < n_trunk for block in _blocks(model.tensors))


def find_block(model: GgufModel) -> MtpBlock | None:
    """Look for an MTP block.

    Parameters
    ----------
    model
        Headers of a file whose architecture is `ARCH`.

    Returns
    -------
    MtpBlock or None
        None when there is no trace of one.

    Raises
    ------
    ModelFormatError
        Metadata that is needed is missing or of the wrong type.
    """
    names = model.tensors.keys()
    n_nextn = _n_nextn(model)
    if not n_nextn and not any(".nextn." in name or name.startswith("nextn.") for name in names):
        return None
    n_layer = _needed_int(model, f"{ARCH}.block_count")
    if n_nextn != 1 or n_nextn >= n_layer:
        seen = f"nextn_predict_layers is {n_nextn} with block_count {n_layer}"
        return MtpBlock(layout=MtpLayout.UNKNOWN, problem=f"{seen}, one block after a trunk is needed; {_CONVERT}")

    block = n_layer - 1
    own = {name.removeprefix(f"blk.{block}.") for name in names if name.startswith(f"blk.{block}.")}
    head_only = is_head_only(model)
    layout, problem = _recognise(model, block, own, head_only=head_only)
    problem = problem or _missing(own) or _unknown(model, own, block, head_only=head_only) or _shapes(model, block)
    if problem:
        return MtpBlock(layout=layout, problem=problem)
    if not head_only:
        return MtpBlock(layout=layout)
    borrows_embedding, borrows_head = "token_embd.weight" not in names, "output.weight" not in names
    if borrows_embedding or borrows_head:
        layout = MtpLayout.BORROWED_TABLES
    return MtpBlock(layout=layout, borrows_embedding=borrows_embedding, borrows_head=borrows_head)


def _recognise(model: GgufModel, block: int, own: set[str], *, head_only: bool) -> tuple[MtpLayout, str]:
    """Return the layout by its telling names, and what is wrong with it for this build."""
    names = model.tensors.keys()
    output = model.tensors.get("output.weight")
    rows = output.shape[1] if head_only and output and len(output.shape) == 2 else None
    others = sorted(set(_blocks(model.tensors)))
    has_mixer = any(name.startswith("nextn.hc_head_") for name in own)
    trunk_mixer = head_only and "output_hc_norm.weight" in names
    # First match counts.
    for found, layout, problem in (
        (
            not own and any(name.startswith("nextn.") for name in names),
            MtpLayout.GLOBAL_NAMES,
            f"its MTP tensors carry no block number; {_CONVERT}",
        ),
        (
            not own,
            MtpLayout.OTHER_BLOCK,
            f"it has no tensors for block {block}, but for {others}; {_CONVERT}",
        ),
        (
            "d2t" in names or "t2d" in names or (rows is not None and rows != n_vocab(model)),
            MtpLayout.SUBSET_HEAD,
            "its LM head covers only a part of the vocabulary; take a file with the full head",
        ),
        (
            own & {"nextn.fc_embd.weight", "nextn.fc_hidden.weight"},
            MtpLayout.SPLIT_PROJECTION,
            f"its input projection is stored in two halves; {_CONVERT}",
        ),
        (
            own & {"nextn.shared_head_head.weight", "nextn.embed_tokens.weight"},
            MtpLayout.PRIVATE_HEAD,
            f"it has a private LM head or embedding; {_CONVERT}",
        ),
        (
            "nextn.shared_head_norm.weight" in own,
            MtpLayout.SHARED_HEAD_NORM,
            f"its mixer's norm is stored as nextn.shared_head_norm; {_CONVERT}",
        ),
        (
            trunk_mixer and not has_mixer,
            MtpLayout.MODEL_MIXER,
            f"its mixer has the name of the trunk's (output_hc_*); {_CONVERT}",
        ),
        (trunk_mixer, MtpLayout.WITH_TRUNK_MIXER, ""),
        (head_only, MtpLayout.SELF_CONTAINED, ""),
    ):
        if found:
            return layout, problem
    return MtpLayout.IN_FILE, ""


# The tensors of a block as llama.cpp b11434 asks for them (load_arch_tensors of qwen4exp).
_NEEDED: Final = tuple(
    f"{name}.weight"
    for name in (
        *(f"hc_{part}_{kind}" for part in ("attn", "ffn") for kind in ("norm", "down", "up", "inject")),
        *("attn_output", "attn_q_norm", "attn_k_norm"),
        *(f"indexer.{name}" for name in ("q_proj", "k_proj", "q_norm", "k_norm")),
        *("ffn_gate_inp", "ffn_down_exps", "ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"),
        *(f"nextn.{name}" for name in ("eh_proj", "enorm", "hnorm", "hc_head_norm", "hc_head_down", "hc_head_up")),
    )
)
# Of each pair one alternative must be complete.
_EITHER: Final = (
    (("attn_q.weight", "attn_k.weight", "attn_v.weight"), ("attn_qkv.weight",)),
    (("ffn_gate_exps.weight", "ffn_up_exps.weight"), ("ffn_gate_up_exps.weight",)),
)
_OPTIONAL: Final = ("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias")
_KNOWN: Final = {*_NEEDED, *_OPTIONAL, *(name for pair in _EITHER for names in pair for name in names)}
_KNOWN_OUTSIDE: Final = {
    f"{name}.weight" for name in ("token_embd", "output", "output_hc_norm", "output_hc_down", "output_hc_up")
}
_SCALES: Final = (".scale", ".input_scale")  # of 4-bit float types, loaded where present


def _missing(own: set[str]) -> str:
    missing = [name for name in _NEEDED if name not in own]
    for first, second in _EITHER:
        if not own.issuperset(second):
            missing += [name for name in first if name not in own]
    return f"its block lacks {_listed(missing)}; {_CONVERT}" if missing else ""


def _unknown(model: GgufModel, own: set[str], block: int, *, head_only: bool) -> str:
    unknown = {f"blk.{block}.{name}" for name in own - _KNOWN if not name.endswith(_SCALES)}
    if head_only:
        outside = (name for name in model.tensors if not name.startswith(f"blk.{block}."))
        unknown |= {name for name in outside if name not in _KNOWN_OUTSIDE and not name.endswith(_SCALES)}
    return f"it has tensors that this build does not know: {_listed(sorted(unknown))}; {_CONVERT}" if unknown else ""


def _shapes(model: GgufModel, block: int) -> str:
    """Compare the shapes of what joins the block to its model. Gammas may be stored flat or per stream."""
    n_embd = _needed_int(model, f"{ARCH}.embedding_length")
    n_streams = _needed_int(model, f"{ARCH}.hyper_connection.count")
    low_rank = _needed_int(model, f"{ARCH}.hyper_connection.low_rank")
    wide = n_embd * n_streams
    expected: dict[str, tuple[int, ...]] = {
        "nextn.eh_proj": (2 * n_embd, n_embd),
        "nextn.enorm": (n_embd,),
        "nextn.hnorm": (wide,),
        "nextn.hc_head_norm": (wide,),
        "nextn.hc_head_down": (wide, low_rank),
        "nextn.hc_head_up": (low_rank, wide),
    }
    for name, shape in expected.items():
        tensor = model.tensors[f"blk.{block}.{name}.weight"]
        per_stream = len(shape) == 1 and tensor.shape == (n_embd, n_streams) and shape[0] == wide
        if tensor.shape != shape and not per_stream:
            return f"{tensor.name} has shape {tensor.shape}, by its metadata {shape}; {_CONVERT}"
    return ""


def _n_nextn(model: GgufModel) -> int:
    return model.head.get_int(f"{ARCH}.nextn_predict_layers", 0) or 0


def _needed_int(model: GgufModel, key: str) -> int:
    value = model.head.get_int(key)
    if value is None:
        raise ModelFormatError(f"cannot read {str(model.path)!r}", path=model.path, seen=f"it has no {key}")
    return value


def _blocks(tensors: Mapping[str, TensorInfo]) -> list[int]:
    """Return the block number of each tensor named ``blk.N.…``, repeats included."""
    parts = (name.split(".", 2) for name in tensors)
    return [int(part[1]) for part in parts if len(part) == 3 and part[0] == "blk" and part[1].isdecimal()]


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
