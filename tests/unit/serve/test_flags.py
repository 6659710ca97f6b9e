"""The command line of `lucebox-serve`."""

from __future__ import annotations

from typing import Any

import pytest

from pylucebox import InvalidArgumentError
from pylucebox._build import DEMO_MODEL
from pylucebox.serve.flags import parse_flags, without_owned_variables

MODEL = ("-m", "model.gguf")


def test_model_is_all_that_is_needed() -> None:
    flags = parse_flags(MODEL, {})
    assert flags.model == "model.gguf"
    assert (flags.mtp, flags.verify_width, flags.spec) == ("auto", 0, "auto")
    assert (flags.hosts, flags.port) == (("127.0.0.1",), 8080)
    assert flags.rest == ("--parallel", "4")


def test_what_is_not_ours_goes_through_in_order() -> None:
    rest = ("--ctx-size", "4096", "-md2", "x", "-t", "3", "--alias", "a=b", "--temp", "-1")
    flags = parse_flags((*rest[:4], *MODEL, "--verify-width", "4", *rest[4:]), {})
    assert flags.rest == (*rest, "--parallel", "4")
    assert flags.verify_width == 4


@pytest.mark.parametrize(
    ("words", "environment", "added"),
    [
        ((), {}, True),
        (("--no-kv-unified",), {}, True),
        (("-c", "4096"), {}, True),
        (("-np", "2"), {}, False),
        (("--parallel", "8"), {}, False),
        (("--kv_unified",), {}, False),
        (("-kvu",), {}, False),
        (("--kv-unified-per-slot", "4096"), {}, False),
        ((), {"LLAMA_ARG_N_PARALLEL": "2"}, False),
        ((), {"LLAMA_ARG_KV_UNIFIED": "1"}, False),
        (("--embeddings",), {}, False),
    ],
)
def test_slots_have_cells_of_their_own_unless_told_otherwise(
    words: tuple[str, ...], environment: dict[str, str], added: bool
) -> None:
    flags = parse_flags((*MODEL, *words), environment)
    assert flags.rest == (*words, *(("--parallel", "4") if added else ()))


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (("--verify-width=3",), "verify_width", 3),
        (("--verify_width", "3"), "verify_width", 3),
        (("--mtp", "off"), "mtp", "off"),
        (("--mtp", "a/mtp.gguf"), "mtp", "a/mtp.gguf"),
        (("--spec", "require"), "spec", "require"),
        (("--host", "127.0.0.1, ::1"), "hosts", ("127.0.0.1", "::1")),
        (("--host", "/run/lucebox.sock"), "hosts", ("/run/lucebox.sock",)),
        (("--host", "0.0.0.0", "--api-key", "k"), "hosts", ("0.0.0.0",)),
        (("--host", "0.0.0.0", "--insecure-open"), "hosts", ("0.0.0.0",)),
        (("--port", "0"), "port", 0),
        ((), "even_drafts", True),
        (("--no-even-drafts",), "even_drafts", False),
        (("--drain-timeout", "1.5"), "drain_s", 1.5),
        (("--ssl-key-file", "k", "--ssl-cert-file", "c"), "tls", True),
        (("--api-prefix", "/v"), "prefix", "/v"),
        (("--tui",), "tui", True),
        (("--api-key", "one,two"), "api_key", "one"),
        (("--embeddings",), "no_drafts", "a server of embeddings generates nothing"),
    ],
    ids=str,
)
def test_flag_is_understood(words: tuple[str, ...], field: str, value: Any) -> None:
    assert getattr(parse_flags((*MODEL, *words), {}), field) == value


def test_built_in_model_runs_on_one_thread_unless_told_otherwise() -> None:
    assert parse_flags(("--demo",), {}).model == str(DEMO_MODEL)
    assert parse_flags(("--demo",), {}).rest == ("--threads", "1", "--threads-batch", "1", "--parallel", "4")
    assert parse_flags(("--demo", "-t", "2"), {}).rest == ("-t", "2", "--threads-batch", "1", "--parallel", "4")


