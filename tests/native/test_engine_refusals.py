"""What cannot be done is refused with the right class, and costs nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _models import OpenEngine, WriteModel

import pylucebox as lb
from pylucebox.testing import TinySpec

PROMPT = "def add(a, b):"


@pytest.fixture(scope="module")
def engine(open_model: OpenEngine) -> Iterator[lb.Engine]:
    with open_model("built-in", n_ctx=128, verify_width=4) as opened:
        yield opened


@pytest.fixture(autouse=True)
def still_usable(engine: lb.Engine) -> Iterator[None]:
    """Every refusal leaves the engine as it was."""
    wanted = engine.generate(PROMPT, max_tokens=8).token_ids
    yield
    assert engine.generate(PROMPT, max_tokens=8).token_ids == wanted


@pytest.mark.parametrize("width", [-1, 5, 9, 2.0, "3", True])
def test_width_of_a_request(engine: lb.Engine, width: Any) -> None:
    with pytest.raises(lb.InvalidArgumentError) as caught:
        engine.generate(PROMPT, verify_width=width)
    assert (caught.value.argument, caught.value.value) == ("verify_width", width)


@pytest.mark.parametrize("prompt", ["", []])
def test_empty_prompt(engine: lb.Engine, prompt: Any) -> None:
    with pytest.raises(lb.InvalidArgumentError) as caught:
        engine.generate(prompt)
    assert caught.value.argument == "prompt"


@pytest.mark.parametrize("prompt", [b"bytes", 5, None, [[5]]])
def test_prompt_that_is_neither_text_nor_token_ids(engine: lb.Engine, prompt: Any) -> None:
    with pytest.raises(lb.InvalidArgumentError) as caught:
        engine.generate(prompt)
    assert caught.value.argument == "prompt"


def test_prompt_longer_than_the_context(engine: lb.Engine) -> None:
    with pytest.raises(lb.ContextFullError) as caught:
        engine.generate([5] * 129)
    assert (caught.value.n_ctx, caught.value.n_needed) == (128, 129)


@pytest.mark.parametrize("token", [-1, 2**31, 2**40, 1.5, "a", None])
def test_token_ids_outside_the_vocabulary(engine: lb.Engine, token: Any) -> None:
    for call in (engine.generate, engine.detokenize):
        with pytest.raises(lb.InvalidArgumentError) as caught:
            call([5, token])
        assert caught.value.argument in {"prompt", "ids"}
    with pytest.raises(lb.InvalidArgumentError):
        engine.generate([5, engine.info.n_vocab])


@pytest.mark.parametrize("text", ["\ud800", 5, None, b"bytes"])
def test_text_that_is_none(engine: lb.Engine, text: Any) -> None:
    with pytest.raises(lb.InvalidArgumentError) as caught:
        engine.tokenize(text)
    assert caught.value.argument == "text"


@pytest.mark.parametrize("grammar", ["root ::= )", "root ::= undefined", "not a grammar", 'root ::= "a'])
def test_bad_grammar(engine: lb.Engine, grammar: str) -> None:
    sampling = lb.SamplingParams(grammar=grammar)
    for call in (engine.generate, engine.stream):
        with pytest.raises(lb.InvalidArgumentError) as caught:
            call(PROMPT, sampling=sampling)
        assert caught.value.argument == "sampling"


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a"{5,2}',
        "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(50_000)) + '\nr50000 ::= "a"',
    ],
    ids=["repetition", "parentheses", "rules"],
)
def test_grammar_that_would_hang_or_overflow_the_stack(engine: lb.Engine, grammar: str) -> None:
    with pytest.raises(lb.InvalidArgumentError):
        engine.generate(PROMPT, sampling=lb.SamplingParams(grammar=grammar))


def test_schema_whose_bounds_contradict_each_other(engine: lb.Engine) -> None:
    schema = {"type": "string", "minLength": 5, "maxLength": 2}
    with pytest.raises(lb.InvalidArgumentError):
        engine.generate(PROMPT, sampling=lb.SamplingParams(json_schema=schema))


def test_tool_arguments_nested_too_deep(engine: lb.Engine) -> None:
    function = {"name": "f", "arguments": '{"a":' + "[" * 30_000 + "]" * 30_000 + "}"}
    call = {"type": "function", "id": "1", "function": function}
    with pytest.raises(lb.InvalidArgumentError):
        engine.chat([{"role": "assistant", "content": "", "tool_calls": [call]}], max_tokens=2)


def test_grammar_that_leaves_no_token_fails_the_request_alone(engine: lb.Engine) -> None:
    """The class after the letter is empty, so nothing may follow it, not even the end."""
    sampling = lb.SamplingParams(grammar='root ::= "a" [z-a]', temperature=1.0, seed=1)
    with pytest.raises(lb.DecodeError):
        engine.generate(PROMPT, sampling=sampling)
    assert engine.generate(PROMPT, max_tokens=3).token_ids


def test_schema_that_cannot_become_a_grammar(engine: lb.Engine) -> None:
    with pytest.raises(lb.InvalidArgumentError) as caught:
        engine.generate(PROMPT, sampling=lb.SamplingParams(json_schema={"$ref": "#/nowhere"}))
    assert caught.value.argument == "json_schema"


def test_bias_for_a_token_outside_the_vocabulary(engine: lb.Engine) -> None:
    with pytest.raises(lb.InvalidArgumentError):
        engine.generate(PROMPT, sampling=lb.SamplingParams(logit_bias={engine.info.n_vocab: 1.0}))


def test_bad_prompt_in_a_batch_is_refused_before_anything_runs(engine: lb.Engine) -> None:
    before = engine.stats
    with pytest.raises(lb.InvalidArgumentError):
        engine.generate_many([PROMPT, ""])
    with pytest.raises(lb.InvalidArgumentError):
        engine.generate_many([PROMPT, PROMPT], sampling=[None, lb.SamplingParams(grammar="bad")])
    with pytest.raises(lb.InvalidArgumentError):
        engine.generate_many(PROMPT)
    assert engine.stats == before


def test_roles_and_tools_that_the_template_does_not_know(engine: lb.Engine) -> None:
    for messages, options in (
        ([{"content": "no role"}], {}),
        ([{"role": "user"}], {}),
        ([{"role": "user", "content": {1: 2}}], {}),
        ([{"role": "user", "content": "x"}], {"tools": [{"type": "nothing"}]}),
        ([{"role": "user", "content": float("nan")}], {}),
    ):
        with pytest.raises(lb.InvalidArgumentError):
            engine.chat(messages, max_tokens=2, **options)


def test_missing_model_file(tmp_path: Path) -> None:
    with pytest.raises(lb.ModelNotFoundError) as caught:
        lb.Engine(tmp_path / "missing.gguf")
    assert caught.value.path == str(tmp_path / "missing.gguf")
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100, b"GGUF\x03\x00\x00\x00" + b"\xff" * 64])
def test_file_that_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(lb.ModelFormatError) as caught:
        lb.Engine(path)
    assert caught.value.path == str(path)


def test_directory_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(lb.LoadError):
        lb.Engine(tmp_path)


@pytest.mark.parametrize("keep", [0.999, 0.5, 0.05, 0.001])
def test_truncated_model(tmp_path: Path, write_model: WriteModel, keep: float) -> None:
    whole = write_model(TinySpec()).model.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(lb.ModelFormatError) as caught:
        lb.Engine(path)
    assert caught.value.path == str(path)


def test_missing_sidecar(write_model: WriteModel, tmp_path: Path) -> None:
    with pytest.raises(lb.SidecarNotFoundError) as caught:
        lb.Engine(write_model(TinySpec()).model, mtp=tmp_path / "mtp.gguf")
    assert caught.value.looked_for == (str(tmp_path / "mtp.gguf"),)


@pytest.fixture
def two_models(write_model: WriteModel) -> tuple[Path, Path]:
    """A model without MTP block, and the sidecar of another."""
    ours = write_model(TinySpec(mtp="none")).model
    theirs = write_model(TinySpec(mtp="sidecar", n_embd=192)).sidecar
    assert theirs is not None
    return ours, theirs


def test_sidecar_of_another_model_by_name(two_models: tuple[Path, Path]) -> None:
    ours, theirs = two_models
    with pytest.raises(lb.SidecarMismatchError) as caught:
        lb.Engine(ours, mtp=theirs)
    assert caught.value.field == "qwen4exp.embedding_length"
    assert (caught.value.model_value, caught.value.sidecar_value) == (128, 192)


def test_sidecar_of_another_model_found_beside_it_is_left_out_with_the_reason(
    two_models: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = (shutil.copy(path, tmp_path / path.name) for path in two_models)
    with lb.Engine(ours, n_threads=1) as engine:
        assert [record.levelname for record in caplog.records if record.name == "pylucebox"] == ["WARNING"]
        assert engine.spec.reason_code is lb.SpecReason.SIDECAR_MISMATCH
        assert not engine.sidecar.accepted
        assert engine.generate("a", max_tokens=3, verify_width=4).spec == engine.spec
    with pytest.raises(lb.SpecUnavailableError) as caught:
        lb.Engine(ours, n_threads=1, spec="require")
    assert caught.value.reason_code == "sidecar-mismatch"
    assert Path(theirs).name in caught.value.reason


@pytest.mark.parametrize("options", [{"mtp": "off"}, {"verify_width": 1}, {"mtp": False}])
def test_required_drafts_that_are_switched_off(open_model: OpenEngine, options: dict[str, Any]) -> None:
    with pytest.raises(lb.SpecUnavailableError) as caught:
        open_model("built-in", spec="require", **options)
    assert caught.value.reason_code == "off-requested"


def test_required_drafts_of_a_model_without_mtp_block(write_model: WriteModel) -> None:
    with pytest.raises(lb.SpecUnavailableError) as caught:
        lb.Engine(write_model(TinySpec(mtp="none")).model, spec="require")
    assert caught.value.reason_code == "no-sidecar"


def test_unknown_device_lists_the_known_ones(open_model: OpenEngine) -> None:
    with pytest.raises(lb.BackendUnavailableError) as caught:
        open_model("built-in", device="gpu99")
    assert caught.value.requested == "gpu99"
    assert {"auto", "cpu"} <= set(caught.value.available)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("n_seq", 0), ("n_seq", 9), ("cache_type_k", "q3"), ("verify_width", 9), ("n_ctx", 4097), ("n_threads", 0)],
)
def test_engine_argument_out_of_range(open_model: OpenEngine, argument: str, value: object) -> None:
    with pytest.raises(lb.InvalidArgumentError) as caught:
        open_model("built-in", **{argument: value})
    assert (caught.value.argument, caught.value.value) == (argument, value)


def test_policy_beside_a_fixed_width(open_model: OpenEngine) -> None:
    with pytest.raises(lb.InvalidArgumentError) as caught:
        open_model("built-in", width_policy=lb.FixedWidth(2), verify_width=2)
    assert caught.value.argument == "width_policy"


def test_load_that_its_callback_stops(open_model: OpenEngine) -> None:
    with pytest.raises(lb.CancelledError):
        open_model("built-in", progress=lambda _fraction: False)


def test_width_one_loads_no_mtp_block(open_model: OpenEngine) -> None:
    with open_model("built-in", verify_width=1) as engine:
        assert engine.spec == lb.SpecState(
            requested=False, effective=False, reason_code=lb.SpecReason.OFF_REQUESTED, reason=engine.spec.reason
        )
        assert engine.info.mtp_source == "none"
        assert engine.session_info.n_rs_seq == 0


def test_snapshots_follow_the_widest_width(open_model: OpenEngine) -> None:
    for width, n_rs_seq in ((2, 1), (5, 4), (0, 7)):
        with open_model("built-in", verify_width=width) as engine:
            assert engine.session_info.n_rs_seq == n_rs_seq
