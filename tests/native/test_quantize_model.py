"""Quantised models have the tensors they should have, load, and write next to the same text."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pylucebox import Engine, InvalidArgumentError, ModelFormatError, WriteError
from pylucebox._build import DEMO_MODEL
from pylucebox._gguf import read_model
from pylucebox._gguf_write import MetaPair, TensorPlan, write_gguf
from pylucebox._quantize import quantize_rows
from pylucebox._quantize_model import quantize_model
from pylucebox._quantize_plan import FILE_TYPES, Role
from pylucebox.cli.main import main
from pylucebox.testing import K_QUANT_SPEC, TinySpec, read_f32, write_tiny_model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of f32 tensors with the MTP block inside."""
    return write_tiny_model(tmp_path_factory.mktemp("quantize") / "f32.gguf", K_QUANT_SPEC).model


@pytest.mark.parametrize("type_name", ["f16", "q8_0", "q4_0", "q4_K", "iq4_xs", "q2_K"])
def test_every_type_has_the_bytes_of_the_quantiser_and_runs(source: Path, tmp_path: Path, type_name: str) -> None:
    done = quantize_model(source, tmp_path / "out.gguf", type_name, n_threads=2)
    values, written = read_f32(source), read_model(done.written.path)
    assert list(written.tensors) == list(values)
    for tensor in done.tensors:
        stored = written.tensors[tensor.name]
        assert (stored.type_name, stored.n_bytes) == (tensor.type_name, tensor.n_bytes)
        rows = values[tensor.name].reshape(-1, stored.shape[0])
        assert written.read_tensor(tensor.name) == quantize_rows(tensor.type_name, rows)
    assert {tensor.type_name for tensor in done.tensors if tensor.role is Role.BULK} >= {type_name}
    assert written.head.get_int("general.file_type") == FILE_TYPES[type_name]
    with Engine(done.written.path, n_ctx=64, n_threads=1) as engine:
        assert engine.spec.effective
        assert len(engine.generate("One, two", max_tokens=8, verify_width=4).token_ids) == 8


def test_everything_but_what_tells_the_type_is_in_the_metadata(source: Path, tmp_path: Path) -> None:
    done = quantize_model(source, tmp_path / "out.gguf", "q4_K")
    before, after = read_model(source).head, read_model(done.written.path).head
    changed = {"general.file_type", "general.quantization_version"}
    assert set(after.metadata) == set(before.metadata) | changed
    for key, span in before.value_spans.items():
        if key not in changed:
            assert after.read_bytes(*after.value_spans[key]) == before.read_bytes(*span), key


def norms_stored_flat(source: Path, target: Path, type_name: str) -> Path:
    """Copy a model; its n-gram norms become two-dimensional and of another type, as some files have them."""
    model, n_embd = read_model(source), K_QUANT_SPEC.n_embd

    def plan(name: str) -> TensorPlan:
        tensor = model.tensors[name]
        data = model.read_tensor(name)
        if "ple_norm" not in name:
            row_bytes = tensor.n_bytes // (tensor.n_elements // tensor.shape[0])

            def read(first: int, count: int) -> bytes:
                return data[first * row_bytes : (first + count) * row_bytes]

            return TensorPlan(name=name, shape=tensor.shape, type_name=tensor.type_name, read_rows=read)
        rows = np.frombuffer(data, np.float32).reshape(-1, n_embd)
        return TensorPlan(
            name=name,
            shape=(n_embd, len(rows)),
            type_name=type_name,
            read_rows=lambda first, count: quantize_rows(type_name, rows[first : first + count]),
        )

    head = model.head
    metadata = [MetaPair(key, head.read_bytes(*span)) for key, span in head.value_spans.items()]
    write_gguf(target, metadata, [plan(name) for name in model.tensors], source="test")
    return target


@pytest.mark.parametrize("stored_as", ["f32", "f16", "q8_0"])
def test_norms_of_two_dimensions_are_kept_and_mended(source: Path, tmp_path: Path, stored_as: str) -> None:
    model = norms_stored_flat(source, tmp_path / "in.gguf", stored_as)
    done = quantize_model(model, tmp_path / "out.gguf", "q8_0")
    norms = [tensor for tensor in done.tensors if "ple_norm" in tensor.name]
    assert len(norms) == 3
    assert all((norm.source_type, norm.type_name) == (stored_as, "f32") for norm in norms)
    with Engine(done.written.path, n_ctx=64, n_threads=1) as engine:
        assert engine.generate("One, two", max_tokens=4).token_ids


