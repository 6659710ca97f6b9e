"""Recognise how a GGUF file stores the MTP block of qwen4exp, and tell whether this build can load it.

Converters disagree about names and about what an MTP file carries besides the block, so files in circulation come in
some ten layouts. The loader turns what it knows into one layout by the same rules (``native/mtp_layouts.cpp``). Looking
first gives a reason that a person can act on where the loader would speak of tensor counts, and keeps a file out that
would stop the process: a second MTP block, for one, is an assertion there.

The rules, in order; the first that applies counts:

1. Block: the one after the trunk's last layer; if the file has no tensor there, the only block it has.
2. A file without any other block is an MTP file, one with others a model.
3. Mixer: ``nextn.hc_head_*``; ``nextn.hc_*``; in MTP files ``output_hc_*``, with ``nextn.shared_head_norm`` in place of
   its norm where there is one. In a model the names ``output_hc_*`` are the trunk's and never taken for the block's.
4. Projection: ``nextn.eh_proj``; the halves ``nextn.fc_embd`` and ``nextn.fc_hidden``.
5. Tables of an MTP file: ``nextn.embed_tokens`` and ``nextn.shared_head_head``; ``token_embd`` and ``output``; the
   model's.
6. Draft vocabulary of an MTP file: the ids in ``d2t``, one for each row of its head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from pylucebox._gguf import GgufModel, TensorInfo
from pylucebox._mtp_checks import ARCH, Misfit, find_misfit, n_nextn, n_trunk_layers, n_vocab, needed_int

__all__ = ["ARCH", "DRAFT_IDS", "MtpBlock", "MtpLayout", "find_block", "is_head_only", "n_trunk_layers", "n_vocab"]

DRAFT_IDS: Final = "d2t"
"""Tensor with the token ids of a draft vocabulary: int64, one id for each row of the LM head.

The name is that of llama.cpp's EAGLE-3 and DFlash drafts."""

_CONVERT: Final = "make it again with `lucebox sidecar make`, or take a file in another layout"


