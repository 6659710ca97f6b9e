"""Store floats as ggml tensor data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pylucebox import _ffi
from pylucebox._errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["quantize_rows"]


def quantize_rows(type_name: str, rows: npt.NDArray[np.float32]) -> bytes:
    """Return `rows` in a ggml tensor type.

    Parameters
    ----------
    type_name
        As ggml names it, for example ``q8_0``, ``q4_K`` or ``bf16``.
    rows
        Shape (n_rows, n_per_row), float32; n_per_row is a multiple of the type's block.

    Raises
    ------
    InvalidArgumentError
        There is no such type, floats cannot be stored as it, or the shape does not fit.
    """
    import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

    ffi, lib = _ffi.native()
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.ndim != 2:
        raise InvalidArgumentError(argument="rows", value=rows.shape, allowed="an array of two dimensions")
    source = ffi.from_buffer("float[]", rows)
    size = ffi.new("size_t *")

    def run(out: object, capacity: int) -> None:
        status = lib.lucebox_quantize(type_name.encode(), source, *rows.shape, out, capacity, size)
        _ffi.check(status, "cannot quantise", argument="type_name", value=type_name)

    run(ffi.NULL, 0)
    data = bytearray(size[0])
    run(ffi.from_buffer(data), len(data))
    return bytes(data)
