"""Read what a model file says about itself: metadata, tensor names, shapes and types; and single tensors on demand."""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pylucebox._errors import LoadError, ModelFormatError, ModelNotFoundError, StrPath, shown
from pylucebox._gguf_parse import ArraySpan, Budget, TensorInfo, Value, ValueSpan, parse_header

__all__ = ["ArraySpan", "GgufFile", "GgufModel", "TensorInfo", "Value", "read_file", "read_model"]

_CHUNK_BYTES: Final = 1 << 20
# The largest models come in some 200. As in the native loader's checks (model.cpp).
_MAX_SPLITS: Final = 1024

_SPLIT_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class GgufFile:
    """Header of one file; the mappings cannot be changed.

    Attributes
    ----------
    value_spans
        Where each metadata value lies in the file.
    data_offset
        Start of the tensor data in bytes.
    """

    path: Path
    version: int
    file_bytes: int
    metadata: Mapping[str, Value]
    value_spans: Mapping[str, ValueSpan]
    tensors: Mapping[str, TensorInfo]
    data_offset: int

    def get_int(self, key: str, default: int | None = None) -> int | None:
        """Return an integer value, or `default` when the key is absent.

        Raises
        ------
        ModelFormatError
            The key holds something else.
        """
        value = self.metadata.get(key, default)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise _wrong_type(self.path, key, "an integer", value)

    def get_str(self, key: str, default: str | None = None) -> str | None:
        """Return a string value, or `default` when the key is absent.

        Raises
        ------
        ModelFormatError
            The key holds something else.
        """
        value = self.metadata.get(key, default)
        if value is None or isinstance(value, str):
            return value
        raise _wrong_type(self.path, key, "a string", value)

    def array_digest(self, key: str) -> str | None:
        """Return the SHA-256 of an array's bytes as stored, in hex; None when it was not left in the file.

        Two arrays of strings have equal digests exactly if they are equal.

        Raises
        ------
        LoadError
            The file cannot be read any more.
        """
        span = self.metadata.get(key)
        if not isinstance(span, ArraySpan):
            return None
        digest = hashlib.sha256()
        for start in range(0, span.n_bytes, _CHUNK_BYTES):
            digest.update(self.read_bytes(span.offset + start, min(_CHUNK_BYTES, span.n_bytes - start)))
        return digest.hexdigest()

    def read_bytes(self, offset: int, n_bytes: int) -> bytes:
        """Return a part of the file.

        Raises
        ------
        LoadError
            The file cannot be read any more, or has become shorter.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                data = file.read(n_bytes)
        except OSError as error:
            raise LoadError(f"cannot read {str(self.path)!r}", path=self.path, seen=_why(error)) from error
        if len(data) < n_bytes:
            seen = f"it ends at byte {offset + len(data)}, {offset + n_bytes} were there when it was opened"
            raise LoadError(f"cannot read {str(self.path)!r}", path=self.path, seen=seen)
        return data


@dataclass(frozen=True)
class GgufModel:
    """A model: one file, or all its splits in order.

    Attributes
    ----------
    files
        At least one; the first one carries the metadata.
    tensors
        The tensors of all files by name.
    """

    files: tuple[GgufFile, ...]
    tensors: Mapping[str, TensorInfo]

    @property
    def head(self) -> GgufFile:
        """The file with the metadata, which is also the one to open."""
        return self.files[0]

    @property
    def path(self) -> Path:
        """Path of the file to open."""
        return self.files[0].path

    def read_tensor(self, name: str, start: int = 0, n_bytes: int | None = None) -> bytes:
        """Return the data of a tensor, or `n_bytes` of it from byte `start` on.

        Raises
        ------
        LoadError
            The file cannot be read any more.
        """
        tensor = self.tensors[name]
        file = next(file for file in self.files if name in file.tensors)
        return file.read_bytes(file.data_offset + tensor.offset + start, tensor.n_bytes if n_bytes is None else n_bytes)


def read_file(path: StrPath, budget: Budget | None = None) -> GgufFile:
    """Read the header of one GGUF file.

    Parameters
    ----------
    path
        A regular file; links are followed.
    budget
        What the file may make the reader read and keep; None takes that of a whole model.

    Raises
    ------
    ModelNotFoundError
        There is no such file.
    ModelFormatError
        It is no GGUF file, its header is damaged, or tensor data is missing at its end.
    LoadError
        It may not be read.
    """
    path = Path(path)
    failed = f"cannot read {str(path)!r}"
    try:
        status = path.stat()
        regular = stat.S_ISREG(status.st_mode)  # opening a pipe or a device could block for ever
        if regular:
            with path.open("rb") as file:
                header = parse_header(file, status.st_size, path, budget)
    except LoadError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelNotFoundError(failed, path=path, seen="there is no such file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        raise LoadError(failed, path=path, seen=_why(error)) from error
    if not regular:
        raise LoadError(failed, path=path, seen="it is not a regular file", advice="Give the path of a GGUF file.")
    return GgufFile(
        path,
        header.version,
        status.st_size,
        header.metadata,
        header.value_spans,
        header.tensors,
        header.data_offset,
    )


def read_model(path: StrPath) -> GgufModel:
    """Read the headers of a model, whichever of its splits is named.

    Parameters
    ----------
    path
        The file, or any split ``NAME-00002-of-00005.gguf``; the others must lie beside it.

    Raises
    ------
    ModelNotFoundError
        The file or one of its splits is missing.
    ModelFormatError
        A file is damaged or the splits do not belong together.
    LoadError
        A file may not be read.
    """
    budget = Budget()
    named = read_file(path, budget)
    n_splits = named.get_int("split.count", 1) or 1
    if n_splits == 1:
        return GgufModel((named,), named.tensors)
    if not 1 < n_splits <= _MAX_SPLITS:
        raise ModelFormatError(
            f"cannot read {str(named.path)!r}",
            path=named.path,
            seen=f"it claims to be one of {n_splits} splits; this build reads 1 to {_MAX_SPLITS}",
        )

    match = _SPLIT_NAME.fullmatch(named.path.name)
    if match is None or int(match["count"]) != n_splits:
        raise ModelFormatError(
            f"cannot read {str(named.path)!r}",
            path=named.path,
            seen=f"it is one of {n_splits} splits, but its name does not end in -NNNNN-of-{n_splits:05}.gguf",
            advice="Give the splits their original names.",
        )
    paths = [named.path.with_name(f"{match['prefix']}-{i:05}-of-{n_splits:05}.gguf") for i in range(1, n_splits + 1)]
    missing = [split for split in paths if not split.exists()]
    if missing:
        raise ModelNotFoundError(
            f"cannot read {str(named.path)!r}",
            path=missing[0],
            seen=f"{len(missing)} of {n_splits} splits are missing, first {missing[0].name}",
        )
    files = tuple(named if split == named.path else read_file(split, budget) for split in paths)
    return GgufModel(files, _merge_tensors(files))


def is_later_split(path: Path) -> bool:
    """Tell whether a file name is that of a split other than the first."""
    match = _SPLIT_NAME.fullmatch(path.name)
    return match is not None and int(match["number"]) > 1


def strip_split(name: str) -> str:
    """Return a file name without its split numbers and without ``.gguf``."""
    match = _SPLIT_NAME.fullmatch(name)
    return match["prefix"] if match else name.removesuffix(".gguf")


def _merge_tensors(files: tuple[GgufFile, ...]) -> Mapping[str, TensorInfo]:
    head = files[0]
    merged: dict[str, TensorInfo] = {}
    for number, file in enumerate(files):
        if file.get_int("split.no", -1) != number or file.get_int("split.count", -1) != len(files):
            raise ModelFormatError(
                f"cannot read {str(file.path)!r}",
                path=file.path,
                seen=f"by its name it is split {number + 1} of {len(files)}, by its metadata it is not",
                advice="Download the splits again; do not mix those of different models.",
            )
        merged |= file.tensors
    n_stated = head.get_int("split.tensors.count", len(merged))
    if n_stated != len(merged) or sum(len(file.tensors) for file in files) != len(merged):
        raise ModelFormatError(
            f"cannot read {str(head.path)!r}",
            path=head.path,
            seen=f"the splits hold {len(merged)} distinct tensors, {n_stated} are expected",
            advice="Download the splits again; do not mix those of different models.",
        )
    return MappingProxyType(merged)


def _wrong_type(path: Path, key: str, wanted: str, value: Value) -> ModelFormatError:
    return ModelFormatError(f"cannot read {str(path)!r}", path=path, seen=f"{key} is {shown(value)}, not {wanted}")


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
