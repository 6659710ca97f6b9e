"""One request after the other: ends, cancellation, closing, interrupts."""

from __future__ import annotations

import _thread
import json
import logging
import signal
import threading
from collections.abc import Iterator

import pytest
from _models import OpenEngine

from pylucebox import (
    ClosedError,
    Engine,
    ModelNotFoundError,
    SamplingParams,
    SequenceStateError,
    Step,
    _ffi,
)
from pylucebox._session import FINISH_CONTEXT, FINISH_EOG, FINISH_FAILED, FINISH_LIMIT, FINISH_NONE

PROMPT = "def add(a, b):"
WIDTHS = [1, 2, 4, 8]


@pytest.fixture
def engine(open_model: OpenEngine) -> Iterator[Engine]:
    """An engine that a test may break."""
    with open_model("built-in") as opened:
        yield opened


def eog_of(engine: Engine) -> int:
    return next(token for token in range(engine.info.n_vocab) if engine._model.is_eog(token))


@pytest.mark.parametrize("width", WIDTHS)
def test_stop_string_ends_at_the_same_token_whatever_the_width(demo: Engine, plain: Engine, width: int) -> None:
    whole = plain.generate(PROMPT, max_tokens=60)
    stop = whole.text[20:23]
    wanted = plain.generate(PROMPT, max_tokens=60, stop=stop)
    got = demo.generate(PROMPT, max_tokens=60, stop=[stop, "never said"], verify_width=width)
    assert got.text == wanted.text == whole.text[: whole.text.index(stop)]
    assert got.token_ids == wanted.token_ids
    assert (got.finish_reason, got.stop_sequence) == ("stop", stop)


@pytest.mark.parametrize("limit", range(1, 12))
@pytest.mark.parametrize("width", WIDTHS)
def test_limit_is_exact(demo: Engine, plain: Engine, width: int, limit: int) -> None:
    wanted = plain.generate(PROMPT, max_tokens=16)
    got = demo.generate(PROMPT, max_tokens=limit, verify_width=width)
    assert got.token_ids == wanted.token_ids[:limit]
    assert got.finish_reason == "length"


@pytest.mark.parametrize("width", WIDTHS)
def test_end_token_behind_accepted_drafts_ends_the_text(demo: Engine, plain: Engine, width: int) -> None:
    # A bias that grows the end token's chance just enough that it comes up in the middle of a text.
    sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0, seed=3, logit_bias={eog_of(demo): 7.0})
    wanted = plain.generate(PROMPT, max_tokens=400, sampling=sampling)
    got = demo.generate(PROMPT, max_tokens=400, sampling=sampling, verify_width=width)
    assert wanted.finish_reason == "stop"
    assert len(wanted.token_ids) > 2
    assert got.token_ids == wanted.token_ids
    assert (got.text, got.finish_reason, got.stop_sequence) == (wanted.text, "stop", None)
    assert not any(demo._model.is_eog(token) for token in got.token_ids)


@pytest.mark.parametrize("width", WIDTHS)
def test_full_context_ends_with_its_own_reason(open_model: OpenEngine, width: int) -> None:
    with open_model("built-in", n_ctx=32, verify_width=width) as engine:
        got = engine.generate(PROMPT, max_tokens=100)
        assert got.finish_reason == "context"
        assert got.prompt_tokens + len(got.token_ids) == 33  # the last token needs no cell


def test_prompt_may_fill_the_context(open_model: OpenEngine) -> None:
    with open_model("built-in", n_ctx=32) as engine:
        got = engine.generate([5] * 32, max_tokens=100)
        assert (len(got.token_ids), got.finish_reason) == (1, "context")


def test_second_request_equals_the_first_and_a_fresh_engine(engine: Engine, plain: Engine) -> None:
    first = engine.generate(PROMPT, max_tokens=40)
    engine.generate("something quite different", max_tokens=40, verify_width=8)
    again = engine.generate(PROMPT, max_tokens=40)
    assert first.token_ids == again.token_ids == plain.generate(PROMPT, max_tokens=40).token_ids


