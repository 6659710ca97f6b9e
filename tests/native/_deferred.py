"""Cycles of the built-in model on the device of ``deferred_device.cpp``, in a process of their own.

``python _deferred.py DEVICE LIBRARY N_GPU_LAYERS`` prints a JSON object: what the host did in each cycle, a digest of
all tokens and logits, the sum of three inputs that were filled in without a wait, and what a cycle sends to the device
behind texts of two lengths.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pylucebox
from pylucebox._build import DEMO_MODEL
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask
from pylucebox._session_options import SessionOptions

SIDECAR = DEMO_MODEL.parent / "MTP" / f"mtp-{DEMO_MODEL.name}"
GREEDY = SamplingParams(temperature=0, seed=0, ignore_eos=True)
TEXT = "The table lists the values one to twelve: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.\n"
WIDTHS = (1, 1, 2, 2, 8, 8, 4, 4, 1, 8, 4, 2, 2)
"""Each width more than twice: the first two cycles of a width build its graphs and capture them."""
LENGTHS = (700, 1800)
"""Tokens of the two texts."""


def run(device: str, library: Path, n_gpu_layers: int) -> dict[str, Any]:
    """Run prompts of two sequences in several parts, then cycles of one and of both, past 256 cells."""
    Model(ModelOptions(path=DEMO_MODEL, device="cpu")).close()  # so that the library and its back ends are there
    ggml = ctypes.CDLL(str(Path(pylucebox.__file__).parent / "lib" / "libggml.so"))
    ggml.ggml_backend_load.restype = ctypes.c_void_p
    if not ggml.ggml_backend_load(bytes(library)):
        raise RuntimeError(f"{library} was not loaded")
    found = (ctypes.c_int64 * 4)()

    def counts() -> list[int]:
        ctypes.CDLL(str(library)).deferred_counts(found)
        return list(found)

    options = ModelOptions(path=DEMO_MODEL, mtp_path=SIDECAR, device=device, n_gpu_layers=n_gpu_layers)
    session_options = SessionOptions(n_ctx=1024, n_seq=2, n_ubatch=64, max_width=8)
    digest = hashlib.sha256()
    cycles = []
    model = Model(options)
    session = NativeSession(model, session_options)
    for seq in range(2):
        ids = model.tokenize(TEXT * (4 + seq), add_special=False, parse_special=False)
        session.prefill(seq, ids, session.open_sampler(GREEDY, None), use_mtp=True)
    for seqs in ((0,), (0, 1)):
        for width in WIDTHS:
            before = counts()
            results, times = session.cycle([Ask(seq, width, 8) for seq in seqs])
            n_waits, n_copies, n_launches, _ = (new - old for new, old in zip(counts(), before, strict=True))
            for seq, result in zip(seqs, results, strict=True):
                digest.update(repr(result.tokens).encode())
                for row in range(len(result.tokens)):
                    digest.update(session.logits(seq, row).tobytes())
            cycles.append({"n_seq": len(seqs), "width": width, "n_waits": n_waits, "n_copies": n_copies})
            cycles[-1] |= {"n_launches": n_launches, "built": times.graph_built or times.draft_graph_built}
    session.close()
    sent_bytes = [_sent_bytes(model, n_tokens, counts) for n_tokens in LENGTHS]
    model.close()
    add = ctypes.CDLL(str(library)).deferred_sum_of_runs_without_a_wait
    add.restype = ctypes.c_float
    return {"cycles": cycles, "digest": digest.hexdigest(), "sum": add(), "sent_bytes": sent_bytes}


def _sent_bytes(model: Model, n_tokens: int, counts: Callable[[], list[int]]) -> dict[int, int]:
    """Return by width what the last of some cycles sends behind so many tokens."""
    session = NativeSession(model, SessionOptions(n_ctx=2048, n_ubatch=512, max_width=8))
    ids = model.tokenize(TEXT * 80, add_special=False, parse_special=False)[:n_tokens]
    session.prefill(0, ids, session.open_sampler(GREEDY, None), use_mtp=True)
    sent = {}
    for width in (1, 8):
        for _ in range(4):
            before = counts()[3]
            session.cycle([Ask(0, width, 8)])
            sent[width] = counts()[3] - before
    session.close()
    return sent


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
