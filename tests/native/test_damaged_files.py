"""Files whose header reads well and whose values would end the process: each gets an error that names the value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pylucebox as lb
from pylucebox.testing import TinySpec, write_tiny_model

ODD_VALUES: dict[str, Any] = {
    "context_length": 0,
    "attention.head_count_kv": 2**31 + 1,  # times the width of a head this is the right width, in 32 bits
    "attention.compress_ratios": np.asarray([0, 0, 0, 4, 0, 0, 0, 0], np.int32),
    "rope.scaling.type": "spiral",
    "expert_group_count": 3,
    "ssm.group_count": 3,
    "rope.dimension_count": 7,
    "attention.layer_norm_rms_epsilon": -1.0,
    "ssm.inner_size": 511,
    "ple.ngram_size": 2,
    "expert_used_count": 99,
    "block_count": 100_000,
    "nextn_predict_layers": 50,
}


@pytest.mark.parametrize("key", ODD_VALUES)
def test_model_with_an_odd_value_is_refused(tmp_path: Path, key: str) -> None:
    metadata = {f"qwen4exp.{key}": ODD_VALUES[key]}
    refuse(tmp_path, metadata, TinySpec(mtp="none", n_layer=8))


@pytest.mark.parametrize("tokenizer", ["none", "no_vocab", "llama"])
def test_model_with_a_tokenizer_that_the_architecture_does_not_have(tmp_path: Path, tokenizer: str) -> None:
    refuse(tmp_path, {"tokenizer.ggml.model": tokenizer}, TinySpec(mtp="none"))


def test_rope_that_turns_more_than_the_index_has(tmp_path: Path) -> None:
    spec = TinySpec(mtp="none", head_dim=64, indexer_head_dim=32)
    refuse(tmp_path, {"qwen4exp.rope.dimension_count": 48}, spec)


def refuse(tmp_path: Path, metadata: dict[str, Any], spec: TinySpec) -> None:
    files = write_tiny_model(tmp_path / "odd.gguf", spec, extra_metadata=metadata)
    with pytest.raises(lb.ModelFormatError) as caught:
        lb.Engine(files.model, n_ctx=64, n_threads=1)
    assert caught.value.path == str(files.model)
    assert caught.value.seen


def test_sidecar_with_an_odd_value_only_costs_the_drafts(tmp_path: Path) -> None:
    good = write_tiny_model(tmp_path / "good.gguf", TinySpec(mtp="sidecar"))
    metadata = {"qwen4exp.attention.layer_norm_rms_epsilon": -1.0}
    odd = write_tiny_model(tmp_path / "odd" / "good.gguf", TinySpec(mtp="sidecar"), extra_metadata=metadata)
    assert good.sidecar is not None
    assert odd.sidecar is not None
    good.sidecar.write_bytes(odd.sidecar.read_bytes())
    with lb.Engine(good.model, n_ctx=64, n_threads=1) as engine:
        assert not engine.spec.effective
        assert "epsilon" in engine.spec.reason
        assert engine.generate("One, two", max_tokens=4).token_ids
