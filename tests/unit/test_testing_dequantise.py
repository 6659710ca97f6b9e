"""Copies with float32 tensors hold the values of their source, and its metadata."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from _gguf_bytes import gguf

from pylucebox._errors import InvalidArgumentError, ModelNotFoundError
from pylucebox._gguf import ArraySpan, GgufFile, read_file
from pylucebox.testing import read_f32, write_f32_copy
from pylucebox.testing._gguf_writer import Tensor, encode, write_gguf

METADATA = {"general.architecture": "x", "general.file_type": 7, "names": ["a", "", "é"], "big": np.uint64(1 << 45)}


def write(path: Path, type_name: str, *arrays: np.ndarray) -> None:
    tensors = [Tensor(f"t{i}", a.shape, type_name, encode(a, type_name)) for i, a in enumerate(arrays)]
    write_gguf(path, METADATA, tensors)


def header(file: GgufFile) -> dict[str, object]:
    """Return the metadata with the contents of arrays of strings, wherever they lie."""
    values: dict[str, object] = dict(file.metadata)
    return {key: file.array_digest(key) if isinstance(value, ArraySpan) else value for key, value in values.items()}


@pytest.mark.parametrize(
    ("type_name", "stored"),
    [
        ("f32", [0.1, -3e38]),
        ("f16", [0.5, -65504.0, 2.0**-24]),
        ("bf16", [1.0078125, -3.0, 2.0**100]),
        ("q8_0", [127 * 0.25, -31 * 0.25] + [0.25] * 30),
    ],
)
def test_values_that_a_type_can_hold_come_back_exactly(tmp_path: Path, type_name: str, stored: list[float]) -> None:
    array = np.asarray([stored, stored[::-1]], np.float32)
    write(tmp_path / "x.gguf", type_name, array)
    found = read_f32(tmp_path / "x.gguf")["t0"]
    assert found.dtype == np.float32
    assert np.array_equal(found, array)


@pytest.mark.parametrize("type_name", ["f32", "f16", "bf16", "q8_0"])
def test_copy_has_the_same_values_shapes_and_metadata(tmp_path: Path, type_name: str) -> None:
    rng = np.random.default_rng(0)
    shapes = [(3, 32), (2, 3, 64), (96,)]
    write(tmp_path / "x.gguf", type_name, *(rng.standard_normal(shape, np.float32) for shape in shapes))
    write_f32_copy(tmp_path / "x.gguf", tmp_path / "copy.gguf")

    source, copy = read_file(tmp_path / "x.gguf"), read_file(tmp_path / "copy.gguf")
    assert header(copy) == {**header(source), "general.file_type": 0}
    assert {info.type_name for info in copy.tensors.values()} == {"f32"}
    expected, found = read_f32(tmp_path / "x.gguf"), read_f32(tmp_path / "copy.gguf")
    assert [array.shape for array in found.values()] == shapes
    assert list(found) == list(expected)
    assert all(np.array_equal(found[name], expected[name]) for name in found)


def test_alignment_of_the_source_is_kept(tmp_path: Path) -> None:
    head = gguf({"general.alignment": 64}, {"a": (16,), "b": (3, 2)}, data=False)
    values = np.arange(22, dtype="<f4")
    (tmp_path / "x.gguf").write_bytes(head + bytes(-len(head) % 64) + values.tobytes())
    write_f32_copy(tmp_path / "x.gguf", tmp_path / "copy.gguf")
    found = read_f32(tmp_path / "copy.gguf")
    assert [array.ravel().tolist() for array in found.values()] == [values[:16].tolist(), values[16:].tolist()]
    assert read_file(tmp_path / "copy.gguf").file_bytes % 64 == 0


def test_file_without_file_type_gets_none(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(gguf({"k": 1}, {"a": (4,)}))
    write_f32_copy(tmp_path / "x.gguf", tmp_path / "copy.gguf")
    assert dict(read_file(tmp_path / "copy.gguf").metadata) == {"k": 1}


def test_types_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", {}, [Tensor("odd", (1, 256), "q4_K", bytes(144))])
    with pytest.raises(InvalidArgumentError) as caught:
        write_f32_copy(tmp_path / "x.gguf", tmp_path / "copy.gguf")
    assert (caught.value.argument, caught.value.value) == ("odd", "q4_K")
    assert not (tmp_path / "copy.gguf").exists()


def test_missing_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        write_f32_copy(tmp_path / "none.gguf", tmp_path / "copy.gguf")
