"""Read tensors of a checkpoint folder as Hugging Face's libraries write it: safetensors files and their index.

The format: a u64 length, a JSON object of that length, then the data. For each tensor the object tells type, shape and
where its bytes lie in the data. Only the files of wanted tensors are opened, and of a tensor only the wanted rows read.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pylucebox._errors import LoadError, ModelFormatError, ModelNotFoundError, StrPath

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Checkpoint", "StoredTensor"]

_INDEX: Final = "model.safetensors.index.json"
_MAX_HEADER_BYTES: Final = 100_000_000  # the limit of the reference implementation
_TYPES: Final = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a checkpoint.

    Attributes
    ----------
    name
        Name in the checkpoint.
    file
        The file it is in.
    dtype
        As the file has it, for example ``BF16``.
    shape
        Rows first.
    offset
        Start of its bytes in the file.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def row(self) -> int:
        """Values of a row: the last dimension."""
        return self.shape[-1] if self.shape else 1

    @property
    def n_rows(self) -> int:
        """Rows of all other dimensions."""
        return math.prod(self.shape[:-1])


class Checkpoint:
    """A folder with safetensors files.

    Parameters
    ----------
    folder
        The folder. Files that the index names may be missing as long as nothing of them is wanted.

    Raises
    ------
    ModelNotFoundError
        There is no such folder, or no safetensors file in it.
    ModelFormatError
        The index is damaged.
    LoadError
        A file may not be read.
    """

    def __init__(self, folder: StrPath) -> None:
        self.folder = Path(folder)
        self._headers: dict[Path, dict[str, StoredTensor]] = {}
        self._places = self._find_places()

    def __contains__(self, name: str) -> bool:
        """Tell whether the checkpoint has a tensor."""
        return name in self._places

    @property
    def names(self) -> Mapping[str, Path]:
        """Every tensor's file."""
        return self._places

    def find(self, name: str) -> StoredTensor:
        """Return where a tensor is.

        Raises
        ------
        ModelNotFoundError
            The file with it is missing.
        ModelFormatError
            The file is damaged, lacks the tensor, or holds it in a type other than F32, F16 and BF16.
        LoadError
            The file may not be read.
        """
        file = self._places[name]
        tensor = self._header(file).get(name)
        if tensor is None:
            _refuse(file, f"the index names it for {name}, but it has no such tensor")
        if tensor.dtype not in _TYPES:
            seen = f"{name} is of type {tensor.dtype}"
            raise ModelFormatError(
                f"cannot use {str(file)!r}", path=file, seen=seen, advice=f"Take a checkpoint in {', '.join(_TYPES)}."
            )
        return tensor

    def read_rows(self, tensor: StoredTensor, first: int, count: int) -> npt.NDArray[np.float32]:
        """Return rows of a tensor, shape (count, row).

        Raises
        ------
        LoadError
            The file cannot be read any more.
        """
        import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

        dtype = np.dtype(_TYPES[tensor.dtype])
        n_bytes = count * tensor.row * dtype.itemsize
        data = _read(tensor.file, tensor.offset + first * tensor.row * dtype.itemsize, n_bytes)
        values = np.frombuffer(data, dtype)
        if tensor.dtype == "BF16":  # the upper half of a float32
            values = (values.astype("<u4") << np.uint32(16)).view("<f4")
        return values.astype(np.float32, copy=False).reshape(count, tensor.row)

    def identity(self, tensors: list[StoredTensor]) -> str:
        """Return a text that changes when a file of one of the tensors does."""
        files = sorted({tensor.file for tensor in tensors})
        seen = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        return json.dumps(seen)

    def _find_places(self) -> dict[str, Path]:
        if not self.folder.is_dir():
            _not_found(self.folder, "there is no such folder")
        index = self.folder / _INDEX
        if not index.exists():
            files = sorted(self.folder.glob("*.safetensors"))
            if not files:
                _not_found(self.folder, f"it has neither {_INDEX} nor any *.safetensors")
            return {name: file for file in files for name in self._header(file)}
        try:
            weight_map: Any = json.loads(_read(index, 0, index.stat().st_size))["weight_map"]
            places = {name: self.folder / file for name, file in weight_map.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _refuse(index, f"it is no index of safetensors files ({type(error).__name__})")
        outside = next((path for path in places.values() if path.parent != self.folder), None)
        if outside:
            _refuse(index, f"it names a file outside the folder, {outside}")
        return places

    def _header(self, file: Path) -> dict[str, StoredTensor]:
        if file not in self._headers:
            self._headers[file] = _parse_header(file)
        return self._headers[file]


def _parse_header(file: Path) -> dict[str, StoredTensor]:
    if not file.exists():
        _not_found(file, "there is no such file, the index names it")
    size = file.stat().st_size
    if size < 8:
        _refuse(file, f"it has {size} bytes")
    (n_header,) = struct.unpack("<Q", _read(file, 0, 8))
    if n_header > min(_MAX_HEADER_BYTES, size - 8):
        _refuse(file, f"its header claims {n_header} bytes, {size - 8} follow")
    try:
        header: Any = json.loads(_read(file, 8, n_header))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, AttributeError, RecursionError) as error:
        _refuse(file, f"its header is no JSON object ({type(error).__name__})")
    return {name: _parse_entry(file, name, entry, 8 + n_header, size) for name, entry in entries.items()}


def _parse_entry(file: Path, name: str, entry: Any, start: int, size: int) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        counts = [*shape, begin, end]
    except (KeyError, TypeError, ValueError):
        _refuse(file, f"the entry of {name} lacks type, shape or place")
    if not isinstance(dtype, str) or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in counts):
        _refuse(file, f"the entry of {name} has a type, shape or place that is none")
    if not begin <= end <= size - start:
        _refuse(file, f"{name} ends at byte {start + end}, the file at byte {size}")
    import numpy as np  # noqa: PLC0415 - keeps `import pylucebox` cheap

    if dtype in _TYPES and end - begin != math.prod(shape) * np.dtype(_TYPES[dtype]).itemsize:
        _refuse(file, f"{name} has {end - begin} bytes, which is not {dtype} in shape {tuple(shape)}")
    return StoredTensor(name, file, dtype, tuple(shape), start + begin)


def _read(file: Path, offset: int, n_bytes: int) -> bytes:
    try:
        with file.open("rb") as handle:
            handle.seek(offset)
            data = handle.read(n_bytes)
    except OSError as error:
        raise LoadError(f"cannot read {str(file)!r}", path=file, seen=error.strerror or str(error)) from error
    if len(data) < n_bytes:
        _refuse(file, f"it ends at byte {offset + len(data)}, {offset + n_bytes} are needed")
    return data


def _refuse(file: Path, seen: str) -> NoReturn:
    advice = "Download the checkpoint again."
    raise ModelFormatError(f"cannot read {str(file)!r}", path=file, seen=seen, advice=advice)


def _not_found(path: Path, seen: str) -> NoReturn:
    advice = "Give the folder of a Hugging Face checkpoint."
    raise ModelNotFoundError(f"cannot read {str(path)!r}", path=path, seen=seen, advice=advice)
