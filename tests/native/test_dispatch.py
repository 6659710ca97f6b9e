"""The engine takes the path that its dispatch says."""

from __future__ import annotations

from typing import Any

import pytest
from _models import OpenEngine

from pylucebox import InvalidArgumentError, Kernels, Promise, system_info


@pytest.mark.parametrize(
    ("model", "options", "max_rows", "together"),
    [
        ("mixed, in-file", {}, 8, 8),
        ("mixed, sidecar", {"verify_width": 4}, 4, 4),
        ("mixed, borrowing sidecar", {"verify_width": 8, "n_seq": 3}, 8, 2),
        ("mixed, in-file", {"verify_width": 1}, 1, 1),
        ("mixed, sidecar", {"mtp": "off"}, 1, 1),
        ("mixed, in-file", {"n_seq": 8}, 8, 1),
    ],
)
def test_cycles_have_the_rows_that_dispatch_says(
    open_model: OpenEngine, model: str, options: dict[str, Any], max_rows: int, together: int
) -> None:
    n_seq = options.get("n_seq", 1)
    with open_model(model, n_ctx=128, **options) as engine:
        path = engine.dispatch
        assert (path.max_rows, path.rows_together) == (max_rows, together)
        assert path.spec == engine.spec
        assert engine.session_info.max_width == max_rows
        width = max_rows if path.spec.effective else None
        steps = list(engine.stream("One, two", max_tokens=32, verify_width=width))
        assert max(step.cycle.n_rows for step in steps if step.cycle) == max_rows
        done = engine.generate_many(["One, two"] * n_seq, max_tokens=24, verify_width=width)
        assert all(one.token_ids == done[0].token_ids for one in done)
        deepest = max(one.stats.num_draft_tokens / max(1, one.stats.cycles) for one in done)
        assert deepest <= max(together, 8 - n_seq + 1) - 1 or n_seq == 1


def test_the_promise_is_that_of_this_machine(open_model: OpenEngine) -> None:
    features = system_info().backends[0].features
    with open_model("mixed, in-file", n_ctx=64, device="cpu") as engine:
        assert "AMX_INT8" not in features  # cmake/no-amx.cmake leaves these kernels out
        assert engine.dispatch.promise is (Promise.BITS if "AVX2" in features else Promise.UNVERIFIED)
        assert engine.dispatch.step(8) == (Kernels.FEW_ROWS, engine.dispatch.reason)


def test_a_quantised_v_cache_without_flash_attention_is_refused_before_loading(open_model: OpenEngine) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        open_model("mixed, in-file", flash_attn=False, cache_type_v="q8_0")
    assert caught.value.argument == "cache_type_v"
    with open_model("mixed, in-file", n_ctx=64, flash_attn=False, cache_type_k="q8_0") as engine:
        assert engine.generate("One", max_tokens=4).token_ids
