"""Write a model again with fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pylucebox._errors import InvalidArgumentError, ModelFormatError, StrPath
from pylucebox._gguf import GgufModel, read_model
from pylucebox._gguf_parse import TensorInfo
from pylucebox._gguf_write import MetaPair, TensorPlan, Written, pack_u32, write_gguf
from pylucebox._mtp_checks import ARCH, n_trunk_layers
from pylucebox._mtp_layout import is_head_only
from pylucebox._quantize import quantize_rows
from pylucebox._quantize_plan import FILE_TYPES, Choice, Role, check_target, choose

__all__ = ["Quantised", "QuantisedTensor", "quantize_model"]

# Types that can be read as floats again without noticeable loss.
_SOURCES: Final = ("f32", "f16", "bf16", "q8_0")
_QUANTIZATION_VERSION: Final = 2  # GGML_QNT_VERSION in ggml/include/ggml.h
_LEFT_OUT: Final = ("split.", "quantize.")
_LEFT_OUT_KEYS: Final = ("general.file_type", "general.quantization_version", "general.alignment")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedTensor:
    """What became of a tensor.

    Attributes
    ----------
    name
        Its name.
    source_type, type_name
        Types in the source and in the file.
    role
        Why it has this type.
    is_fallback
        Whether its rows did not fit the type that it should have.
    n_bytes
        Size in the file.
    """

    name: str
    source_type: str
    type_name: str
    role: Role
    is_fallback: bool
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """What `quantize_model` did.

    Attributes
    ----------
    written
        The file.
    tensors
        Its tensors in file order.
    source_bytes
        Size of the source's files.
    """

    written: Written
    tensors: tuple[QuantisedTensor, ...]
    source_bytes: int


def quantize_model(
    source: StrPath,
    target: StrPath,
    type_name: str,
    *,
    n_threads: int = 1,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Quantised:
    """Write a qwen4exp model, or an MTP file, with fewer bits.

    A run that was broken off goes on where it was when it is called again with the same arguments.

    Parameters
    ----------
    source
        The model, or any of its splits; its tensors are f32, f16, bf16 or q8_0, or stay as they are.
    target
        File to write; its directory must exist.
    type_name
        ggml type of the bulk of the matrices, in any case. `pylucebox._quantize_plan` says what the others get.
    n_threads
        Threads that quantise.
    overwrite
        Whether `target` may be replaced.
    progress
        Called with bytes done and bytes in all.

    Raises
    ------
    InvalidArgumentError
        Models cannot be quantised to this type, or source and target are the same file.
    ModelFormatError
        The source is of another architecture, is damaged, or holds tensors that were quantised before.
    ModelNotFoundError, LoadError
        The source is not there or cannot be read.
    WriteError
        The target is there and may not be replaced, or cannot be written.
    """
    base = check_target(type_name)
    model, target = read_model(source), Path(target)
    if any(target.exists() and target.samefile(file.path) for file in model.files):
        raise InvalidArgumentError(argument="target", value=target, allowed="another file than the source")
    choices = _choices(model, base)
    _check_sources(model, choices)
    with ThreadPoolExecutor(n_threads) as threads:
        plans = [_plan(model, tensor, choices[name], threads, n_threads) for name, tensor in model.tensors.items()]
        identity = f"{model.path.absolute()} {[file.path.stat().st_mtime_ns for file in model.files]}"
        written = write_gguf(
            target, _metadata(model, base), plans, source=identity, overwrite=overwrite, progress=progress
        )
    tensors = tuple(
        QuantisedTensor(
            name=plan.name,
            source_type=model.tensors[plan.name].type_name,
            n_bytes=plan.n_rows * plan.row_bytes,
            **choices[plan.name]._asdict(),
        )
        for plan in plans
    )
    return Quantised(
        written=written, tensors=tensors, source_bytes=sum(file.path.stat().st_size for file in model.files)
    )


def _choices(model: GgufModel, base: str) -> dict[str, Choice]:
    arch = model.head.get_str("general.architecture")
    if arch != ARCH:
        seen = f"its architecture is {arch}; which of its tensors bear fewer bits is known for {ARCH} only"
        raise _refusal(model, seen, "Use llama-quantize for other models.")
    n_trunk = None if is_head_only(model) else n_trunk_layers(model)
    return {name: choose(tensor, base, n_trunk) for name, tensor in model.tensors.items()}


def _check_sources(model: GgufModel, choices: dict[str, Choice]) -> None:
    for name, tensor in model.tensors.items():
        if tensor.type_name not in (*_SOURCES, choices[name].type_name):
            seen = f"{name} is {tensor.type_name} already, and would lose as much again as {choices[name].type_name}"
            raise _refusal(model, seen, f"Give a file of {', '.join(_SOURCES)} tensors.")


def _refusal(model: GgufModel, seen: str, advice: str) -> ModelFormatError:
    return ModelFormatError(f"cannot quantise {str(model.path)!r}", path=model.path, seen=seen, advice=advice)


def _metadata(model: GgufModel, base: str) -> list[MetaPair]:
    pairs = [
        MetaPair(key, model.head.read_bytes(*span))
        for key, span in model.head.value_spans.items()
        if not key.startswith(_LEFT_OUT) and key not in _LEFT_OUT_KEYS
    ]
    pairs.append(MetaPair("general.file_type", pack_u32(FILE_TYPES[base])))
    pairs.append(MetaPair("general.quantization_version", pack_u32(_QUANTIZATION_VERSION)))
    return pairs


def _plan(
    model: GgufModel, tensor: TensorInfo, choice: Choice, threads: ThreadPoolExecutor, n_threads: int
) -> TensorPlan:
    n_rows = max(1, tensor.n_elements // max(1, tensor.shape[0] if tensor.shape else 1))
    row_bytes = tensor.n_bytes // n_rows

    def read_rows(first: int, count: int) -> bytes:
        if tensor.type_name == choice.type_name:
            return model.read_tensor(tensor.name, first * row_bytes, count * row_bytes)
        share = -(-count // n_threads)
        starts = range(first, first + count, share)
        parts = threads.map(lambda start: convert(start, min(share, first + count - start)), starts)
        return b"".join(parts)

    def convert(first: int, count: int) -> bytes:
        from pylucebox._dequantize import DECODERS  # noqa: PLC0415 - keeps `import pylucebox` cheap

        stored = model.read_tensor(tensor.name, first * row_bytes, count * row_bytes)
        return quantize_rows(choice.type_name, DECODERS[tensor.type_name](stored).reshape(count, -1))

    return TensorPlan(name=tensor.name, shape=tensor.shape, type_name=choice.type_name, read_rows=read_rows)
