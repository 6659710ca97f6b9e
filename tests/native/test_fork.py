"""A forked process leaves the engine of its parent alone, and says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")

SCRIPT = """
import os, sys, traceback
import pylucebox as lb

engine = lb.Engine.demo(n_threads=1, n_ctx=128)
wanted = engine.generate("def add(a, b):", max_tokens=8).token_ids
stream = engine.stream("def add(a, b):", max_tokens=8)
next(stream)
child = os.fork()
if child == 0:
    code = 1
    try:
        for call in (
            lambda: engine.generate([5, 6], max_tokens=8),
            lambda: engine.generate_many([[5, 6]], max_tokens=8),
            lambda: engine.chat([{"role": "user", "content": "hello"}]),
            lambda: engine.tokenize("text"),
            lambda: next(stream),
            lb.system_info,
            lambda: lb.Engine.demo(n_threads=1, n_ctx=128),
        ):
            try:
                call()
            except lb.ClosedError:
                pass
            else:
                raise AssertionError("not refused")
        engine.cancel()
        engine.close()
        del stream, engine
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    sys.exit(code)
status = os.waitpid(child, 0)[1]
stream.close()
assert engine.generate("def add(a, b):", max_tokens=8).token_ids == wanted
engine.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_child_is_refused_and_the_parent_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
