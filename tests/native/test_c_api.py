"""What lucebox.h refuses when it is called without the checks of the Python layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from _models import WriteModel

from pylucebox import _ffi
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox.testing import TinySpec


@pytest.fixture(scope="module")
def ffi() -> Any:
    return _ffi.native().ffi


@pytest.fixture(scope="module")
def lib() -> Any:
    return _ffi.native().lib


@pytest.fixture(scope="module")
def model(write_model: WriteModel) -> Iterator[Model]:
    opened = Model(ModelOptions(path=write_model(TinySpec()).model))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def session(model: Model) -> Iterator[NativeSession]:
    opened = NativeSession(model, SessionOptions(n_ctx=64))
    yield opened
    opened.close()


def refused(status: int, text: str) -> None:
    ffi, lib = _ffi.native()
    assert status == lib.LUCEBOX_ERR_ARGUMENT
    assert text in _ffi.string(ffi, lib.lucebox_last_error())


def test_every_handle_may_not_be_null(ffi: Any, lib: Any) -> None:
    null = ffi.NULL
    out, n, text = ffi.new("void **"), ffi.new("size_t *"), ffi.new("char **")
    numbers, reals = ffi.new("int32_t[8]"), ffi.new("float[8]")
    sampler, session_params = ffi.new("lucebox_sampler_params *"), ffi.new("lucebox_session_params *")
    lib.lucebox_sampler_params_init(sampler)
    lib.lucebox_session_params_init(session_params)
    info, requests = ffi.new("lucebox_model_info *"), ffi.new("lucebox_cycle_request[8]")
    results, stats = ffi.new("lucebox_cycle_result[8]"), ffi.new("lucebox_cycle_stats *")
    session_info, proposals = ffi.new("lucebox_session_info *"), ffi.new("lucebox_proposal[8]")
    for struct in (info, stats, session_info):
        struct.struct_size = ffi.sizeof(struct[0])
    refused(lib.lucebox_model_open(null, ffi.cast("lucebox_model **", out)), "params is NULL")
    refused(lib.lucebox_model_get_info(null, info), "model is NULL")
    refused(lib.lucebox_model_meta(null, b"key", text), "model is NULL")
    refused(lib.lucebox_tokenize(null, b"a", 1, False, False, numbers, 8, n), "model is NULL")
    refused(lib.lucebox_token_bytes(null, 0, False, null, 0, n), "model is NULL")
    refused(lib.lucebox_detokenize(null, numbers, 1, False, null, 0, n), "model is NULL")
    refused(lib.lucebox_chat_render(null, b"{}", text), "model is NULL")
    refused(lib.lucebox_sampler_open(null, sampler, ffi.cast("lucebox_sampler **", out)), "model is NULL")
    refused(lib.lucebox_sampler_describe(null, text), "sampler is NULL")
    refused(lib.lucebox_session_open(null, session_params, ffi.cast("lucebox_session **", out)), "model is NULL")
    refused(lib.lucebox_session_get_info(null, session_info), "session is NULL")
    refused(lib.lucebox_session_clear(null, 0), "session is NULL")
    refused(
        lib.lucebox_session_prefill(null, 0, numbers, 8, null, False, null, null, numbers, numbers), "session is NULL"
    )
    refused(lib.lucebox_session_cycle(null, requests, results, stats), "session is NULL")
    refused(lib.lucebox_session_draft(null, 0, 1, numbers, reals), "session is NULL")
    refused(lib.lucebox_session_propose(null, numbers, proposals, null), "session is NULL")
    refused(lib.lucebox_session_force(null, 0, 1), "session is NULL")
    refused(lib.lucebox_session_state_save(null, 0, null, 0, n), "session is NULL")
    refused(lib.lucebox_session_state_load(null, 0, b"", 0, null), "sampler is NULL")


def test_results_need_a_place(ffi: Any, lib: Any, model: Model, session: NativeSession) -> None:
    null = ffi.NULL
    with model.handle as handle:
        refused(lib.lucebox_model_meta(handle, b"general.name", null), "out_text is NULL")
        refused(lib.lucebox_model_meta(handle, null, ffi.new("char **")), "key is NULL")
        refused(lib.lucebox_tokenize(handle, b"ab", 2, False, False, null, 8, ffi.new("size_t *")), "room was given")
        refused(lib.lucebox_tokenize(handle, null, 2, False, False, null, 0, ffi.new("size_t *")), "text is NULL")
        refused(lib.lucebox_detokenize(handle, null, 2, False, null, 0, ffi.new("size_t *")), "tokens is NULL")
        refused(lib.lucebox_chat_render(handle, b"{}", null), "out_json is NULL")
    refused(lib.lucebox_system_info(null), "out_json is NULL")
    refused(session._calls.run(lib.lucebox_session_cycle, null, null, null), "requests is NULL")
    refused(session._calls.run(lib.lucebox_session_propose, null, null, null), "n_more is NULL")
    none = ffi.new("int32_t[]", session.n_seq)
    refused(session._calls.run(lib.lucebox_session_propose, none, null, null), "out is NULL")
    proposals = ffi.new("lucebox_proposal[]", session.n_seq)
    assert session._calls.run(lib.lucebox_session_propose, none, proposals, null) == 0  # the time may be left out


def test_what_has_no_status_does_nothing(ffi: Any, lib: Any) -> None:
    null = ffi.NULL
    for close in (lib.lucebox_model_close, lib.lucebox_sampler_close, lib.lucebox_session_close):
        close(null)
    for init in (lib.lucebox_model_params_init, lib.lucebox_sampler_params_init, lib.lucebox_session_params_init):
        init(null)
    lib.lucebox_session_abort(null)
    lib.lucebox_session_abort_reset(null)
    assert lib.lucebox_session_logits(null, 0, 0) == null
    assert lib.lucebox_session_n_past(null, 0) == 0
    assert lib.lucebox_token_is_eog(null, 0) is False


@pytest.mark.parametrize("struct_size", [0, 4, 12, 100])
def test_struct_size_that_cuts_a_field(ffi: Any, lib: Any, struct_size: int) -> None:
    """Half a pointer from the caller and half of the default is no pointer."""
    params = ffi.new("lucebox_model_params *")
    lib.lucebox_model_params_init(params)
    path = ffi.new("char[]", b"/")
    params.path, params.struct_size = path, struct_size
    refused(lib.lucebox_model_open(params, ffi.new("lucebox_model **")), "struct_size")


@pytest.mark.parametrize("name", [b"q8_1", b"q8_K", b"i32", b"f64", b"nothing", b""])
def test_types_that_floats_cannot_be_stored_as(ffi: Any, lib: Any, name: bytes) -> None:
    rows, out, size = ffi.new("float[256]"), ffi.new("char[4096]"), ffi.new("size_t *")
    status = lib.lucebox_quantize(name, rows, 1, 256, out, 4096, size)
    refused(status, "cannot be stored" if name not in (b"nothing", b"") else "no tensor type")


@pytest.mark.parametrize("name", [b"f16", b"q8_0", b"q4_K", b"iq2_xxs", b"iq4_nl"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e30, 65536.0])
def test_values_that_the_search_for_scales_cannot_take(ffi: Any, lib: Any, name: bytes, value: float) -> None:
    rows, out, size = ffi.new("float[256]", [value] * 256), ffi.new("char[4096]"), ffi.new("size_t *")
    refused(lib.lucebox_quantize(name, rows, 1, 256, out, 4096, size), "holds numbers up to")


@pytest.mark.parametrize(("n_rows", "n_per_row"), [(2**62, 32), (2**60, 2**60), (-1, 32), (1, 0), (2**31, 2**31)])
def test_sizes_that_no_memory_holds(ffi: Any, lib: Any, n_rows: int, n_per_row: int) -> None:
    status = lib.lucebox_quantize(b"q8_0", ffi.NULL, n_rows, n_per_row, ffi.NULL, 0, ffi.new("size_t *"))
    assert status in (lib.LUCEBOX_OK, lib.LUCEBOX_ERR_ARGUMENT)
    if n_rows > 2**32:
        refused(status, "more than any memory holds")


@pytest.mark.parametrize(
    "render",
    [b'{"format": "x"}', b'{"format": 99999}', b'{"format": 0, "parser": "}{"}', b'{"format": 0, "parser": 5}'],
)
def test_render_result_that_is_none(ffi: Any, lib: Any, render: bytes) -> None:
    refused(lib.lucebox_chat_parse(render, b"text", False, ffi.new("char **")), "lucebox_chat_render()")


@pytest.mark.parametrize(
    "chat", [b'{"grammar": 5}', b'{"grammar_triggers": [{"type": "x"}]}', b'{"preserved_tokens": [1]}']
)
def test_chat_json_that_is_none(ffi: Any, lib: Any, model: Model, chat: bytes) -> None:
    params = ffi.new("lucebox_sampler_params *")
    lib.lucebox_sampler_params_init(params)
    text = ffi.new("char[]", chat)
    params.chat_json = text
    with model.handle as handle:
        refused(lib.lucebox_sampler_open(handle, params, ffi.new("lucebox_sampler **")), "chat_json")


@pytest.mark.parametrize("field", ["n_prev", "penalty_last_n", "dry_penalty_last_n"])
@pytest.mark.parametrize("value", [-2, 2**24 + 1, 2**31 - 1])
def test_history_that_would_take_all_memory(ffi: Any, lib: Any, model: Model, field: str, value: int) -> None:
    params = ffi.new("lucebox_sampler_params *")
    lib.lucebox_sampler_params_init(params)
    setattr(params, field, value)
    with model.handle as handle:
        refused(lib.lucebox_sampler_open(handle, params, ffi.new("lucebox_sampler **")), field)
