"""Which type each tensor of a qwen4exp model gets when the model is quantised. Names and shapes only.

What decides where the rest goes stays f32: norms, the router and the shared expert's gate, the projections of the
index, the convolution and decay of the delta nets. Tensors that every token runs through and that are few bytes keep
more bits than the experts, which are nearly all of a model and of which a token uses few. The MTP block keeps eight
bits: they are cheap, and with four fewer drafts hold (66.1 against 64.4 % in figures published with such files).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from pylucebox._errors import InvalidArgumentError
from pylucebox._gguf_parse import TENSOR_TYPES, TensorInfo

__all__ = ["FILE_TYPES", "Choice", "Role", "check_target", "choose", "role_of"]


class Role(str, Enum):
    """What a tensor does in the model; the values appear in JSON."""

    DECIDES = "decides"
    """Norms, router, index and recurrences: small, and everything else depends on them."""

    TABLE = "table"
    """Token embedding and LM head."""

    STEERS = "steers"
    """Matrices that every token runs through and that are a small part of the file."""

    BULK = "bulk"
    """All other matrices."""

    DRAFTS = "drafts"
    """Matrices of the MTP block inside a model."""

    OTHER = "other"
    """No numbers to quantise."""


class Choice(NamedTuple):
    """The type of a tensor in the file to be, and whether its rows did not fit the one that it should have."""

    type_name: str
    role: Role
    is_fallback: bool


# enum llama_ftype in include/llama.h; for K-quants the one of the usual mix
FILE_TYPES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "f32": 0,
        "f16": 1,
        "q4_0": 2,
        "q4_1": 3,
        "q8_0": 7,
        "q5_0": 8,
        "q5_1": 9,
        "q2_K": 10,
        "q3_K": 12,
        "q4_K": 15,
        "q5_K": 17,
        "q6_K": 18,
        "iq4_nl": 25,
        "iq3_s": 26,
        "iq4_xs": 30,
        "bf16": 32,
    }
)

# Types in which the rounding of activations outweighs that of weights; tables and what steers need no more bits.
_PRECISE: Final = ("f32", "f16", "bf16", "q8_0", "q6_K")
_FLOATS: Final = ("f32", "f16", "bf16")

# Rows that are no whole number of 256 values take a type with blocks of 32 and about as many bits.
_NARROW: Final = MappingProxyType(
    {
        "q2_K": "iq4_nl",
        "q3_K": "iq4_nl",
        "iq3_s": "iq4_nl",
        "iq4_xs": "iq4_nl",
        "q4_K": "q5_0",
        "q5_K": "q5_1",
        "q6_K": "q8_0",
    }
)

_BLOCKS: Final = {name: block for name, block, _ in TENSOR_TYPES.values()}
_QUANTISABLE: Final = ("f32", "f16", "bf16", "q8_0")

# Parts of names, after the block's number. ssm_conv1d and the n-gram norms are of two dimensions and no matrices.
_DECIDES: Final = re.compile(
    r"(.*norm.*|ffn_gate_inp|ffn_gate_inp_shexp|indexer\.[qk]_proj|ssm_conv1d|ssm_a|ssm_dt)(\.weight|\.bias)?"
)
_TABLE: Final = re.compile(r"(token_embd|output)\.weight")
_STEERS: Final = re.compile(
    r"(attn_[kv]|ffn_(gate|up|down)_shexp|(hc_(attn|ffn)|output_hc|nextn\.hc_head)_(down|up|inject)"
    r"|ssm_alpha|ssm_beta|ple_(key|value|conv1d)|nextn\.eh_proj)\.weight"
)
_IN_BLOCK: Final = re.compile(r"blk\.(\d+)\.(.+)")


def check_target(type_name: str) -> str:
    """Return the type's name as ggml spells it.

    Raises
    ------
    InvalidArgumentError
        Models cannot be quantised to it.
    """
    found = next((name for name in FILE_TYPES if name.lower() == type_name.lower()), None)
    if found is None:
        names = ", ".join(sorted(FILE_TYPES))
        allowed = f"one of {names}; the mix over the tensors is chosen here, so there is no _S, _M or _L"
        raise InvalidArgumentError(argument="type_name", value=type_name, allowed=allowed)
    return found


def role_of(tensor: TensorInfo, n_trunk_layers: int | None) -> Role:
    """Tell what a tensor does.

    Parameters
    ----------
    tensor
        A tensor of a qwen4exp file.
    n_trunk_layers
        Blocks from this number on are MTP blocks that go along with their model; None for an MTP file, whose block is
        what is to become smaller.
    """
    if tensor.type_name not in _BLOCKS or tensor.type_name.startswith(("i8", "i16", "i32", "i64", "f64")):
        return Role.OTHER
    in_block = _IN_BLOCK.fullmatch(tensor.name)
    name = in_block[2] if in_block else tensor.name
    is_matrix = sum(size > 1 for size in tensor.shape) >= 2
    if not is_matrix or _DECIDES.fullmatch(name):
        return Role.DECIDES
    if _TABLE.fullmatch(name):
        return Role.TABLE
    if in_block and n_trunk_layers is not None and int(in_block[1]) >= n_trunk_layers:
        return Role.DRAFTS
    return Role.STEERS if _STEERS.fullmatch(name) else Role.BULK


def choose(tensor: TensorInfo, target: str, n_trunk_layers: int | None) -> Choice:
    """Choose the type of a tensor.

    Parameters
    ----------
    tensor
        A tensor of a qwen4exp file.
    target
        Type of the bulk, one of `FILE_TYPES`.
    n_trunk_layers
        As for `role_of`.
    """
    role = role_of(tensor, n_trunk_layers)
    if role is Role.OTHER:
        return Choice(tensor.type_name, role, is_fallback=False)
    wanted = _wanted(role, target)
    row, found = tensor.shape[0] if tensor.shape else 1, wanted
    if row % _BLOCKS[found]:
        found = _NARROW.get(found, "f16")
    if row % _BLOCKS[found]:
        found = "f16"
    return Choice(found, role, is_fallback=found != wanted)


def _wanted(role: Role, target: str) -> str:
    if role is Role.DECIDES:
        return "f32"
    if role is Role.DRAFTS:
        return target if target in _FLOATS else "q8_0"
    if role in (Role.TABLE, Role.STEERS) and target not in _PRECISE:
        return "q6_K"
    return target
