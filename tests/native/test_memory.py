"""Running out of memory is an error of the call; the process and the engine go on.

The limit on addresses stands for it: beyond it every allocation fails, as on a machine without overcommitment or in a
container. What is tried is the same at each limit, so that the failing allocation is another one each time.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

resource = pytest.importorskip("resource", reason="no limits on this system")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the size of the process is read from /proc"),
    pytest.mark.skipif("LUCEBOX_SANITIZED" in os.environ, reason="the sanitizers take terabytes of addresses"),
]

# As from Python itself: where not even an exception of ours can be made.
SETUP = """
import logging, resource, sys
import pylucebox as lb

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
logging.disable(logging.CRITICAL)
PROMPT = "def add(a, b):"
outcomes = []

def attempt(call):
    try:
        call()
        outcomes.append("done")
    except MemoryError as error:
        outcomes.append(type(error).__name__)

def allow(more_bytes=None):
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    soft = resource.RLIM_INFINITY if more_bytes is None else now + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))

def open_and_close(**options):
    lb.Engine.demo(**options).close()
"""

# In quarters of a MiB: from nothing at all to all that is needed.
OPENING = """
lb.system_info()
wanted = lb.Engine.demo(n_ctx=256).generate(PROMPT, max_tokens=8).token_ids
for quarters in (1, 4, 10, 20, 40, 60, 80, 100, 140, 200, 300, 400, 600, 800, 1200, 4096):
    allow(quarters << 18)
    attempt(lambda: open_and_close(n_ctx=256))
    allow()
with lb.Engine.demo(n_ctx=256) as engine:
    assert engine.generate(PROMPT, max_tokens=8).token_ids == wanted
"""

USING = """
wanted = None
grammar = lb.SamplingParams(grammar='root ::= "a"{1,1000}')
for quarters in (1, 2, 3, 8, 16, 32, 48, 64, 80, 96, 128, 512, 4096):
    with lb.Engine.demo(n_ctx=256) as engine:
        allow(quarters << 18)
        attempt(lambda: engine.generate([5] * 200, max_tokens=5))
        attempt(lambda: engine.generate(PROMPT, max_tokens=5, sampling=grammar))
        attempt(lambda: engine.chat([{"role": "user", "content": "x"}], max_tokens=5))
        attempt(lambda: engine.generate(PROMPT, max_tokens=5, verify_width=8))
        allow()
        tokens = engine.generate(PROMPT, max_tokens=8).token_ids
        wanted = wanted or tokens
        assert tokens == wanted
"""

CHECK = """
print(*outcomes)
assert "done" in outcomes, outcomes
assert "OutOfMemoryError" in outcomes, outcomes
"""


@pytest.mark.parametrize("script", [OPENING, USING], ids=["opening", "using"])
def test_the_call_fails_and_the_rest_goes_on(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETUP + script + CHECK],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GGML_NO_BACKTRACE": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert set(done.stdout.split()) <= {"done", "OutOfMemoryError", "MemoryError"}
