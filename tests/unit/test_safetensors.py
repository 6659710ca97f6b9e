"""Checkpoint folders: only what is wanted is opened, and nothing in a header is believed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pylucebox._errors import LoadError, ModelFormatError, ModelNotFoundError
from pylucebox._safetensors import Checkpoint

INDEX = "model.safetensors.index.json"


def write_file(path: Path, tensors: dict[str, tuple[str, list[int], bytes]], **changed: Any) -> Path:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header.update(changed)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


VALUES = np.asarray([[1.0, -2.0], [0.5, 3.0], [8.0, 0.0]], "<f4")
STORED = {
    "F32": VALUES.tobytes(),
    "F16": VALUES.astype("<f2").tobytes(),
    "BF16": (VALUES.view("<u4") >> 16).astype("<u2").tobytes(),
}


@pytest.mark.parametrize("dtype", STORED)
def test_rows_of_each_type(tmp_path: Path, dtype: str) -> None:
    write_file(tmp_path / "model.safetensors", {"x": ("F32", [2], bytes(8)), "w": (dtype, [3, 2], STORED[dtype])})
    checkpoint = Checkpoint(tmp_path)
    tensor = checkpoint.find("w")
    assert (tensor.row, tensor.n_rows) == (2, 3)
    assert checkpoint.read_rows(tensor, 0, 3).tolist() == VALUES.tolist()
    assert checkpoint.read_rows(tensor, 1, 1).tolist() == VALUES[1:2].tolist()


def test_files_without_wanted_tensors_may_be_missing(tmp_path: Path) -> None:
    write_file(tmp_path / "b.safetensors", {"w": ("F32", [3, 2], STORED["F32"])})
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"v": "a.safetensors", "w": "b.safetensors"}}))
    checkpoint = Checkpoint(tmp_path)
    assert "v" in checkpoint
    assert checkpoint.find("w").shape == (3, 2)
    with pytest.raises(ModelNotFoundError, match=r"a\.safetensors"):
        checkpoint.find("v")


def test_identity_changes_with_the_file(tmp_path: Path) -> None:
    path = write_file(tmp_path / "b.safetensors", {"w": ("F32", [3, 2], STORED["F32"])})
    checkpoint = Checkpoint(tmp_path)
    before = checkpoint.identity([checkpoint.find("w")])
    path.write_bytes(path.read_bytes() + b"x")
    assert checkpoint.identity([checkpoint.find("w")]) != before


def test_folders_that_are_none(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "no"):
        with pytest.raises(ModelNotFoundError, match="checkpoint"):
            Checkpoint(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"weight_map": 1}', '{"weight_map": {"w": 1}}', '{"weight_map": {"w": "../x"}}']
)
def test_damaged_index(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ModelFormatError):
        Checkpoint(tmp_path)


def entry(**changed: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24], **changed}}


@pytest.mark.parametrize(
    "changed",
    [
        {"w": 1},
        {"w": {}},
        entry(dtype=1),
        entry(shape=[3, -2]),
        entry(shape=[3, 2.0]),
        entry(shape=[True, 6]),
        entry(shape=[3, 3]),
        entry(shape=6),
        entry(data_offsets=[0, 25]),
        entry(data_offsets=[24, 0]),
        entry(data_offsets=[-24, 0]),
        entry(data_offsets=[0]),
        entry(data_offsets=[0, 1 << 80], shape=[1 << 78]),
    ],
)
def test_entries_that_cannot_be(tmp_path: Path, changed: dict[str, Any]) -> None:
    write_file(tmp_path / "m.safetensors", {"w": ("F32", [3, 2], STORED["F32"])}, **changed)
    with pytest.raises(ModelFormatError):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("raw", [b"", b"1234567", struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"[]"])
def test_files_that_are_no_safetensors(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(raw)
    with pytest.raises(ModelFormatError):
        Checkpoint(tmp_path)


def test_types_that_are_not_read(tmp_path: Path) -> None:
    write_file(tmp_path / "m.safetensors", {"w": ("F8_E4M3", [3, 2], bytes(6))})
    with pytest.raises(ModelFormatError, match="F8_E4M3"):
        Checkpoint(tmp_path).find("w")


def test_index_that_names_the_wrong_file(tmp_path: Path) -> None:
    write_file(tmp_path / "b.safetensors", {"w": ("F32", [3, 2], STORED["F32"])})
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"v": "b.safetensors"}}))
    with pytest.raises(ModelFormatError, match="no such tensor"):
        Checkpoint(tmp_path).find("v")


def test_file_that_became_shorter(tmp_path: Path) -> None:
    path = write_file(tmp_path / "b.safetensors", {"w": ("F32", [3, 2], STORED["F32"])})
    checkpoint = Checkpoint(tmp_path)
    tensor = checkpoint.find("w")
    path.write_bytes(path.read_bytes()[:-8])
    assert checkpoint.read_rows(tensor, 0, 2).shape == (2, 2)
    with pytest.raises(LoadError):
        checkpoint.read_rows(tensor, 0, 3)