def test_eight_bits_hardly_change_the_logits_and_two_do(source: Path, tmp_path: Path) -> None:
    def logprobs(path: Path) -> dict[int, float]:
        with Engine(path, n_ctx=64, n_threads=1, mtp="off") as engine:
            done = engine.generate("One, two, three", max_tokens=1, logprobs=100)
        assert done.logprobs is not None
        return {entry.token_id: entry.logprob for entry in done.logprobs[0].top}

    def farthest(found: dict[int, float]) -> float:
        likely = sorted(exact, key=lambda token: -exact[token])[:5]
        return max(abs(found.get(token, -100.0) - exact[token]) for token in likely)

    exact = logprobs(source)
    fine = farthest(logprobs(quantize_model(source, tmp_path / "fine.gguf", "q8_0").written.path))
    coarse = farthest(logprobs(quantize_model(source, tmp_path / "coarse.gguf", "q2_K").written.path))
    assert fine < 0.5
    assert fine < coarse / 3


def test_an_mtp_file_becomes_smaller_too(tmp_path: Path) -> None:
    files = write_tiny_model(tmp_path / "m.gguf", replace(K_QUANT_SPEC, mtp="sidecar", weight_type="f16"))
    assert files.sidecar is not None
    small = quantize_model(files.sidecar, tmp_path / "small.gguf", "q4_K").written
    assert small.n_bytes < 0.6 * files.sidecar.stat().st_size
    with Engine(files.model, mtp=small.path, n_ctx=64, n_threads=1, spec="require") as engine:
        assert engine.generate("One, two", max_tokens=8, verify_width=4).stats.num_draft_tokens > 0


# ---- refusals


def test_a_file_that_is_there_is_kept_unless_it_is_to_be_replaced(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    target.write_bytes(b"precious")
    with pytest.raises(WriteError, match="--force"):
        quantize_model(source, target, "q4_0")
    assert target.read_bytes() == b"precious"
    quantize_model(source, target, "q4_0", overwrite=True)
    assert read_model(target).tensors
    assert list(tmp_path.iterdir()) == [target]


def test_the_source_is_never_the_target(source: Path, tmp_path: Path) -> None:
    model = Path(shutil.copy(source, tmp_path / "m.gguf"))
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    for target in (model, link):
        with pytest.raises(InvalidArgumentError) as caught:
            quantize_model(model, target, "q4_0", overwrite=True)
        assert caught.value.argument == "target"
    assert model.read_bytes() == source.read_bytes()


def test_what_was_quantised_before_is_refused_with_the_tensor(source: Path, tmp_path: Path) -> None:
    once = quantize_model(source, tmp_path / "once.gguf", "q4_K").written.path
    with pytest.raises(ModelFormatError, match=r"is q4_K already") as caught:
        quantize_model(once, tmp_path / "twice.gguf", "q5_0")
    assert "blk.0." in caught.value.seen
    assert sorted(path.name for path in tmp_path.iterdir()) == ["once.gguf"]


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", extra_metadata={"general.architecture": "llama"}).model
    with pytest.raises(ModelFormatError, match="llama-quantize"):
        quantize_model(model, tmp_path / "out.gguf", "q4_0")


def test_a_run_that_was_broken_off_leaves_no_file_and_is_taken_up_again(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"

    def stop_half_way(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_model(source, target, "q4_K", progress=stop_half_way)
    assert not target.exists()
    done = quantize_model(source, target, "q4_K")
    assert done.written.n_bytes_resumed > done.written.n_bytes // 2
    whole = quantize_model(source, tmp_path / "whole.gguf", "q4_K")
    assert target.read_bytes() == whole.written.path.read_bytes()


# ---- the command


def test_the_command_prints_a_table_and_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "small.gguf"
    assert main(["quantize", str(DEMO_MODEL), str(out), "Q4_K", "--threads", "1"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "Tensors"
    assert any(line.split()[-4:-2] == ["q4_K", "38"] for line in lines)
    assert lines[-1].startswith(f"wrote {out}, ")
    assert "100 of 100 %" in captured.err


def test_the_command_with_json_gives_one_document(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small.gguf"
    assert main(["quantize", str(source), str(out), "iq4_xs", "--json"]) == 0
    found: Any = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["path"], found["n_bytes"]) == (1, str(out), out.stat().st_size)
    assert {tensor["role"] for tensor in found["tensors"]} == {"decides", "table", "steers", "bulk", "drafts"}


@pytest.fixture
def folder_with_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; it holds ``m.gguf``."""
    monkeypatch.chdir(tmp_path)
    write_tiny_model("m.gguf", TinySpec())
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "status", "kind"),
    [
        (("nowhere.gguf", "out.gguf", "q4_K"), 1, "ModelNotFoundError"),
        (("m.gguf", "out.gguf", "q4_K_M"), 2, "InvalidArgumentError"),
        (("m.gguf", "m.gguf", "q4_K"), 2, "InvalidArgumentError"),
        (("m.gguf", "no/such/folder/out.gguf", "q4_K"), 1, "WriteError"),
        (("m.gguf", "out.gguf"), 2, "UsageError"),
    ],
)
def test_refusals_are_one_message_and_data(
    folder_with_model: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, kind: str
) -> None:
    assert main(["quantize", *arguments, "--json"]) == status
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["type"] == kind
    assert "Traceback" not in captured.err
    assert [path.name for path in folder_with_model.iterdir()] == ["m.gguf"]
