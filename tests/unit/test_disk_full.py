"""A disk without room for what is written: an error that names the file, and no half file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pylucebox.testing import TinySpec, write_tiny_model

pytest.importorskip("resource", reason="no limits on this system")

# The limit on the size of files stands for the disk: writing fails half-way, as on one that fills up.
SCRIPT = """
import errno, resource, signal, sys
from pathlib import Path
from pylucebox.testing import TinySpec, write_f32_copy, write_tiny_model

source, target = map(Path, sys.argv[1:])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
try:
    {call}
except OSError as error:
    assert error.errno == errno.EFBIG, error
    assert error.filename == str(target), error.filename
else:
    raise AssertionError("there was room")
assert not target.exists()
"""


@pytest.mark.parametrize("call", ["write_tiny_model(target, TinySpec())", "write_f32_copy(source, target)"])
def test_no_half_file_is_left(tmp_path: Path, call: str) -> None:
    source = write_tiny_model(tmp_path / "whole.gguf", TinySpec()).model
    assert source.stat().st_size > 1 << 20
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(call=call), str(source), str(tmp_path / "new.gguf")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
