"""The patched llama-server loads the MTP files that the engine loads, and drafts with them."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _layouts import LAYOUTS, draft_ids, load, metadata_of, mixer, save, without

from pylucebox._build import find_native_dir
from pylucebox.testing import TinySpec, write_tiny_model

# The server is a library here: this is `int llama_server(int, char **)`.
START = """
import ctypes, sys
arguments = ["llama-server", *sys.argv[2:]]
pointers = (ctypes.c_char_p * (len(arguments) + 1))(*map(str.encode, arguments), None)
sys.exit(ctypes.CDLL(sys.argv[1])._Z12llama_serveriPPc(len(arguments), pointers))
"""
PROMPT = "One, two, three and four. The quick brown fox"


@contextlib.contextmanager
def server(model: Path, head: Path | None) -> Iterator[str]:
    """Run a server; give its address once it answers, or its log when it ended before."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = model.parent / "server.log"
    arguments = ["-m", model, "--host", "127.0.0.1", "--port", port, "-np", 1, "-c", 512, "-t", 1, "-tb", 1]
    if head:
        arguments += ["-md", head, "--spec-type", "draft-mtp", "--spec-draft-n-max", 3, "-td", 1, "-tbd", 1]
    library = next(find_native_dir().rglob("libllama-server-impl.*"))
    command = [sys.executable, "-c", START, str(library), *map(str, arguments)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        address = f"http://127.0.0.1:{port}"
        while process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
                yield address
                return
            time.sleep(0.05)
        assert process.returncode > 0, f"killed by signal {-process.returncode}: {log.read_text()}"
        yield log.read_text()
    finally:
        process.kill()
        process.wait()


def complete(address: str) -> dict[str, Any]:
    body = {"prompt": PROMPT, "n_predict": 24, "temperature": 0, "return_tokens": True, "cache_prompt": False}
    request = urllib.request.Request(f"{address}/completion", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer: dict[str, Any] = json.load(reply)
        return answer


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    written = write_tiny_model(tmp_path_factory.mktemp("server") / "m.gguf", TinySpec(mtp="sidecar"))
    assert written.sidecar is not None
    return written.model, written.sidecar


@pytest.fixture(scope="module")
def counts(files: tuple[Path, Path]) -> tuple[list[int], int, int]:
    """The tokens without drafts, and how many drafts were made and held with the standard layout."""
    model, sidecar = files
    with server(model, None) as address:
        tokens = complete(address)["tokens"]
    with server(model, sidecar) as address:
        answer = complete(address)
    assert answer["tokens"] == tokens
    drafted, held = answer["timings"]["draft_n"], answer["timings"]["draft_n_accepted"]
    assert drafted > held > 0
    return tokens, drafted, held


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "A"])
def test_server_drafts_the_same_with_every_layout(
    files: tuple[Path, Path], counts: tuple[list[int], int, int], tmp_path: Path, layout: str
) -> None:
    model, sidecar = files
    header, tensors = load(sidecar)
    path = save(tmp_path / "head.gguf", metadata_of(header), LAYOUTS[layout](tensors, 4, load(model)[1]))
    with server(model, path) as address:
        answer = complete(address)
    assert (answer["tokens"], answer["timings"]["draft_n"], answer["timings"]["draft_n_accepted"]) == counts


@pytest.mark.parametrize("case", ["mixer in part", "draft ids beyond the vocabulary"])
def test_server_refuses_a_near_miss_with_a_message(files: tuple[Path, Path], tmp_path: Path, case: str) -> None:
    model, sidecar = files
    header, tensors = load(sidecar)
    near = without(tensors, mixer(4)[:1])
    if case != "mixer in part":
        near = tensors | {"d2t": draft_ids(range(1, 289))}
    with server(model, save(tmp_path / "head.gguf", metadata_of(header), near)) as log:
        assert ("hc_head_norm" if case == "mixer in part" else "d2t") in log
