"""Files whose header reads well and whose values would end the process: each gets an error that names the value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pylucebox as lb
from pylucebox.testing import TinySpec, write_tiny_model

ODD_VALUES: dict[str, Any] = {
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
    files = write_tiny_model(tmp_path / "odd.gguf", TinySpec(mtp="none"), extra_metadata=metadata)
    with pytest.raises(lb.ModelFormatError) as caught:
        lb.Engine(files.model, n_ctx=64, n_threads=1)
    assert caught.value.path == str(files.model)


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