class MtpLayout(str, Enum):
    """Where the parts of the MTP block are. A file may have several peculiarities; the layout is the first of them."""

    SELF_CONTAINED = "self-contained"
    """A file with the block, its own mixer, embedding and LM head: what llama.cpp's converter writes."""

    BORROWED_TABLES = "borrowed-tables"
    """The same without embedding, LM head or both, which the model lends."""

    WITH_TRUNK_MIXER = "with-trunk-mixer"
    """As self-contained, with a copy of the trunk's mixer that the block does not use."""

    SUBSET_HEAD = "subset-head"
    """The LM head covers a part of the vocabulary, listed in ``d2t``."""

    MODEL_MIXER = "model-mixer"
    """The block's mixer has the name of the trunk's (``output_hc_*``)."""

    SHARED_HEAD_NORM = "shared-head-norm"
    """The same, with the mixer's norm stored as ``nextn.shared_head_norm``."""

    SPLIT_PROJECTION = "split-projection"
    """``nextn.fc_embd`` and ``nextn.fc_hidden`` in place of ``nextn.eh_proj``."""

    PRIVATE_HEAD = "private-head"
    """The block has an LM head or embedding under a ``nextn`` name."""

    OTHER_BLOCK = "other-block"
    """The block has not the number that follows the trunk's last layer."""

    IN_FILE = "in-file"
    """The block is in the model's own file."""

    GLOBAL_NAMES = "global-names"
    """The block's tensors carry no block number. Not loaded: what becomes of the mixer is not known."""

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
    misfit
        The tensor that is at fault, what was seen and expected; None where it is not one tensor.
    tensors
        Names in the file by standard name, ``blk.`` and number left out. ``nextn.eh_proj.weight`` may have two, the
        halves of its rows. Empty if the block cannot be loaded.
    unused
        Tensors of an MTP file that the block has no use for.
    borrows_embedding, borrows_head
        Whether the file leaves the token embedding, or the LM head, to the model.
    n_draft_vocab
        Tokens that can be drafted; None: all.
    """

    layout: MtpLayout
    problem: str = ""
    misfit: Misfit | None = None
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    unused: tuple[str, ...] = ()
    borrows_embedding: bool = False
    borrows_head: bool = False
    n_draft_vocab: int | None = None

    @property
    def loadable(self) -> bool:
        """Whether this build can load the block."""
        return not self.problem


def is_head_only(model: GgufModel) -> bool:
    """Tell whether a file holds an MTP block and no trunk layer."""
    n_trunk = n_trunk_layers(model)
    if n_trunk is None or not n_nextn(model):
        return False
    number = _block_number(model, n_trunk)
    others = {other for other in _numbers(model.tensors) if other != number}
    return n_trunk < 1 or (not others if number is not None else not any(other < n_trunk for other in others))


def find_block(model: GgufModel) -> MtpBlock | None:
    """Look for an MTP block. Reads the norms of one that could be loaded, otherwise headers only.

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
    LoadError
        The file cannot be read any more.
    """
    names = model.tensors.keys()
    n_blocks = n_nextn(model)
    if not n_blocks and not any(".nextn." in name or name.startswith("nextn.") for name in names):
        return None
    n_layer = needed_int(model, f"{ARCH}.block_count")
    if n_blocks != 1 or n_blocks >= n_layer:
        seen = f"nextn_predict_layers is {n_blocks} with block_count {n_layer}"
        return MtpBlock(layout=MtpLayout.UNKNOWN, problem=f"{seen}, one block after a trunk is needed; {_CONVERT}")

    number = _block_number(model, n_layer - 1)
    if number is None:
        if any(name.startswith("nextn.") for name in names):
            problem = f"its MTP tensors carry no block number; {_CONVERT}"
            return MtpBlock(layout=MtpLayout.GLOBAL_NAMES, problem=problem)
        problem = f"it has no tensors for block {n_layer - 1}, but for {sorted(set(_numbers(names)))}; {_CONVERT}"
        return MtpBlock(layout=MtpLayout.OTHER_BLOCK, problem=problem)
    if is_head_only(model):
        return _find_in_sidecar(model, number)
    return _find_in_model(model, number)


# ---- whose tensor is which -------------------------------------------------------------------------------

_MIXER: Final = tuple(f"nextn.hc_head_{kind}.weight" for kind in ("norm", "down", "up"))
_SHORT_MIXER: Final = tuple(f"nextn.hc_{kind}.weight" for kind in ("norm", "down", "up"))
_MODEL_MIXER: Final = tuple(f"output_hc_{kind}.weight" for kind in ("norm", "down", "up"))
_SHARED_NORM: Final = "nextn.shared_head_norm.weight"
_PROJECTION: Final = "nextn.eh_proj.weight"
_HALVES: Final = ("nextn.fc_embd.weight", "nextn.fc_hidden.weight")
_TABLES: Final = {"nextn.embed_tokens.weight": "token_embd.weight", "nextn.shared_head_head.weight": "output.weight"}
_SCALES: Final = (".scale", ".input_scale")  # of 4-bit float types, loaded where present


class _Names:
    """The tensors of the block, by the name they have in the file without ``blk.N.``, turned into standard names."""

    def __init__(self, model: GgufModel, number: int) -> None:
        self._prefix = f"blk.{number}."
        inside = [name for name in model.tensors if name.startswith(self._prefix)]
        self.known: dict[str, tuple[str, ...]] = {name.removeprefix(self._prefix): (name,) for name in inside}
        self.outside = [name for name in model.tensors if not name.startswith(self._prefix)]
        self.marks: set[MtpLayout] = set()

    def has(self, names: Iterable[str]) -> bool:
        return self.known.keys() >= set(names)

    def move(self, old: Iterable[str], new: Iterable[str], mark: MtpLayout | None) -> None:
        for before, after in zip(old, new, strict=True):
            self.known[after] = self.known.pop(before)
        if mark:
            self.marks.add(mark)

    def take_outside(self, name: str) -> None:
        self.outside.remove(name)
        self.known[name] = (name,)

    def join(self) -> None:
        self.known[_PROJECTION] = tuple(self.known.pop(half)[0] for half in _HALVES)
        self.marks.add(MtpLayout.SPLIT_PROJECTION)


def _find_in_model(model: GgufModel, number: int) -> MtpBlock:
    names = _Names(model, number)
    _adopt_mixer(names)
    _adopt_projection(names)
    return _judge(model, names, MtpLayout.IN_FILE)


def _find_in_sidecar(model: GgufModel, number: int) -> MtpBlock:
    names = _Names(model, number)
    unused = []
    if number != needed_int(model, f"{ARCH}.block_count") - 1:
        names.marks.add(MtpLayout.OTHER_BLOCK)
    if not _adopt_mixer(names):
        _adopt_model_mixer(names)
    _adopt_projection(names)
    for private, standard in _TABLES.items():
        if private in names.known:
            if standard in names.outside:
                names.outside.remove(standard)
                unused.append(standard)
            names.move([private], [standard], MtpLayout.PRIVATE_HEAD)
        elif standard in names.outside:
            names.take_outside(standard)
    if DRAFT_IDS in names.outside:
        names.take_outside(DRAFT_IDS)
    trunk_mixer = [name for name in names.outside if name in _MODEL_MIXER]
    names.outside = [name for name in names.outside if name not in trunk_mixer]
    unused += trunk_mixer

    borrows_embedding = "token_embd.weight" not in names.known
    borrows_head = "output.weight" not in names.known
    layout = MtpLayout.SELF_CONTAINED
    if DRAFT_IDS in names.known:
        layout = MtpLayout.SUBSET_HEAD
    elif trunk_mixer and not names.marks:
        layout = MtpLayout.WITH_TRUNK_MIXER
    elif borrows_embedding or borrows_head:
        layout = MtpLayout.BORROWED_TABLES
    found = _judge(model, names, layout)
    if not found.loadable:
        return found
    ids = model.tensors.get(DRAFT_IDS)
    return replace(
        found,
        unused=tuple(unused),
        borrows_embedding=borrows_embedding,
        borrows_head=borrows_head,
        n_draft_vocab=ids.n_elements if ids else None,
    )


def _adopt_mixer(names: _Names) -> bool:
    """Take a mixer under names of the block's own; tell whether there was any."""
    if any(name in names.known for name in _MIXER):
        return True
    if names.has(_SHORT_MIXER):
        names.move(_SHORT_MIXER, _MIXER, None)
        return True
    return False


