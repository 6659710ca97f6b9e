"""`lucebox sidecar`: what it says about files, as text and as JSON. Making files is tested with the native library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from _gguf_bytes import TABLES, mtp_block, write_model, write_sidecar

from pylucebox.cli.main import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "Name-Q8_0.gguf")


def text(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main(["sidecar", *map(str, arguments)]) == status
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> dict[str, Any]:
    out: dict[str, Any] = json.loads(text(capsys, *arguments, "--json", status=status))
    assert out["schema"] == 1
    assert out["ok"] is (status == 0)
    return out


def test_find_names_the_file_and_why_others_are_not_taken(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_sidecar(model.parent / "mtp-Name-Q8_0.gguf", mtp_block())
    bad = write_sidecar(model.parent / "mtp-Name-BF16.gguf", tokens=("x",))
    out = text(capsys, "find", model)
    assert f"drafts with {good}" in out
    assert "layout borrowed-tables" in out
    assert "the model lends embedding and LM head" in out
    assert f"not taken (sidecar-layout): {bad}" in out
    found = document(capsys, "find", model)
    assert (found["action"], found["path"], found["layout"]) == ("find", str(good), "borrowed-tables")


def test_find_without_any_says_where_it_looked(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = text(capsys, "find", model, status=1)
    assert "no drafts (no-sidecar)" in out
    assert f"looked for {model.parent / 'MTP' / 'mtp-*.gguf'}" in out
    assert document(capsys, "find", model, status=1)["reason_code"] == "no-sidecar"


def test_inspect_tells_layout_tables_and_sizes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = {name.replace("nextn.hc_head", "nextn.hc"): shape for name, shape in mtp_block().items()}
    tables = {"output.weight": [4, 3], "d2t": [3], **{f"output_hc_{kind}.weight": [4] for kind in ("norm", "up")}}
    path = write_sidecar(model.parent / "x.gguf", {**tables, **block})
    out = text(capsys, "inspect", path, "-m", model)
    for told in (
        "layout subset-head, block 2",
        "the model lends embedding",
        "drafts 3 of 4 tokens",
        "not used: output_hc",
    ):
        assert told in out
    assert f"fits {model}" in out
    found = document(capsys, "inspect", path)
    assert found["block"]["n_draft_vocab"] == 3
    assert found["block"]["n_tensors"] == len(block) + 2
    assert found["block"]["unused"] == ["output_hc_norm.weight", "output_hc_up.weight"]
    assert found["fits"] is None


def test_inspect_tells_what_is_wrong(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_sidecar(model.parent / "x.gguf", {**TABLES, **mtp_block(), "blk.2.attn_k.weight": [4, 4]})
    assert "cannot be loaded: blk.2.attn_k.weight has shape (4, 4)" in text(capsys, "inspect", path, status=1)
    misfit = document(capsys, "inspect", path, status=1)["block"]["misfit"]
    expected = {"tensor": "blk.2.attn_k.weight", "seen": "shape (4, 4)", "expected": "shape (4, 6)"}
    assert misfit == expected


def test_inspect_tells_that_a_file_is_of_another_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_sidecar(model.parent / "x.gguf", tokens=("a", "b", "c", "x"))
    assert f"does not fit {model}" in text(capsys, "inspect", path, "-m", model, status=1)


@pytest.mark.parametrize(("changed", "told"), [({}, "no MTP block"), ({"general__architecture": "llama"}, "llama")])
def test_inspect_of_other_files(
    model: Path, changed: dict[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_model(model.parent / "other.gguf", **changed)
    assert told in text(capsys, "inspect", path, status=1)
    assert told in document(capsys, "inspect", path, status=1)["problem"]


def test_errors_keep_to_the_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sidecar", "inspect", str(tmp_path / "no.gguf"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "ModelNotFoundError"
    assert main(["sidecar", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "UsageError"


def test_shrink_copies_without_the_native_library(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write_sidecar(model.parent / "x.gguf"), model.parent / "y.gguf"
    out = text(capsys, "shrink", source, "-o", target, "--drop-embedding", "--drop-head")
    assert f"wrote {target}" in out
    assert "the model lends embedding and LM head" in out
    refused = main(["sidecar", "shrink", str(source), "-o", str(target)])
    assert refused == 1
    assert "--force" in capsys.readouterr().err
    ids = model.parent / "ids.txt"
    ids.write_text("3 1")
    made = document(capsys, "shrink", source, "-o", target, "--force", "--draft-vocab", ids)
    assert made["block"]["n_draft_vocab"] == 2
