"""Native log: the ring buffer, what errors quote from it, and forwarding to `logging`."""

from __future__ import annotations

import logging
import threading

import pytest

from pylucebox._logging import NATIVE_LOGGER, NativeLog

DEBUG, INFO, WARNING, ERROR = 1, 2, 3, 4


def test_errors_quote_the_last_warnings_and_errors_in_order() -> None:
    log = NativeLog()
    for level, text in [(WARNING, "old"), (INFO, "noise"), (WARNING, "first"), (ERROR, "second")]:
        log.record(level, text)
    assert log.tail(2) == ("W first", "E second")


def test_lines_before_a_mark_belong_to_another_call() -> None:
    log = NativeLog()
    log.record(ERROR, "earlier")
    mark = log.mark()
    assert log.tail(after=mark) == ()
    log.record(ERROR, "now")
    assert log.tail(after=mark) == ("E now",)


def test_mark_holds_when_the_buffer_has_turned_over() -> None:
    log = NativeLog(capacity=2)
    log.record(ERROR, "earlier")
    mark = log.mark()
    for text in ("a", "b", "c"):
        log.record(ERROR, text)
    assert log.tail(after=mark) == ("E b", "E c")


def test_level_to_quote_can_be_lowered() -> None:
    log = NativeLog()
    log.record(DEBUG, "detail")
    assert log.tail() == ()
    assert log.tail(min_level=logging.DEBUG) == ("D detail",)
    assert log.tail(0, min_level=logging.DEBUG) == ()


def test_line_ends_are_dropped_and_empty_lines_ignored() -> None:
    log = NativeLog()
    log.record(ERROR, "text\n")
    log.record(ERROR, "\n")
    assert log.tail() == ("E text",)


@pytest.mark.parametrize(
    ("native", "level"),
    [(1, logging.DEBUG), (2, logging.INFO), (3, logging.WARNING), (4, logging.ERROR), (99, logging.INFO)],
)
def test_lines_are_forwarded_with_their_level(native: int, level: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, NATIVE_LOGGER):
        NativeLog().record(native, "100% %s loaded")
    assert caplog.record_tuples == [(NATIVE_LOGGER, level, "100% %s loaded")]


def test_handler_that_fails_does_not_reach_the_native_caller() -> None:
    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise RuntimeError(record.msg)

    logger, broken, log = logging.getLogger(NATIVE_LOGGER), Broken(), NativeLog()
    logger.addFilter(broken)
    try:
        log.record(ERROR, "text")
    finally:
        logger.removeFilter(broken)
    assert log.tail() == ("E text",)


def test_handler_may_read_the_log_it_is_called_from() -> None:
    log, seen = NativeLog(), []

    class Reader(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
            seen.append(log.tail())

    logger, reader = logging.getLogger(NATIVE_LOGGER), Reader()
    logger.addHandler(reader)
    try:
        log.record(ERROR, "text")
    finally:
        logger.removeHandler(reader)
    assert seen == [("E text",)]


def test_no_line_is_lost_or_counted_twice_when_many_threads_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, NATIVE_LOGGER)
    log = NativeLog(capacity=10_000)

    def write(name: int) -> None:
        for line in range(200):
            log.record(ERROR, f"{name}-{line}")

    threads = [threading.Thread(target=write, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = log.tail(10_000)
    assert len(set(lines)) == len(lines) == log.mark() == 1600
