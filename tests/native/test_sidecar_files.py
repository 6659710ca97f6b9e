"""`make` gives the file that upstream's converter gives, `shrink` one that drafts the same with less in it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _checkpoint import Tensors, checkpoint_tensors, write_checkpoint

from pylucebox import (
    InvalidArgumentError,
    ModelFormatError,
    SidecarMismatchError,
    WriteError,
    _gguf_write,
    find_sidecar,
)
from pylucebox._build import PACKAGE_DIR
from pylucebox._gguf import read_model
from pylucebox._model import Model, ModelOptions
from pylucebox._mtp_layout import MtpLayout, find_block
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox._sidecar_make import make_sidecar
from pylucebox._sidecar_shrink import shrink_sidecar
from pylucebox.cli.main import main
from pylucebox.testing import TinySpec, read_f32, write_tiny_model

MODEL = PACKAGE_DIR / "demo_model" / "tiny-qwen4exp-Q8_0.gguf"
SIDECAR = PACKAGE_DIR / "demo_model" / "MTP" / "mtp-tiny-qwen4exp-Q8_0.gguf"
PROMPT = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n"
Chain = tuple[list[int], list[float]]


def chains(model: Path, sidecar: Path) -> list[Chain]:
    """Draft seven tokens, greedily, at the last places of a text."""
    opened = Model(ModelOptions(path=model, mtp_path=sidecar))
    session = NativeSession(opened, SessionOptions(n_ctx=512, n_ubatch=128, max_width=8))
    ids = opened.tokenize(PROMPT, add_special=False, parse_special=True)
    found = []
    for n_prompt in range(len(ids) - 6, len(ids)):
        session.clear(0)
        sampler = session.open_sampler(SamplingParams(temperature=0, seed=0), None)
        session.prefill(0, ids[:n_prompt], sampler, use_mtp=True)
        found.append(session.draft(0, 7))
    session.close()
    opened.close()
    return found


@pytest.fixture(scope="module")
def built_in() -> list[Chain]:
    return chains(MODEL, SIDECAR)


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return checkpoint_tensors(read_f32(SIDECAR))


@pytest.fixture(scope="module")
def checkpoint(tensors: Tensors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), tensors)


def contents(path: Path) -> dict[str, tuple[str, bytes]]:
    model = read_model(path)
    return {tensor.name: (tensor.type_name, model.read_tensor(tensor.name)) for tensor in model.tensors.values()}


# ---- make


def test_made_file_has_the_bytes_of_the_converters_and_drafts_the_same(
    checkpoint: Path, built_in: list[Chain], tmp_path: Path
) -> None:
    path = tmp_path / "mtp-made.gguf"
    make_sidecar(checkpoint, MODEL, path)
    assert contents(path) == contents(SIDECAR)
    assert find_sidecar(MODEL, path).layout is MtpLayout.SELF_CONTAINED
    assert chains(MODEL, path) == built_in


def test_metadata_that_counts_is_the_converters(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "mtp-made.gguf"
    make_sidecar(checkpoint, MODEL, path)
    ours, theirs = read_model(path).head, read_model(SIDECAR).head
    model_keys = {key for key in theirs.metadata if key.startswith("qwen4exp.")}
    assert {key for key in ours.metadata if key.startswith("qwen4exp.")} == model_keys
    assert {key: ours.metadata[key] for key in model_keys} == {key: theirs.metadata[key] for key in model_keys}
    for key in theirs.metadata:
        if key.startswith("tokenizer."):
            assert ours.read_bytes(*ours.value_spans[key]) == theirs.read_bytes(*theirs.value_spans[key])


@pytest.mark.parametrize("variant", [{"prefix": "model.mtp."}, {"each_expert": True}])
def test_variants_of_checkpoints_give_the_same_file(variant: dict[str, Any], checkpoint: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", checkpoint_tensors(read_f32(SIDECAR), **variant), n_shards=1)
    make_sidecar(other, MODEL, tmp_path / "a.gguf")
    make_sidecar(checkpoint, MODEL, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_shared_file_leaves_the_tables_to_the_model(checkpoint: Path, built_in: list[Chain], tmp_path: Path) -> None:
    path = tmp_path / "mtp-made.gguf"
    make_sidecar(checkpoint, MODEL, path, own_tables=False)
    verdict = find_sidecar(MODEL, path)
    assert (verdict.layout, verdict.borrows_embedding, verdict.borrows_head) == (MtpLayout.BORROWED_TABLES, True, True)
    assert read_model(path).head.metadata["qwen4exp.nextn_shared_target_tensors"] is True
    assert chains(MODEL, path) == built_in


@pytest.mark.parametrize("type_name", ["f32", "bf16", "f16", "q4_0"])
def test_other_types_load_and_draft(checkpoint: Path, tmp_path: Path, type_name: str) -> None:
    path = tmp_path / "mtp-made.gguf"
    make_sidecar(checkpoint, MODEL, path, type_name=type_name)
    assert read_model(path).tensors["blk.8.attn_q.weight"].type_name == type_name
    assert all(len(tokens) == 7 for tokens, _ in chains(MODEL, path))


def test_model_with_the_block_inside_gets_a_file_too(tmp_path: Path) -> None:
    spec = TinySpec(mtp="sidecar")
    files = write_tiny_model(tmp_path / "side" / "m.gguf", spec)
    in_file = write_tiny_model(tmp_path / "in" / "m.gguf", TinySpec(mtp="in-file"))
    assert files.sidecar is not None
    folder = write_checkpoint(tmp_path / "hf", checkpoint_tensors(read_f32(files.sidecar)))
    make_sidecar(folder, in_file.model, tmp_path / "mtp-made.gguf", type_name="f32")
    assert chains(files.model, tmp_path / "mtp-made.gguf") == chains(files.model, files.sidecar)


def test_work_that_was_broken_off_goes_on(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gguf_write, "_PIECE_BYTES", 100_000)
    path = tmp_path / "mtp-made.gguf"

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_sidecar(checkpoint, MODEL, path, progress=stop)
    assert not path.exists()
    written = make_sidecar(checkpoint, MODEL, path)
    assert 0 < written.n_bytes_resumed < written.n_bytes
    assert contents(path) == contents(SIDECAR)


def test_checkpoint_that_changed_meanwhile_starts_over(tensors: Tensors, tmp_path: Path) -> None:
    own = write_checkpoint(tmp_path / "hf", tensors)

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_sidecar(own, MODEL, tmp_path / "m.gguf", progress=stop)
    for file in own.glob("*.safetensors"):
        os.utime(file, (1, 1))
    assert make_sidecar(own, MODEL, tmp_path / "m.gguf").n_bytes_resumed == 0


Change = Callable[[Tensors], Tensors]


def lacking(name: str) -> Change:
    return lambda tensors: {key: values for key, values in tensors.items() if key != name}


def cut(name: str) -> Change:
    return lambda tensors: tensors | {name: tensors[name][..., :-32]}


UNFIT: dict[str, tuple[Change, str]] = {
    "no MTP block": (lambda t: {k: v for k, v in t.items() if not k.startswith("mtp.")}, "no tensors of an MTP block"),
    "no projection": (lacking("mtp.fc_hidden.weight"), "mtp.fc_hidden.weight"),
    "no experts": (lacking("mtp.layers.0.mlp.experts.gate_up_proj"), "mtp.layers.0.mlp.experts.0.gate_proj.weight"),
    "no head": (lacking("lm_head.weight"), "lm_head.weight"),
    "narrow query": (cut("mtp.layers.0.self_attn.q_proj.weight"), "q_proj.weight has shape (224, 512)"),
    "narrow norm": (cut("mtp.pre_fc_norm_hidden.weight"), "pre_fc_norm_hidden.weight has shape (992)"),
    "halves of two widths": (cut("mtp.fc_hidden.weight"), "fc_hidden (256, 224)"),
    "other vocabulary": (
        lambda t: t | {"lm_head.weight": t["lm_head.weight"][:-1]},
        "lm_head.weight has shape (256, 4095) as output.weight, (256, 4096) by the model is expected",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_checkpoint_that_does_not_fit_is_refused_before_anything_is_written(
    tensors: Tensors, tmp_path: Path, case: str
) -> None:
    change, told = UNFIT[case]
    folder = write_checkpoint(tmp_path / "hf", change(dict(tensors)))
    with pytest.raises(ModelFormatError) as caught:
        make_sidecar(folder, MODEL, tmp_path / "m.gguf")
    assert told in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize("type_name", ["", "q9", "i32", "i8"])
def test_types_that_no_weight_has(checkpoint: Path, tmp_path: Path, type_name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        make_sidecar(checkpoint, MODEL, tmp_path / "m.gguf", type_name=type_name)


# ---- shrink


def test_without_tables_it_drafts_the_same(built_in: list[Chain], tmp_path: Path) -> None:
    path = tmp_path / "mtp-small.gguf"
    written = shrink_sidecar(SIDECAR, path, drop_embedding=True, drop_head=True)
    assert written.n_bytes < SIDECAR.stat().st_size
    assert find_sidecar(MODEL, path).layout is MtpLayout.BORROWED_TABLES
    assert chains(MODEL, path) == built_in


@pytest.mark.parametrize("from_model", [False, True])
def test_a_draft_vocabulary_of_all_tokens_drafts_the_same(
    built_in: list[Chain], tmp_path: Path, from_model: bool
) -> None:
    source = SIDECAR
    if from_model:
        source = tmp_path / "mtp-bare.gguf"
        shrink_sidecar(SIDECAR, source, drop_embedding=True, drop_head=True)
    path = tmp_path / "mtp-small.gguf"
    shrink_sidecar(source, path, draft_vocab=4096, drop_embedding=True, model=MODEL if from_model else None)
    assert find_sidecar(MODEL, path).layout is MtpLayout.SUBSET_HEAD
    assert chains(MODEL, path) == built_in


def test_a_smaller_draft_vocabulary_covers_special_tokens_and_the_lowest_ids(tmp_path: Path) -> None:
    path = tmp_path / "mtp-small.gguf"
    shrink_sidecar(SIDECAR, path, draft_vocab=1000)
    file = read_model(path)
    ids = np.frombuffer(file.read_tensor("d2t"), "<i8").tolist()
    types = read_model(SIDECAR).head.metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, tuple)
    special = [i for i, kind in enumerate(types) if kind in (3, 4)]
    assert len(special) > 3
    assert ids == sorted({*special, *range(1000 - len(special))})
    rows, whole = (read_model(p).read_tensor("output.weight") for p in (path, SIDECAR))
    n_row = len(rows) // len(ids)
    assert rows == b"".join(whole[i * n_row : (i + 1) * n_row] for i in ids)
    assert {token for tokens, _ in chains(MODEL, path) for token in tokens} <= set(ids)


def test_a_draft_vocabulary_can_be_made_smaller_again(tmp_path: Path) -> None:
    shrink_sidecar(SIDECAR, tmp_path / "a.gguf", draft_vocab=[9, 5, 4000, 7])
    shrink_sidecar(tmp_path / "a.gguf", tmp_path / "b.gguf", draft_vocab=[4000, 7])
    shrink_sidecar(SIDECAR, tmp_path / "c.gguf", draft_vocab=[7, 4000])
    assert contents(tmp_path / "b.gguf") == contents(tmp_path / "c.gguf")
    with pytest.raises(InvalidArgumentError, match="got 6"):
        shrink_sidecar(tmp_path / "a.gguf", tmp_path / "d.gguf", draft_vocab=[6])


def test_other_ids_start_over(tmp_path: Path) -> None:
    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    target = tmp_path / "x.gguf"
    with pytest.raises(KeyboardInterrupt):
        shrink_sidecar(SIDECAR, target, draft_vocab=[1, 2], progress=stop)
    assert shrink_sidecar(SIDECAR, target, draft_vocab=[1, 3]).n_bytes_resumed == 0
    assert np.frombuffer(read_model(target).read_tensor("d2t"), "<i8").tolist() == [1, 3]


def test_a_models_own_block_can_be_taken_out(tmp_path: Path) -> None:
    files = write_tiny_model(tmp_path / "side" / "m.gguf", TinySpec(mtp="sidecar", weight_type="q8_0"))
    in_file = write_tiny_model(tmp_path / "in" / "m.gguf", TinySpec(mtp="in-file", weight_type="q8_0"))
    assert files.sidecar is not None
    shrink_sidecar(in_file.model, tmp_path / "mtp-out.gguf")
    assert find_sidecar(files.model, tmp_path / "mtp-out.gguf").borrows_head
    assert chains(files.model, tmp_path / "mtp-out.gguf") == chains(files.model, files.sidecar)


def test_wishes_that_cannot_be_met(tmp_path: Path) -> None:
    target = tmp_path / "x.gguf"
    with pytest.raises(InvalidArgumentError, match="drop_head"):
        shrink_sidecar(SIDECAR, target, draft_vocab=100, drop_head=True)
    with pytest.raises(ModelFormatError, match="no MTP block"):
        shrink_sidecar(MODEL, target)
    bare = tmp_path / "bare.gguf"
    shrink_sidecar(SIDECAR, bare, drop_head=True)
    with pytest.raises(InvalidArgumentError, match="argument model"):
        shrink_sidecar(bare, target, draft_vocab=100)
    other = write_tiny_model(tmp_path / "other.gguf", TinySpec(mtp="none"))
    with pytest.raises(SidecarMismatchError):
        shrink_sidecar(bare, target, draft_vocab=100, model=other.model)
    with pytest.raises(WriteError, match="there is such a file"):
        shrink_sidecar(SIDECAR, bare)
    assert not target.exists()


# ---- commands


def test_commands_make_shrink_inspect_and_find(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: object, status: int = 0) -> dict[str, Any]:
        assert main(["sidecar", *map(str, arguments), "--json"]) == status
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    made, small = tmp_path / "mtp-made.gguf", tmp_path / "mtp-small.gguf"
    assert run("make", checkpoint, "-m", MODEL, "-o", made)["block"]["layout"] == "self-contained"
    assert run("shrink", made, "-o", small, "--draft-vocab", 500, "--drop-embedding")["block"]["n_draft_vocab"] == 500
    seen = run("inspect", small, "-m", MODEL)
    assert (seen["ok"], seen["fits"]["accepted"], seen["block"]["borrows_embedding"]) == (True, True, True)
    assert run("find", MODEL)["path"] == str(SIDECAR)
    assert run("inspect", MODEL, status=1)["problem"] == "it holds no MTP block"
    assert "there is such a file" in run("make", checkpoint, "-m", MODEL, "-o", made, status=1)["error"]["message"]
    run("make", checkpoint, "-m", MODEL, "-o", made, "--force", "--shared")
    block = find_block(read_model(made))
    assert block is not None
    assert block.borrows_head