def test_variables_of_llama_server_count_where_no_flag_does() -> None:
    environment = {
        "LLAMA_ARG_MODEL": "there.gguf",
        "LLAMA_ARG_PORT": "81",
        "LLAMA_ARG_HOST": "0.0.0.0",
        "LLAMA_API_KEY": "k",
    }
    flags = parse_flags((), environment)
    assert (flags.model, flags.port, flags.hosts) == ("there.gguf", 81, ("0.0.0.0",))
    assert parse_flags((*MODEL, "--port", "82"), environment).port == 82
    assert without_owned_variables(environment) == {"LLAMA_API_KEY": "k"}


@pytest.mark.parametrize(
    ("words", "argument", "reason"),
    [
        ((), "-m", "no model"),
        (("--demo", *MODEL), "--demo", "its own model"),
        ((*MODEL, "-m", "b.gguf"), "-m", "twice"),
        ((*MODEL, "--verify-width", "9"), "--verify-width", "from 0 to 8"),
        ((*MODEL, "--verify-width", "x"), "--verify-width", "from 0 to 8"),
        ((*MODEL, "--verify-width"), "--verify-width", "missing"),
        ((*MODEL, "--spec", "maybe"), "--spec", "auto or require"),
        ((*MODEL, "--port", "65536"), "--port", "65535"),
        ((*MODEL, "--port", "0", "--host", "127.0.0.1,::1"), "--port", "share"),
        ((*MODEL, "--host", ","), "--host", "comma-separated"),
        ((*MODEL, "--drain-timeout", "nan"), "--drain-timeout", "seconds"),
        ((*MODEL, "--mtp", "off", "--verify-width", "4"), "--mtp", "--verify-width 4"),
        ((*MODEL, "--mtp", "a.gguf", "--verify-width", "1"), "--mtp", "--verify-width 1"),
        ((*MODEL, "--spec", "require", "--mtp", "off"), "--spec", "--mtp off"),
        ((*MODEL, "--spec", "require", "--verify-width", "1"), "--spec", "--verify-width 1"),
        ((*MODEL, "--spec", "require", "--embeddings"), "--spec", "embeddings"),
        ((*MODEL, "--rerank", "--verify-width", "2"), "--verify-width", "ranks"),
        ((*MODEL, "--host", "192.0.2.1"), "--host", "--insecure-open"),
        ((*MODEL, "--host", "example.org"), "--host", "--insecure-open"),
        ((*MODEL, "--host", "::"), "--host", "--insecure-open"),
        ((*MODEL, "--spec-type", "draft-mtp"), "--spec-type", "--mtp"),
        ((*MODEL, "--spec_type", "draft-mtp"), "--spec-type", "--mtp"),
        ((*MODEL, "-md", "a.gguf"), "-md", "--mtp"),
        ((*MODEL, "--spec-draft-sampling", "probabilistic"), "--spec-draft-sampling", "text"),
        ((*MODEL, "--tui", "--no-slots"), "--tui", "/slots"),
        ((*MODEL, "--tui", "--host", "/run/a.sock"), "--tui", "HTTP"),
        ((*MODEL, "--even-drafts", "--no-even-drafts"), "--even-drafts", "--no-even-drafts"),
        ((*MODEL, "--reuse-port"), "--reuse-port", "owns the port"),
        (("-hf", "a/b"), "-hf", "download"),
    ],
    ids=str,
)
def test_what_contradicts_is_refused_with_the_reason(words: tuple[str, ...], argument: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_flags(words, {})
    assert caught.value.argument == argument
    assert reason in str(caught.value)


def test_variable_of_the_fork_that_had_even_drafts_first() -> None:
    environment = {"STRIX_SPEC_EVEN_DRAFTS": "0"}
    assert parse_flags(MODEL, environment).even_drafts is False
    assert parse_flags((*MODEL, "--even-drafts"), environment).even_drafts is True


def test_variable_that_would_change_the_drafts_is_refused() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_flags(MODEL, {"LLAMA_ARG_SPEC_TYPE": "ngram-simple"})
    assert caught.value.argument == "LLAMA_ARG_SPEC_TYPE"
