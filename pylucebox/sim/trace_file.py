"""Trace files: a compressed NumPy archive of four arrays, checked in every respect when it is read."""

from __future__ import annotations

import json
import math
import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pylucebox._errors import InvalidArgumentError, LoadError, StrPath, WriteError
from pylucebox.sim.errors import TraceFormatError
from pylucebox.sim.trace import DEPTH, SUFFIX, Trace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["SUFFIX", "read_trace", "write_trace"]

_SCHEMA: Final = "lucebox-trace/2"
# Version 1 does not say where random numbers came from: all its drafts are the likeliest tokens.
_READABLE: Final = ("lucebox-trace/1", _SCHEMA)
_FAMILY: Final = _SCHEMA.partition("/")[0]
_P_STEPS: Final = 65_535
_MAX_TOKENS: Final = 1_000_000
_MAX_HEADER_BYTES: Final = 65_536
_HEADROOM_BYTES: Final = 128  # header of the .npy format
# Version 1.0 of the format: magic, length of the header, header. Whole numbers in one or two dimensions.
_NPY: Final = re.compile(
    rb"\x93NUMPY\x01\x00(?P<size>..)(?P<header>\{'descr': '(?P<kind>[<|][iu][1248])', 'fortran_order': False, "
    rb"'shape': \((?P<rows>[0-9]{1,9}),(?: (?P<columns>[0-9]{1,9}))?\), \} *\n)",
    re.DOTALL,
)
_ARRAYS: Final = ("header", "tokens", "drafts", "probs")
_OPTIONAL: Final = ("prompt",)  # not in files of earlier versions
_MAX_BYTES: Final = {
    "header": _MAX_HEADER_BYTES + _HEADROOM_BYTES,
    "prompt": 4 * _MAX_TOKENS + _HEADROOM_BYTES,
    "tokens": 4 * _MAX_TOKENS + _HEADROOM_BYTES,
    "drafts": 4 * DEPTH * _MAX_TOKENS + _HEADROOM_BYTES,
    "probs": 2 * DEPTH * _MAX_TOKENS + _HEADROOM_BYTES,
}


def write_trace(path: StrPath, trace: Trace) -> None:
    """Write a trace; what was at `path` is replaced only when the whole file is written.

    Raises
    ------
    WriteError
        The file cannot be written.
    """
    import numpy as np  # noqa: PLC0415 - commands that touch no traces start without it

    header = {
        "schema": _SCHEMA,
        "name": trace.name,
        "kind": trace.kind,
        "n_prompt": trace.n_prompt,
        "max_tokens": trace.max_tokens,
        "seed": trace.seed,
        "temperature": trace.temperature,
        "sampler_rng": trace.sampler_rng,
        "digest": trace.digest,
        "facts": dict(trace.facts),
    }
    shape = (len(trace.drafts), DEPTH)
    target = Path(os.fspath(path))
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            np.savez_compressed(
                file,
                header=np.frombuffer(json.dumps(header, ensure_ascii=False).encode(), dtype=np.uint8),
                prompt=np.array(trace.prompt, dtype="<i4"),
                tokens=np.array(trace.tokens, dtype="<i4"),
                drafts=np.array(trace.drafts, dtype="<i4").reshape(shape),
                probs=np.rint(np.array(trace.probs, dtype=np.float64).reshape(shape) * _P_STEPS).astype("<u2"),
            )
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise WriteError(path=target, seen=error.strerror or str(error), advice="Choose another place.") from error


