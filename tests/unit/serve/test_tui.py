"""The live view: figures out of what the endpoints say, and the picture of them."""

from __future__ import annotations

import io

from rich.console import Console

from pylucebox.serve.figures import SlotView, View, parse_metrics, view_of
from pylucebox.serve.tui import render

# two slots; passes of 1, 1, 4 and 4 rows, which gave 1, 1, 4 and 2 tokens
METRICS = """
# HELP lucebox_verify_width Rows that a slot verified in a pass
# TYPE lucebox_verify_width histogram
lucebox_verify_width_bucket{slot="0",le="1"} 2
lucebox_verify_width_bucket{slot="0",le="2"} 2
lucebox_verify_width_bucket{slot="0",le="3"} 2
lucebox_verify_width_bucket{slot="0",le="4"} 3
lucebox_verify_width_bucket{slot="0",le="5"} 3
lucebox_verify_width_bucket{slot="0",le="6"} 3
lucebox_verify_width_bucket{slot="0",le="7"} 3
lucebox_verify_width_bucket{slot="0",le="8"} 3
lucebox_verify_width_bucket{slot="0",le="+Inf"} 3
lucebox_verify_width_bucket{slot="1",le="4"} 1
lucebox_verify_width_bucket{slot="1",le="5"} 1
lucebox_verify_width_bucket{slot="1",le="6"} 1
lucebox_verify_width_bucket{slot="1",le="7"} 1
lucebox_verify_width_bucket{slot="1",le="8"} 1
lucebox_accepted_length_sum{slot="0"} 6
lucebox_accepted_length_sum{slot="1"} 2
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 2
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 1
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 1
llamacpp:requests_deferred 3
not a sample
"""
SLOTS = [
    {"id": 0, "is_processing": True, "n_prompt_tokens": 40, "next_token": [{"n_decoded": 7}]},
    {"id": 1, "is_processing": False},
]
HEALTH = {
    "status": "ok",
    "speculative": {"effective": True, "reason": "MTP block from m.gguf", "policy": {"state": "ok"}},
}


def test_figures() -> None:
    metrics = parse_metrics(METRICS)
    view = view_of(metrics, SLOTS, HEALTH, time_s=10.0)
    assert view.slots == (SlotView(0, True, 40, 7), SlotView(1, False))
    assert view.passes_by_width == (2, 0, 0, 2, 0, 0, 0, 0)
    assert view.acceptance == (1.0, 0.5, 0.5, None, None, None, None)
    assert (view.n_queued, view.effective, view.policy) == (3, True, "ok")
    assert view.tokens_per_s is None


def test_speed_is_that_since_the_view_before() -> None:
    before = view_of(parse_metrics(METRICS), SLOTS, HEALTH, time_s=10.0)
    later = METRICS.replace('length_sum{slot="0"} 6', 'length_sum{slot="0"} 36')
    assert view_of(parse_metrics(later), SLOTS, HEALTH, time_s=12.0, before=before).tokens_per_s == 15.0
    # a server that was started again counts from nothing
    assert view_of(parse_metrics(""), SLOTS, HEALTH, time_s=14.0, before=before).tokens_per_s is None


def picture(view: View, **values: object) -> str:
    given = {"state": "ready", "url": "http://127.0.0.1:8080", "resident_bytes": 3 * 2**20, "log": (), **values}
    out = io.StringIO()
    Console(file=out, width=100).print(render(view, **given))  # type: ignore[arg-type]
    return out.getvalue()


def test_picture_has_the_figures() -> None:
    before = view_of(parse_metrics(METRICS), SLOTS, HEALTH, time_s=10.0)
    later = METRICS.replace('length_sum{slot="0"} 6', 'length_sum{slot="0"} 36')
    view = view_of(parse_metrics(later), SLOTS, HEALTH, time_s=12.0, before=before)
    shown = picture(view, log=("I srv  model [loaded]",))
    for text in (
        "15.0 tok/s",
        "3 waiting",
        "3 MiB",
        "drafts on: MTP block from m.gguf",
        "busy",
        "idle",
        "model [loaded]",
    ):
        assert text in shown
    assert "policy:" not in shown


def test_picture_of_a_server_that_does_not_answer() -> None:
    shown = picture(View(), state="waiting, started 2 times", resident_bytes=None)
    assert "waiting, started 2 times" in shown
    assert "MiB" not in shown


def test_policy_that_failed_is_shown() -> None:
    policy = {"state": "failed", "reason": "KeyError: 'x'"}
    view = view_of({}, [], {"speculative": {"effective": True, "reason": "r", "policy": policy}}, time_s=0.0)
    assert "policy: KeyError: 'x'" in picture(view)
