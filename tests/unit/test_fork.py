"""A forked process leaves alone what its parent opened."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")

# Every native function is a call of `called`, and every lock is held by a thread that the child does not have.
SETUP = """
import os, threading, sys
from unittest.mock import MagicMock
from pylucebox import _ffi
from pylucebox._errors import ClosedError
from pylucebox._handle import SharedHandle
from pylucebox._native_session import _Calls
from pylucebox._turns import Turns

called = MagicMock()
loaded = _ffi.Native(MagicMock(), called)
_ffi._loaded.append(loaded)
calls = _Calls(loaded, "session")
handle = SharedHandle("model", called.lucebox_model_close, "engine")
free = _ffi.unless_forked(called.lucebox_sampler_close)
turns = Turns(MagicMock(n_seq=1))
locks = [calls._running, calls._dropping, handle._lock, turns._lock, _ffi._load_lock]

def hold_locks(held, done):
    for lock in locks:
        lock.acquire()
    held.set()
    done.wait()

def enter(context):
    with context:
        pass

refused = [
    _ffi.native,
    lambda: calls.run(called.lucebox_session_cycle),
    lambda: enter(handle),
    lambda: enter(turns.hold()),
]
silent = [calls.close, calls.abort, handle.close, lambda: free("sampler")]
"""

IN_CHILD = """
held, done = threading.Event(), threading.Event()
threading.Thread(target=hold_locks, args=(held, done), daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    code = 1
    try:
        for call in refused:
            try:
                call()
            except ClosedError as error:
                assert "forkserver" in str(error), error
            else:
                raise AssertionError("not refused")
        for call in silent:
            call()
        assert not called.mock_calls, called.mock_calls
        code = 0
    finally:
        sys.stderr.flush()
        if code:
            import traceback; traceback.print_exc()
        os._exit(code)
done.set()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

IN_PARENT = """
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
assert _ffi.native() is loaded
calls.close()
handle.close()
free("sampler")
called.lucebox_session_close.assert_called_once_with("session")
called.lucebox_model_close.assert_called_once_with("model")
called.lucebox_sampler_close.assert_called_once_with("sampler")
"""

BEFORE_LOADING = """
import os
from pylucebox import _ffi
child = os.fork()
if child == 0:
    os._exit(_ffi.forked)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    "script",
    [SETUP + IN_CHILD, SETUP + IN_PARENT, BEFORE_LOADING],
    ids=["child refuses", "parent goes on", "child of a process without the library may load it"],
)
def test_fork(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
