"""`lucebox generate` on a made-up engine."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

Lucebox = Callable[..., int]


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_text_goes_to_standard_output_and_one_line_of_figures_to_standard_error(
    lucebox: Lucebox, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lucebox("generate", "hello", "--max-tokens", "5", "--verify-width", "3") == 0
    captured = capsys.readouterr()
    assert captured.out.count("<") == 5
    assert captured.out.endswith(">\n")
    (line,) = captured.err.splitlines()
    for part in ("5 tokens (length)", "tok/s", "drafts accepted", "tokens per cycle", "MTP on: the MTP file fits"):
        assert part in line


def test_the_line_says_why_mtp_is_off(lucebox: Lucebox, capsys: pytest.CaptureFixture[str]) -> None:
    lucebox("generate", "hello", "--mtp", "off")
    line = capsys.readouterr().err
    assert "MTP off: mtp is off" in line
    assert "drafts accepted" not in line


def test_text_is_shown_before_the_generation_is_over(
    lucebox: Lucebox, factory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def watch(engine: Any) -> None:
        engine.on_step = lambda _done: seen.append(capsys.readouterr().out)

    factory.adjust = watch
    lucebox("generate", "hello", "--max-tokens", "6", "--mtp", "off")
    assert [text.count("<") for text in seen] == [0, 1, 1, 1, 1, 1]


def test_json_is_one_document_with_completion_stats_spec_and_sidecar(
    lucebox: Lucebox, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lucebox("generate", "hello", "--json", "--max-tokens", "4") == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"schema", "model", "completion", "stats", "spec", "sidecar"}
    assert len(document["completion"]["token_ids"]) == 4
    assert document["completion"]["digest"]
    assert document["stats"]["completion_tokens"] == 4
    assert document["spec"]["reason_code"] == "active"
    assert document["sidecar"]["reason_code"] == "no-sidecar"


def test_flags_reach_the_engine(lucebox: Lucebox, factory: Any) -> None:
    flags = ("--mtp", "m.gguf", "--verify-width", "4", "--spec", "require", "--n-ctx", "512", "--threads", "3")
    lucebox("generate", "x", "-m", "model.gguf", *flags, "--device", "cpu", "--stop", "END", "--stop", "##")
    options = factory.opened[0].options
    assert (options.model, options.mtp, options.verify_width) == ("model.gguf", "m.gguf", 4)
    assert (options.spec, options.n_ctx, options.n_threads, options.device) == ("require", 512, 3, "cpu")
    assert factory.opened[0].calls[0]["stop"] == ["END", "##"]


def test_the_built_in_model_is_the_default_and_excludes_another(lucebox: Lucebox, factory: Any) -> None:
    lucebox("generate", "x")
    lucebox("generate", "x", "--demo")
    assert [engine.options.model for engine in factory.opened] == [None, None]
    assert lucebox("generate", "x", "--demo", "-m", "model.gguf") == 2


def test_the_built_in_model_runs_on_one_thread_and_others_on_what_the_engine_chooses(
    lucebox: Lucebox, factory: Any
) -> None:
    lucebox("generate", "x")
    lucebox("generate", "x", "--threads", "2")
    lucebox("generate", "x", "-m", "model.gguf")
    assert [engine.options.n_threads for engine in factory.opened] == [1, 2, None]


def test_decoding_is_greedy_unless_a_temperature_is_given(lucebox: Lucebox, factory: Any) -> None:
    lucebox("generate", "x")
    assert factory.opened[0].calls[0]["sampling"] is None
    lucebox("generate", "x", "--temperature", "0.7", "--top-k", "5", "--seed", "9")
    sampling = factory.opened[1].calls[0]["sampling"]
    assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.top_p) == (0.7, 5, 9, 0.95)


def test_a_sampling_flag_without_effect_is_pointed_out(lucebox: Lucebox, capsys: pytest.CaptureFixture[str]) -> None:
    lucebox("generate", "x", "--top-p", "0.5", "--seed", "3")
    assert "--top-p, --seed: no effect at temperature 0" in capsys.readouterr().err


def test_the_seed_that_was_drawn_is_reported(lucebox: Lucebox, capsys: pytest.CaptureFixture[str]) -> None:
    lucebox("generate", "x", "--temperature", "1", "--json")
    captured = capsys.readouterr()
    seed = json.loads(captured.out)["completion"]["seed"]
    assert isinstance(seed, int)
    assert f"seed {seed}" in captured.err


def test_a_dash_reads_the_prompt_from_standard_input(
    lucebox: Lucebox, factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, "naïve\nlines\n".encode())
    lucebox("generate", "-")
    assert factory.opened[0].calls[0]["prompt"] == "naïve\nlines\n"


def test_standard_input_that_is_not_utf8_is_refused_with_its_place(
    lucebox: Lucebox, factory: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give_stdin(monkeypatch, b"abc\xff")
    assert lucebox("generate", "-") == 2
    assert "byte 3" in capsys.readouterr().err
    assert factory.opened == []


def test_missing_standard_input_is_refused(
    lucebox: Lucebox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert lucebox("generate", "-") == 2
    assert "standard input is closed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--top-p", "1.5"),
        ("--top-k", "-1"),
        ("--seed", "-1"),
        ("--seed", "4294967295"),
        ("--verify-width", "9"),
        ("--max-tokens", "ten"),
        ("--n-ctx", "0"),
        ("--spec", "maybe"),
    ],
)
def test_values_out_of_range_are_usage_errors(lucebox: Lucebox, factory: Any, flags: tuple[str, str]) -> None:
    assert lucebox("generate", "x", *flags) == 2
    assert factory.opened == []
