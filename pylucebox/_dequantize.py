"""Turn stored tensor data into float32, for the types that lose next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

__all__ = ["DECODERS"]


def _decode_bf16(data: bytes) -> Array:
    # the upper half of a float32
    values: Array = (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def _decode_q8_0(data: bytes) -> Array:
    # block: a scale as f16, then 32 signed bytes
    blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("levels", np.int8, 32)]))
    values: Array = blocks["levels"].astype(np.float32) * blocks["scale"].astype(np.float32)[:, None]
    return values


DECODERS: Final[Mapping[str, Callable[[bytes], Array]]] = MappingProxyType(
    {
        "f32": lambda data: np.frombuffer(data, "<f4").astype(np.float32),
        "f16": lambda data: np.frombuffer(data, "<f2").astype(np.float32),
        "bf16": _decode_bf16,
        "q8_0": _decode_q8_0,
    }
)
"""Type name to a function from stored bytes to values."""
