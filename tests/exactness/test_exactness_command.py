"""`lucebox exactness` on real models: the built-in one, and random ones of every weight type."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylucebox import LibraryNotFoundError
from pylucebox._build import DEMO_MODEL, find_native_dir
from pylucebox.cli._exactness_prompts import SETTINGS
from pylucebox.cli._exactness_report import Report, sentences
from pylucebox.cli._exactness_run import OpenBench, engine_options, run_case
from pylucebox.cli.main import main
from pylucebox.testing import K_QUANT_SPEC, TinySpec, write_tiny_model

WEIGHT_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "iq4_nl", "iq4_xs", "iq3_s")


def _is_built() -> bool:
    try:
        find_native_dir()
    except LibraryNotFoundError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _is_built(), reason="the native library is not built")


def document(capsys: pytest.CaptureFixture[str], *flags: str, status: int = 0) -> Any:
    found = main(["exactness", "--json", *flags])
    captured = capsys.readouterr()
    assert found == status, captured.err
    return json.loads(captured.out)


def test_the_built_in_model_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--prompts", "3", "--tokens", "20")
    assert (found["identical"], found["same_tokens"], found["same_bits"], found["fault"]) == (True, True, True, "none")
    assert found["model"] == str(DEMO_MODEL)
    assert found["spec"]["effective"] is True
    by_width = {entry["width"]: entry for entry in found["widths"]}
    assert by_width[1]["n_drafted"] == 0
    for width in range(2, 9):
        assert by_width[width]["n_drafted"] > by_width[width]["n_accepted"] > 0 < by_width[width]["n_rollbacks"]
    assert len({case["logits_digest"] for case in found["cases"]}) >= 7  # of 9; some seeds draw what is likeliest


@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
def test_random_models_are_exact_in_every_weight_type(tmp_path: Path, weight_type: str) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", replace(K_QUANT_SPEC, weight_type=weight_type, mtp="sidecar")).model
    planned = [(text, text, setting) for text in ("Count: 1, 2,", "{a: [") for setting in (SETTINGS[0], SETTINGS[3])]
    with OpenBench(engine_options(model, mtp="auto", n_ctx=64, n_threads=1, device="cpu")) as opened:
        results = [run_case(opened.bench, case, 16, lambda _what: None) for case in opened.cases(planned)]
        assert opened.sidecar.kind == "sidecar"
    report = Report(tuple(results))
    assert report.identical, sentences(report)


def test_a_model_without_drafts_is_an_error_and_not_a_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", TinySpec(mtp="none")).model
    for flags, code in ((("-m", str(model)), "no-sidecar"), (("--mtp", "off"), "off-requested")):
        error = document(capsys, *flags, status=1)["error"]
        assert (error["type"], error["reason_code"]) == ("SpecUnavailableError", code)


def test_what_does_not_fit_the_context_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_model(tmp_path / "m.gguf").model
    flags = ("-m", str(model), "--threads", "1", "--n-ctx", "140", "--tokens", "8", "--prompts", "3")
    found = document(capsys, *flags)
    assert {case["prompt"] for case in found["cases"]} == {"counting"}
    assert [line.split("'")[1] for line in found["left_out"]] == ["code", "prose"]


def test_the_page_is_plain_lines_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exactness", "--prompts", "1", "--tokens", "8"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "Runs that are the same as decoding token by token"
    assert [line.split()[0] for line in lines[2:11]] == [*"12345678", "adaptive"]
    assert lines[-1].startswith("Exact: every token")
    assert "\x1b" not in captured.out + captured.err
    assert "30 of 30 runs" in captured.err