def _adopt_model_mixer(names: _Names) -> None:
    norm, *rest = _MODEL_MIXER
    shared = _SHARED_NORM in names.known
    if not all(name in names.outside for name in (rest if shared else _MODEL_MIXER)):
        return
    for name in rest:
        names.take_outside(name)
    if shared:
        names.move((_SHARED_NORM, *rest), _MIXER, MtpLayout.SHARED_HEAD_NORM)
        return
    names.take_outside(norm)
    names.move(_MODEL_MIXER, _MIXER, MtpLayout.MODEL_MIXER)


def _adopt_projection(names: _Names) -> None:
    if _PROJECTION not in names.known and names.has(_HALVES):
        names.join()


# ---- is it all there, and does it fit ----------------------------------------------------------------------

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
_STANDARD: Final = {*_NEEDED, *_OPTIONAL, *(name for pair in _EITHER for names in pair for name in names)}
_BESIDE: Final = {*_TABLES.values(), DRAFT_IDS}  # of an MTP file

# What a file is called that has several peculiarities.
_PRECEDENCE: Final = (
    MtpLayout.OTHER_BLOCK,
    MtpLayout.PRIVATE_HEAD,
    MtpLayout.SPLIT_PROJECTION,
    MtpLayout.SHARED_HEAD_NORM,
    MtpLayout.MODEL_MIXER,
)


def _judge(model: GgufModel, names: _Names, plain: MtpLayout) -> MtpBlock:
    in_file = plain is MtpLayout.IN_FILE
    marks = () if in_file else (mark for mark in _PRECEDENCE if mark in names.marks)
    layout = next(iter(marks), plain)
    problem = _missing(names) or _unknown(names, in_file=in_file)
    if problem:
        return MtpBlock(layout=layout, problem=f"{problem}; {_CONVERT}")
    tensors = MappingProxyType(names.known)
    misfit = find_misfit(model, tensors)
    if misfit:
        return MtpBlock(layout=layout, problem=f"{misfit}; {_CONVERT}", misfit=misfit)
    return MtpBlock(layout=layout, tensors=tensors)


def _missing(names: _Names) -> str:
    missing = [name for name in _NEEDED if name not in names.known]
    for first, second in _EITHER:
        if not names.has(second):
            missing += [name for name in first if name not in names.known]
    return f"its block lacks {_listed(missing)}" if missing else ""


def _unknown(names: _Names, *, in_file: bool) -> str:
    standard = _STANDARD if in_file else _STANDARD | _BESIDE
    unknown = [stored for name, stored in names.known.items() if name not in standard and not name.endswith(_SCALES)]
    flat = [name for stored in unknown for name in stored]
    if not in_file:
        flat += [name for name in names.outside if not name.endswith(_SCALES)]
    return f"it has tensors that this build does not know: {_listed(sorted(flat))}" if flat else ""


# ---- block numbers -----------------------------------------------------------------------------------------


def _block_number(model: GgufModel, n_trunk: int) -> int | None:
    """Return the number that the MTP block has in the file; None when it has none, or it cannot be told."""
    numbers = set(_numbers(model.tensors))
    if n_trunk in numbers:
        return n_trunk
    has_nextn = any(".nextn." in name for name in model.tensors)
    return numbers.pop() if len(numbers) == 1 and has_nextn else None


def _numbers(names: Iterable[str] | Mapping[str, TensorInfo]) -> list[int]:
    """Return the block number of each tensor named ``blk.N.…``, repeats included."""
    parts = (name.split(".", 2) for name in names)
    return [int(part[1]) for part in parts if len(part) == 3 and part[0] == "blk" and part[1].isdecimal()]


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