def test_steps_add_up_to_the_completion(engine: Engine) -> None:
    steps: list[Step] = []
    stream = engine.stream(PROMPT, max_tokens=40, verify_width=4, logprobs=1)
    while True:
        try:
            steps.append(next(stream))
        except StopIteration as end:
            completion = end.value
            break
    assert "".join(step.text for step in steps) == completion.text
    assert tuple(token for step in steps for token in step.token_ids) == completion.token_ids
    assert sum(len(step.logprobs or ()) for step in steps) == 40
    assert all(len(step.from_draft) == len(step.token_ids) for step in steps)
    assert sum(sum(step.from_draft) for step in steps) == completion.stats.num_accepted_tokens
    assert completion.stats.cycles == len(steps) - 1
    assert completion.token_ids == engine.generate(PROMPT, max_tokens=40).token_ids


def test_prompt_as_token_ids_equals_prompt_as_text(engine: Engine) -> None:
    ids = engine.tokenize(PROMPT, add_special=True)
    assert engine.generate(ids, max_tokens=8).token_ids == engine.generate(PROMPT, max_tokens=8).token_ids


def test_stream_closed_early_frees_the_engine(engine: Engine) -> None:
    stream = engine.stream(PROMPT)
    next(stream)
    next(stream)
    stream.close()
    assert engine.generate(PROMPT, max_tokens=4).finish_reason == "length"
    assert engine.stats.requests == 2


def test_stream_that_was_never_started_holds_nothing(engine: Engine) -> None:
    stream = engine.stream(PROMPT)
    assert engine.generate(PROMPT, max_tokens=4).finish_reason == "length"
    assert next(stream).finish_reason is None
    stream.close()


def test_second_stream_of_a_thread_is_refused_and_the_first_goes_on(engine: Engine) -> None:
    stream = engine.stream(PROMPT, max_tokens=10)
    next(stream)
    with pytest.raises(SequenceStateError):
        engine.generate(PROMPT)
    assert sum(len(step.token_ids) for step in stream) == 9


