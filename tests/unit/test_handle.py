"""A shared native object is freed once, and only when nobody uses it."""

from __future__ import annotations

import pytest

from pylucebox._errors import ClosedError
from pylucebox._handle import SharedHandle


def test_close_waits_for_the_last_user_without_blocking() -> None:
    freed: list[str] = []
    handle = SharedHandle("pointer", freed.append, "engine")
    with handle as outer, handle as inner:
        assert outer == inner == "pointer"
        handle.close()
        assert freed == []
    assert freed == ["pointer"]


def test_close_is_idempotent() -> None:
    freed: list[str] = []
    handle = SharedHandle("pointer", freed.append, "engine")
    handle.close()
    handle.close()
    assert freed == ["pointer"]


def test_nobody_gets_in_after_close() -> None:
    handle = SharedHandle("pointer", lambda _pointer: None, "engine")
    handle.close()
    with pytest.raises(ClosedError) as caught, handle:
        pytest.fail("the handle was closed")
    assert caught.value.what == "engine"


def test_exception_of_a_user_does_not_keep_the_object_alive() -> None:
    freed: list[str] = []
    handle = SharedHandle("pointer", freed.append, "engine")
    with pytest.raises(KeyError), handle:
        raise KeyError
    handle.close()
    assert freed == ["pointer"]
