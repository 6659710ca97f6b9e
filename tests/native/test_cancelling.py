"""A cancelled call ends at whatever stage it is, says so, and leaves the engine as it was."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from _models import OpenEngine

import pylucebox as lb
from pylucebox._native_session import NativeSession
from pylucebox._session import Ask

PROMPT = "def add(a, b):"
MAX_TRIES = 400


@pytest.fixture(scope="module")
def engine(open_model: OpenEngine) -> Iterator[lb.Engine]:
    with open_model("built-in", n_ctx=512, n_ubatch=32, verify_width=8) as opened:
        yield opened


@pytest.fixture(autouse=True)
def as_before(engine: lb.Engine) -> Iterator[None]:
    wanted = engine.generate(PROMPT, max_tokens=12).token_ids
    yield
    assert engine.generate(PROMPT, max_tokens=12).token_ids == wanted


@pytest.mark.parametrize("at", [0.0, 0.3, 0.9])
def test_load(open_model: OpenEngine, at: float) -> None:
    with pytest.raises(lb.CancelledError):
        open_model("built-in", progress=lambda fraction: fraction < at)


def test_load_whose_callback_raises(open_model: OpenEngine) -> None:
    def interrupt(_fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_model("built-in", progress=interrupt)


@pytest.mark.parametrize("after", [1, 2, 5])
def test_prefill_by_its_callback(engine: lb.Engine, after: int) -> None:
    session, calls = engine._session, 0

    def stop(_fraction: float) -> bool:
        nonlocal calls
        calls += 1
        return calls < after

    with pytest.raises(lb.CancelledError, match="prefill"):
        session.prefill(0, [5] * 300, session.open_sampler(lb.SamplingParams(), None), use_mtp=True, progress=stop)
    assert calls == after
    assert session.n_past(0) == 0


def cancel_soon(call: Callable[[], object], cancel: Callable[[], None], within_s: float, rng: random.Random) -> None:
    """Run `call` and cancel it from another thread after some part of the time."""
    thread = threading.Thread(target=lambda: (time.sleep(rng.uniform(0, within_s)), cancel()))
    thread.start()
    try:
        call()
    finally:
        thread.join()


def test_prefill_from_another_thread(engine: lb.Engine) -> None:
    session, rng, cancelled = engine._session, random.Random(1), 0
    start = time.perf_counter()
    engine.generate([5] * 400, max_tokens=1)
    whole_s = time.perf_counter() - start
    for _ in range(MAX_TRIES):
        sampler = session.open_sampler(lb.SamplingParams(), None)
        try:
            cancel_soon(
                lambda sampler=sampler: session.prefill(0, [5] * 400, sampler, use_mtp=True),
                session.abort,
                whole_s,
                rng,
            )
        except lb.CancelledError:
            cancelled += 1
            assert session.n_past(0) == 0
        session.abort_reset()
        session.clear(0)
        if cancelled >= 3:
            break
    assert cancelled >= 3


def cycles(session: NativeSession) -> None:
    for _ in range(8):
        session.cycle([Ask(0, 8, 8)])


def test_draft_and_verify_from_another_thread(engine: lb.Engine) -> None:
    """The moments are random; that each stage is met shows in the text of the errors."""
    session, rng = engine._session, random.Random(2)
    met: dict[str, int] = {"drafting was": 0, "the computation was": 0}
    ids = engine.tokenize(PROMPT)

    def prefill() -> None:
        session.abort_reset()
        session.clear(0)
        session.prefill(0, ids, session.open_sampler(lb.SamplingParams(), None), use_mtp=True)

    prefill()
    start = time.perf_counter()
    cycles(session)
    whole_s = time.perf_counter() - start
    for _ in range(MAX_TRIES):
        prefill()
        try:
            cancel_soon(lambda: cycles(session), session.abort, whole_s, rng)
        except lb.CancelledError as error:
            stage = next(stage for stage in met if stage in error.seen)
            met[stage] += 1
            session.abort_reset()
            with pytest.raises(lb.SequenceStateError):  # half a cycle is no state to go on from
                session.cycle([Ask(0, 8, 8)])
        if min(met.values()) >= 3:
            break
    session.abort_reset()
    session.clear(0)
    assert min(met.values()) >= 3, met


def test_between_the_tokens_of_a_stream(engine: lb.Engine) -> None:
    """While a step is turned into text and handed out, nothing native runs; the next one is not begun."""
    whole = engine.generate(PROMPT, max_tokens=60, verify_width=4)
    stream = engine.stream(PROMPT, max_tokens=60, verify_width=4)
    text = ""
    try:
        while True:
            text += next(stream).text
            if len(text) > 10:
                engine.cancel()
    except StopIteration as end:
        completion: lb.Completion = end.value
    assert completion.finish_reason == "cancelled"
    assert whole.token_ids[: len(completion.token_ids)] == completion.token_ids
    assert whole.text.startswith(completion.text)
    assert len(completion.token_ids) < len(whole.token_ids)


def test_detokenising_is_not_cancelled(engine: lb.Engine) -> None:
    """It takes no time worth stopping, and a cancellation concerns generations only."""
    ids = engine.tokenize(PROMPT)
    engine.cancel()
    assert engine.detokenize(ids) == PROMPT


def test_generation_from_another_thread_at_any_time(engine: lb.Engine) -> None:
    rng, cancelled = random.Random(3), 0
    start = time.perf_counter()
    whole = engine.generate(PROMPT, max_tokens=40)
    whole_s = time.perf_counter() - start
    for _ in range(12):
        done: list[lb.Completion] = []
        cancel_soon(lambda: done.append(engine.generate(PROMPT, max_tokens=40)), engine.cancel, whole_s, rng)  # noqa: B023
        cancelled += done[0].finish_reason == "cancelled"
        assert whole.token_ids[: len(done[0].token_ids)] == done[0].token_ids
    assert cancelled