def test_threads_take_turns(engine: Engine) -> None:
    digests: list[str] = []
    threads = [
        threading.Thread(target=lambda: digests.append(engine.generate(PROMPT, max_tokens=20).digest)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(digests) == 4
    assert len(set(digests)) == 1


def test_cancel_from_another_thread_ends_the_generation_and_keeps_the_text(engine: Engine) -> None:
    stream = engine.stream(PROMPT, max_tokens=1000, sampling=SamplingParams(temperature=0, ignore_eos=True))
    steps = [next(stream)]
    thread = threading.Thread(target=engine.cancel)
    thread.start()
    steps += list(stream)
    thread.join()
    assert steps[-1].finish_reason == "cancelled"
    assert sum(len(step.token_ids) for step in steps) < 1000
    assert engine.generate(PROMPT, max_tokens=4).finish_reason == "length"


def test_cancel_when_nothing_runs_does_nothing(engine: Engine) -> None:
    engine.cancel()
    assert engine.generate(PROMPT, max_tokens=4).finish_reason == "length"


def test_cancel_during_the_prompt(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ffi, "report_to_nobody", lambda _fraction: engine.cancel())
    got = engine.generate([5] * 1200)
    assert (got.finish_reason, got.text, got.token_ids) == ("cancelled", "", ())
    monkeypatch.undo()
    assert engine.generate(PROMPT, max_tokens=4).finish_reason == "length"


def test_close_while_another_thread_streams(engine: Engine) -> None:
    started = threading.Event()
    seen: list[BaseException] = []

    def stream() -> None:
        try:
            for _ in engine.stream(PROMPT, max_tokens=4000, sampling=SamplingParams(temperature=0, ignore_eos=True)):
                started.set()
        except BaseException as error:
            seen.append(error)

    thread = threading.Thread(target=stream)
    thread.start()
    started.wait()
    engine.close()
    thread.join()
    assert [type(error) for error in seen] == [ClosedError]


def test_close_while_a_stream_of_the_same_thread_is_open(engine: Engine) -> None:
    stream = engine.stream(PROMPT)
    next(stream)
    engine.close()
    with pytest.raises(ClosedError) as caught:
        next(stream)
    assert caught.value.what == "engine"


def test_close_from_a_callback_inside_the_native_call(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ffi, "report_to_nobody", lambda _fraction: engine.close())
    with pytest.raises(ClosedError):
        engine.generate([5] * 1200)


def test_everything_is_refused_after_close_and_close_may_be_repeated(engine: Engine) -> None:
    engine.close()
    engine.close()
    engine.cancel()
    for call in (
        lambda: engine.generate(PROMPT),
        lambda: engine.generate([5]),
        lambda: engine.generate_many([PROMPT]),
        lambda: engine.tokenize(PROMPT),
        lambda: engine.detokenize([5]),
        lambda: engine.chat([{"role": "user", "content": "hello"}]),
    ):
        with pytest.raises(ClosedError) as caught:
            call()
        assert caught.value.what == "engine"
    assert engine.spec.effective  # what is known stays known
    assert engine.info.n_vocab > 0


def read_on(stream: Iterator[Step], n_steps: int, reached: threading.Event) -> None:
    for index, _ in enumerate(stream):
        if index == n_steps:
            reached.set()


def test_interrupt_during_cycles_leaves_the_engine_usable(engine: Engine, plain: Engine) -> None:
    wanted = plain.generate(PROMPT, max_tokens=20).digest
    endless = SamplingParams(temperature=0, ignore_eos=True)
    for n_steps in range(1, 12):
        reached = threading.Event()

        def interrupt(reached: threading.Event = reached) -> None:
            reached.wait()
            _thread.interrupt_main()

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            read_on(engine.stream(PROMPT, max_tokens=4000, sampling=endless), n_steps, reached)
        thread.join()
        assert engine.generate(PROMPT, max_tokens=20).digest == wanted


def test_interrupt_during_the_prompt_leaves_the_engine_usable(
    engine: Engine, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ffi, "report_to_nobody", lambda _fraction: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        engine.generate([5] * 1200)
    monkeypatch.undo()
    assert engine.generate(PROMPT, max_tokens=20).digest == plain.generate(PROMPT, max_tokens=20).digest


def test_interrupt_while_the_model_loads(open_model: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ffi, "report_to_nobody", lambda _fraction: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        open_model("built-in")


def test_exception_of_the_load_callback_reaches_the_caller(open_model: OpenEngine) -> None:
    def fail(_fraction: float) -> None:
        raise RuntimeError("from the callback")

    with pytest.raises(RuntimeError, match="from the callback"):
        open_model("built-in", progress=fail)


def test_interrupt_in_a_log_handler_reaches_the_caller(open_model: OpenEngine) -> None:
    class Interrupting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
            raise KeyboardInterrupt

    logger = logging.getLogger("pylucebox.native")
    handler, level = Interrupting(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        with pytest.raises(KeyboardInterrupt):
            open_model("built-in", mtp="off")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    open_model("built-in", mtp="off").close()


@pytest.mark.parametrize("width", WIDTHS)
def test_schema_gives_json_whatever_the_width(demo: Engine, plain: Engine, width: int) -> None:
    schema = {"type": "object", "properties": {"kind": {"enum": ["list", "tuple"]}}, "required": ["kind"]}
    schema["additionalProperties"] = False
    sampling = SamplingParams(temperature=0.8, seed=5, json_schema=schema)
    got = demo.generate(PROMPT, max_tokens=60, sampling=sampling, verify_width=width)
    assert json.loads(got.text)["kind"] in {"list", "tuple"}
    assert got.token_ids == plain.generate(PROMPT, max_tokens=60, sampling=sampling).token_ids


def test_load_progress_rises_to_one(open_model: OpenEngine) -> None:
    seen: list[float] = []
    open_model("built-in", mtp="off", progress=seen.append).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_exception_in_the_loop_of_a_stream_frees_the_engine(engine: Engine) -> None:
    def read() -> None:
        for _ in engine.stream(PROMPT):
            raise ModelNotFoundError("any error")

    with pytest.raises(ModelNotFoundError):
        read()
    assert engine.generate(PROMPT, max_tokens=2).finish_reason == "length"


def test_stats_of_requests_add_up(engine: Engine) -> None:
    one = engine.generate(PROMPT, max_tokens=10, verify_width=3)
    two = engine.generate(PROMPT, max_tokens=20, verify_width=5)
    total = engine.stats
    assert total.requests == 2
    assert total.completion_tokens == 30
    assert total.num_draft_tokens == one.stats.num_draft_tokens + two.stats.num_draft_tokens
    assert total.decode_tokens == 28


def test_finish_numbers_are_the_native_ones() -> None:
    lib = _ffi.native().lib
    assert (FINISH_NONE, FINISH_EOG) == (lib.LUCEBOX_FINISH_NONE, lib.LUCEBOX_FINISH_EOG)
    assert (FINISH_LIMIT, FINISH_CONTEXT) == (lib.LUCEBOX_FINISH_LIMIT, lib.LUCEBOX_FINISH_CONTEXT)
    assert lib.LUCEBOX_FINISH_FAILED == FINISH_FAILED
