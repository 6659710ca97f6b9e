"""GGUF header reader: what it reads, and that no damaged or hostile file does harm."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from _gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    Q8_0_TENSOR,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Typed,
    gguf,
    tensor_bytes,
    text,
    write_model,
)

from pylucebox import _gguf_parse
from pylucebox._errors import LoadError, ModelFormatError, ModelNotFoundError
from pylucebox._gguf import ArraySpan, GgufFile, read_file, read_model


def read(tmp_path: Path, content: bytes) -> GgufFile:
    path = tmp_path / "file.gguf"
    path.write_bytes(content)
    return read_file(path)


def refused(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(ModelFormatError) as caught:
        read(tmp_path, content)
    assert caught.value.path == str(tmp_path / "file.gguf")
    return caught.value.seen


def header(n_tensors: int, n_keys: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys) + rest


# ---- what is read


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_of_every_type(tmp_path: Path, version: int) -> None:
    values: dict[str, Any] = {
        "u8": Typed(U8, 255),
        "i8": Typed(I8, -1),
        "u16": Typed(U16, 65535),
        "i16": Typed(I16, -2),
        "u32": Typed(U32, 2**32 - 1),
        "i32": Typed(I32, -3),
        "u64": Typed(U64, 2**64 - 1),
        "i64": Typed(I64, -(2**63)),
        "f32": Typed(F32, 0.5),
        "f64": Typed(F64, 0.1),
        "yes": Typed(BOOL, True),
        "text": Typed(STRING, "häß"),
        "numbers": Typed(I32, [1, -2, 3]),
        "flags": Typed(BOOL, [True, False]),
        "none": Typed(F32, []),
    }
    file = read(tmp_path, gguf(values, version=version))
    expected = {key: tuple(v.value) if isinstance(v.value, list) else v.value for key, v in values.items()}
    assert dict(file.metadata) == expected
    assert file.metadata["yes"] is True
    assert file.version == version


def test_names_shapes_and_sizes_of_tensors(tmp_path: Path) -> None:
    file = read(tmp_path, gguf({}, {"a.weight": [32, 3], "b": [5], "scalar": []}))
    assert file.tensors["a.weight"].shape == (32, 3)
    assert (file.tensors["a.weight"].type_name, file.tensors["a.weight"].n_bytes) == ("f32", 384)
    assert file.tensors["b"].offset == 384
    assert (file.tensors["scalar"].n_elements, file.tensors["scalar"].n_bytes) == (1, 4)


def test_size_of_quantised_tensors_counts_blocks(tmp_path: Path) -> None:
    record = tensor_bytes("q", [64, 2], Q8_0_TENSOR, 0)
    file = read(tmp_path, header(1, 0, record + bytes(64 + 4 * 34)))
    assert (file.tensors["q"].type_name, file.tensors["q"].n_bytes) == ("q8_0", 4 * 34)


def test_strings_and_long_arrays_stay_in_the_file(tmp_path: Path) -> None:
    tokens = ["x" * (n % 50) for n in range(3000)]
    numbers = list(range(5000))
    content = gguf({"tokens": Typed(STRING, tokens), "numbers": Typed(I32, numbers), "after": 7})
    file = read(tmp_path, content)
    span = file.metadata["tokens"]
    assert isinstance(span, ArraySpan)
    assert span.length == 3000
    raw = b"".join(text(token) for token in tokens)
    assert content[span.offset : span.offset + span.n_bytes] == raw
    assert file.array_digest("tokens") == hashlib.sha256(raw).hexdigest()
    assert isinstance(file.metadata["numbers"], ArraySpan)
    assert file.get_int("after") == 7


def test_digest_of_what_is_no_array_is_none(tmp_path: Path) -> None:
    file = read(tmp_path, gguf({"n": 1}))
    assert file.array_digest("n") is None
    assert file.array_digest("absent") is None


def test_digests_tell_token_borders_apart(tmp_path: Path) -> None:
    one = read(tmp_path, gguf({"tokens": Typed(STRING, ["ab", "c"])})).array_digest("tokens")
    two = read(tmp_path, gguf({"tokens": Typed(STRING, ["a", "bc"])})).array_digest("tokens")
    assert one != two


def test_strings_longer_than_the_read_window_are_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gguf_parse, "_WINDOW_BYTES", 64)
    rng = random.Random(3)
    tokens = ["y" * rng.randrange(200) for _ in range(500)]
    file = read(tmp_path, gguf({"tokens": Typed(STRING, tokens), "name": "z" * 300}, {"t": [3]}))
    span = file.metadata["tokens"]
    assert isinstance(span, ArraySpan)
    assert span.n_bytes == sum(8 + len(token) for token in tokens)
    assert file.get_str("name") == "z" * 300
    assert file.tensors["t"].shape == (3,)


def test_typed_getters_refuse_another_type(tmp_path: Path) -> None:
    file = read(tmp_path, gguf({"n": 3, "s": "x", "b": True}))
    assert (file.get_int("n"), file.get_str("s"), file.get_int("no", 5), file.get_str("no")) == (3, "x", 5, None)
    for call in (lambda: file.get_int("s"), lambda: file.get_str("n"), lambda: file.get_int("b")):
        with pytest.raises(ModelFormatError):
            call()


def test_contents_cannot_be_changed(tmp_path: Path) -> None:
    file = read(tmp_path, gguf({"n": 3}))
    with pytest.raises(TypeError):
        file.metadata["n"] = 4  # type: ignore[index]


def test_description_that_is_not_utf8_is_no_reason_to_refuse(tmp_path: Path) -> None:
    assert read(tmp_path, gguf({"general.name": Typed(STRING, b"a\xffb")})).get_str("general.name") == "a\ufffdb"


# ---- what is refused


def test_files_that_are_no_gguf(tmp_path: Path) -> None:
    assert "0 are left" in refused(tmp_path, b"")
    assert "PK" in refused(tmp_path, b"PK\x03\x04" + bytes(100))


def test_big_endian_file_is_named_as_such(tmp_path: Path) -> None:
    assert "big-endian" in refused(tmp_path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0))


@pytest.mark.parametrize("version", [0, 1, 4])
def test_versions_that_are_not_read(tmp_path: Path, version: int) -> None:
    assert f"version is {version}" in refused(tmp_path, header(0, 0, version=version))


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    content = gguf({"a": 1, "tokens": Typed(STRING, ["x", "yy"]), "n": Typed(I32, [1, 2])}, {"t": [8], "u": [2, 2]})
    read(tmp_path, content)
    for size in range(len(content) - 16):  # the last tensor is padded by 16 bytes
        refused(tmp_path, content[:size])
    ends_in_strings = gguf({"tokens": Typed(STRING, ["x", "yy"])}, data=False)
    read(tmp_path, ends_in_strings)
    for size in range(len(ends_in_strings)):
        refused(tmp_path, ends_in_strings[:size])


def test_missing_tensor_data_is_called_an_incomplete_download(tmp_path: Path) -> None:
    path = tmp_path / "file.gguf"
    path.write_bytes(gguf({}, {"t": [1000]}, data=False))
    with pytest.raises(ModelFormatError, match="incomplete"):
        read_file(path)


@pytest.mark.parametrize("count", [2**20, 2**40, 2**63, 2**64 - 1])
@pytest.mark.parametrize("place", ["keys", "tensors", "strings", "numbers", "key name", "string", "tensor name"])
def test_huge_counts_and_lengths_are_refused_without_allocating(tmp_path: Path, place: str, count: int) -> None:
    big = struct.pack("<Q", count)
    key = text("k")
    content = {
        "keys": header(0, count, bytes(64)),
        "tensors": header(count, 0, bytes(64)),
        "strings": header(0, 1, key + struct.pack("<II", ARRAY, STRING) + big + bytes(64)),
        "numbers": header(0, 1, key + struct.pack("<II", ARRAY, F64) + big + bytes(64)),
        "key name": header(0, 1, big + bytes(64)),
        "string": header(0, 1, key + struct.pack("<I", STRING) + big + bytes(64)),
        "tensor name": header(1, 0, big + bytes(64)),
    }[place]
    tracemalloc.start()
    try:
        refused(tmp_path, content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 18


def test_huge_counts_are_refused_even_if_the_file_is_as_large(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    size = 1 << 36
    for start, seen in (
        (header(0, 1 << 30), "1073741824 metadata keys; this build reads 65536"),
        (header(1 << 30, 0), "1073741824 tensors; this build reads 262144"),
        (
            header(0, 1, text("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 32)),
            "4294967296 strings in arrays; this build reads 4194304",
        ),
        (
            header(0, 1, text("k") + struct.pack("<IQ", STRING, 1 << 35)),
            "bytes of text and numbers; this build reads 67108864",
        ),
    ):
        path.write_bytes(start)
        os.truncate(path, size)
        with pytest.raises(ModelFormatError) as caught:
            read_file(path)
        assert seen in caught.value.seen


def test_arrays_that_are_left_in_the_file_have_a_budget_together(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    numbers = struct.pack("<IIQ", ARRAY, F64, 3 << 25)
    path.write_bytes(header(0, 2, text("a") + numbers))
    with path.open("r+b") as file:
        file.seek(path.stat().st_size + 8 * (3 << 25))
        file.write(text("b") + numbers)
    os.truncate(path, 1 << 33)
    with pytest.raises(ModelFormatError) as caught:
        read_file(path)
    assert "'b' asks for 805306368 bytes of arrays; this build reads 1073741824 of a model" in caught.value.seen


def test_array_of_more_strings_than_fit_is_refused_before_it_is_walked(tmp_path: Path) -> None:
    start = header(0, 1, text("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 20) + bytes(800))
    assert "needs 8388608 bytes, 800 are left" in refused(tmp_path, start)


def test_long_string_lengths_in_an_array_cannot_leave_the_file(tmp_path: Path) -> None:
    for length in (100, 2**63, 2**64 - 1):
        entry = struct.pack("<Q", length) + bytes(50)
        refused(tmp_path, header(0, 1, text("k") + struct.pack("<IIQ", ARRAY, STRING, 2) + entry))


@pytest.mark.parametrize("kind", [13, 255, 2**32 - 1])
def test_unknown_value_types(tmp_path: Path, kind: int) -> None:
    assert str(kind) in refused(tmp_path, header(0, 1, text("k") + struct.pack("<I", kind) + bytes(64)))
    array = text("k") + struct.pack("<IIQ", ARRAY, kind, 1) + bytes(64)
    assert str(kind) in refused(tmp_path, header(0, 1, array))


def test_nested_arrays(tmp_path: Path) -> None:
    assert "array of arrays" in refused(
        tmp_path, header(0, 1, text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1) + bytes(64))
    )


def test_keys_that_are_empty_double_or_no_text(tmp_path: Path) -> None:
    assert "twice" in refused(tmp_path, gguf([("k", 1), ("k", 2)]))
    assert "empty" in refused(tmp_path, gguf([("", 1)]))
    assert "UTF-8" in refused(tmp_path, gguf([(b"\xff", 1)]))


@pytest.mark.parametrize("alignment", [0, 3, 48])
def test_alignment_that_is_no_power_of_two(tmp_path: Path, alignment: int) -> None:
    assert "power of two" in refused(tmp_path, gguf({"general.alignment": alignment}))


@pytest.mark.parametrize(
    ("record", "seen"),
    [
        (tensor_bytes("t", [2, 2, 2, 2, 2], 0, 0), "5 dimensions"),
        (tensor_bytes("t", [1], 31, 0), "unknown type 31"),
        (tensor_bytes("t", [1], 2**32 - 1, 0), "unknown type"),
        (tensor_bytes("t", [2**62, 4], 0, 0), "impossible shape"),
        (tensor_bytes("t", [33], Q8_0_TENSOR, 0), "multiple of 32"),
        (tensor_bytes("t", [], Q8_0_TENSOR, 0), "multiple of 32"),
        (tensor_bytes("t", [1], 0, 8), "aligned"),
        (tensor_bytes("t", [1], 0, 2**63), "end at byte"),
        (tensor_bytes("", [1], 0, 0), "1 to 63"),
        (tensor_bytes("n" * 64, [1], 0, 0), "1 to 63"),
        (tensor_bytes(b"\xff", [1], 0, 0), "UTF-8"),
    ],
)
def test_impossible_tensors(tmp_path: Path, record: bytes, seen: str) -> None:
    assert seen in refused(tmp_path, header(1, 0, record + bytes(256)))


def test_tensor_names_that_appear_twice(tmp_path: Path) -> None:
    assert "twice" in refused(tmp_path, header(2, 0, 2 * tensor_bytes("t", [1], 0, 0) + bytes(256)))


def test_random_damage_never_raises_anything_else(tmp_path: Path) -> None:
    content = gguf({"a": 1, "tokens": Typed(STRING, ["x", "yy"]), "n": Typed(I32, [1, 2])}, {"t": [8], "u": [2, 2]})
    rng = random.Random(4)
    n_refused = 0
    for _ in range(600):
        broken = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken))] = rng.choice((0, 1, 8, 9, 0x7F, 0x80, 0xFF))
        try:
            read(tmp_path, bytes(broken))
        except ModelFormatError:
            n_refused += 1
    assert n_refused > 200


# ---- paths


def test_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "no.gguf", tmp_path / "file.gguf" / "below"):
        (tmp_path / "file.gguf").write_bytes(gguf())
        with pytest.raises(ModelNotFoundError) as caught:
            read_file(path)
        assert caught.value.filename == str(path)


def test_directories_pipes_and_odd_names_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "loop", "a\0b"):
        with pytest.raises(LoadError):
            read_file(path)


# ---- splits


def write_splits(folder: Path, n: int = 3, **changed: Any) -> list[Path]:
    """Write a model of `n` splits with one tensor each."""
    paths = []
    for number in range(n):
        keys = {"split__no": Typed(U16, number), "split__count": Typed(U16, n), "split__tensors__count": n, **changed}
        path = folder / f"model-{number + 1:05}-of-{n:05}.gguf"
        paths.append(write_model(path, {f"t{number}": [number + 1]}, **keys))
    return paths


@pytest.mark.parametrize("named", [0, 1, 2])
def test_any_split_stands_for_the_model(tmp_path: Path, named: int) -> None:
    paths = write_splits(tmp_path)
    model = read_model(paths[named])
    assert [file.path for file in model.files] == paths
    assert model.path == paths[0]
    assert set(model.tensors) == {"t0", "t1", "t2"}


def test_file_without_split_keys_is_a_model_whatever_its_name(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model-00002-of-00003.gguf")
    assert read_model(path).path == path


def test_missing_split_is_named(tmp_path: Path) -> None:
    paths = write_splits(tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelNotFoundError, match=r"1 of 3 splits are missing, first model-00002-of-00003\.gguf"):
        read_model(paths[2])


def test_renamed_split_is_refused(tmp_path: Path) -> None:
    path = write_splits(tmp_path)[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFormatError, match="original names"):
        read_model(path)


def test_splits_of_different_models_are_refused(tmp_path: Path) -> None:
    paths = write_splits(tmp_path)
    paths[1].write_bytes(paths[2].read_bytes())
    with pytest.raises(ModelFormatError, match="split 2 of 3"):
        read_model(paths[0])
    paths = write_splits(tmp_path, split__tensors__count=9)
    with pytest.raises(ModelFormatError, match="9 are expected"):
        read_model(paths[0])


@pytest.mark.parametrize("count", [-3, 1025, 65535, 2**31 - 1])
def test_number_of_splits_has_a_limit(tmp_path: Path, count: int) -> None:
    path = write_model(tmp_path / f"model-00001-of-{count % 100_000:05}.gguf", split__count=Typed(I32, count))
    with pytest.raises(ModelFormatError, match=f"one of {count} splits"):
        read_model(path)


def test_splits_have_one_budget_together(tmp_path: Path) -> None:
    """Each of them would be read; together they would fill the memory."""
    for number, path in enumerate(write_splits(tmp_path)):
        keys = {"split.no": Typed(U16, number), "split.count": Typed(U16, 3), "long": Typed(STRING, "x" * (30 << 20))}
        path.write_bytes(gguf(keys))
        assert len(read_file(path).get_str("long") or "") == 30 << 20
    with pytest.raises(ModelFormatError, match="asks for 31457280 bytes of text") as caught:
        read_model(path)
    assert caught.value.path == str(tmp_path / "model-00002-of-00003.gguf")