def read_trace(path: StrPath) -> Trace:
    """Read a trace.

    Raises
    ------
    LoadError
        The file is missing or cannot be read.
    TraceFormatError
        It is no trace, is damaged, or was written by a later version.
    """
    name = os.fspath(path)
    try:
        with zipfile.ZipFile(name) as archive:
            arrays = _arrays(archive, name)
    except TraceFormatError:  # an OSError, too
        raise
    except FileNotFoundError as error:
        raise LoadError(f"cannot read {name!r}", path=name, seen="there is no such file") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _refused(name, f"it is no intact archive ({error})") from error
    except OSError as error:
        raise LoadError(f"cannot read {name!r}", path=name, seen=error.strerror or str(error)) from error
    header = _header(arrays["header"], name)
    probs = arrays["probs"].astype(float) / _P_STEPS
    try:
        trace = Trace(
            name=str(header["name"]),
            kind=str(header["kind"]),
            tokens=tuple(arrays["tokens"].tolist()),
            drafts=tuple(map(tuple, arrays["drafts"].tolist())),
            probs=tuple(map(tuple, probs.tolist())),
            n_prompt=_whole(header["n_prompt"]),
            max_tokens=_whole(header["max_tokens"]),
            prompt=tuple(arrays["prompt"].tolist()) if "prompt" in arrays else (),
            seed=None if header.get("seed") is None else _whole(header["seed"]),
            temperature=float(header.get("temperature", 0.0)),
            sampler_rng=header["sampler_rng"] if header["schema"] == _SCHEMA else None,
            facts={str(key): str(value) for key, value in header["facts"].items()},
        )
        digest = header["digest"]
    except (KeyError, AttributeError, ValueError) as error:  # InvalidArgumentError is a ValueError
        seen = error.seen if isinstance(error, InvalidArgumentError) else f"its header lacks {error}"
        raise _refused(name, seen) from error
    if trace.digest != digest:
        raise _refused(name, "its digest is not that of its contents")
    return trace


def _refused(path: str, seen: str) -> TraceFormatError:
    return TraceFormatError(f"cannot read the trace {path!r}", path=path, seen=seen)


def _arrays(archive: zipfile.ZipFile, path: str) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays, each only when the archive says that it is not too large."""
    import numpy as np  # noqa: PLC0415

    sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    out: dict[str, npt.NDArray[Any]] = {}
    for name in (*_ARRAYS, *_OPTIONAL):
        size = sizes.get(f"{name}.npy")
        if size is None and name in _OPTIONAL:
            continue
        if size is None:
            raise _refused(path, f"it has no array {name!r}")
        if size > _MAX_BYTES[name]:
            raise _refused(path, f"its array {name!r} has {size} bytes, more than a trace can have")
        try:
            out[name] = _array(archive.read(f"{name}.npy"))
        except ValueError as error:
            raise _refused(path, f"its array {name!r} is damaged") from error
    lists, tables = ("<i4", 1), ("<i4", 2)
    shapes = {"header": ("u1", 1), "prompt": lists, "tokens": lists, "drafts": tables, "probs": ("<u2", 2)}
    for name, found in out.items():
        kind, n_dims = shapes[name]
        if found.dtype != np.dtype(kind) or found.ndim != n_dims or (n_dims == 2 and found.shape[1] != DEPTH):
            raise _refused(path, f"its array {name!r} has the type {found.dtype} and the shape {found.shape}")
    return out


def _array(data: bytes) -> npt.NDArray[Any]:
    """Read an array in the .npy format, without believing what its header says of its size.

    NumPy's own reader evaluates the header, and lets errors of Python's parser out when it is damaged.
    """
    import numpy as np  # noqa: PLC0415

    found = _NPY.match(data)
    if found is None or int.from_bytes(found["size"], "little") != len(found["header"]):
        msg = "no array"
        raise ValueError(msg)
    shape = tuple(int(length) for length in (found["rows"], found["columns"]) if length is not None)
    dtype, content = np.dtype(found["kind"].decode()), data[found.end() :]
    if math.prod(shape) * dtype.itemsize != len(content):
        msg = "a size that is not that of the data"
        raise ValueError(msg)
    array: npt.NDArray[Any] = np.frombuffer(content, dtype=dtype).reshape(shape)
    return array


def _header(raw: npt.NDArray[np.uint8], path: str) -> dict[str, Any]:
    try:
        header = json.loads(raw.tobytes().decode())
        schema = header["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refused(path, "its header cannot be read") from error
    if schema not in _READABLE:
        later = isinstance(schema, str) and schema.startswith(f"{_FAMILY}/")
        what = f"it is {schema!r}, this version reads {' and '.join(_READABLE)}" if later else "it is no trace"
        raise _refused(path, what)
    found: dict[str, Any] = header
    return found


def _whole(value: object) -> int:
    if type(value) is not int:
        msg = "whole numbers"
        raise ValueError(msg)
    return value
