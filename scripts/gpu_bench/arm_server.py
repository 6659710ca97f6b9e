"""The other end of `gpu_bench.arm`: opens models and runs cycles, as told on standard input."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pylucebox
from gpu_bench import calls
from pylucebox._draft_vocab import choose_draft_ids
from pylucebox._gguf import read_model
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask
from pylucebox._session_options import SessionOptions

GREEDY = SamplingParams(temperature=0, seed=0, ignore_eos=True)
TEXT = "The table lists the values one to twelve: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.\n"


class Server:
    """What an arm holds open."""

    def __init__(self) -> None:
        self.model: Model | None = None
        self.sessions: dict[str, NativeSession] = {}
        self.engines: dict[str, pylucebox.Engine] = {}

    def open_model(self, *, path: str, device: str, n_draft_vocab: int) -> dict[str, Any]:
        """Open a model with its MTP block inside."""
        for session in self.sessions.values():
            session.close()
        self.sessions = {}
        ids = tuple(choose_draft_ids(read_model(Path(path)), n_draft_vocab).tolist()) if n_draft_vocab else ()
        self.model = Model(ModelOptions(path=Path(path), mtp_in_file=True, device=device, draft_ids=ids))
        return {"draft_rows_bytes": self.model.info.draft_rows_bytes, "size_bytes": self.model.info.size_bytes}

    def open_session(self, *, name: str, n_ctx: int, n_seq: int, n_ubatch: int) -> dict[str, Any]:
        """Open a session of the model; with it goes why drafts are not made in one launch, if they are not."""
        if self.model is None:
            raise ValueError("no model is open")
        options = SessionOptions(n_ctx=n_ctx, n_seq=n_seq, n_ubatch=n_ubatch, max_width=8)
        session = self.sessions[name] = NativeSession(self.model, options)
        return {"why_stepwise": session.why_stepwise(), "own_pass_reason": session.own_pass_reason}

    def close_session(self, *, name: str) -> None:
        """Close a session."""
        self.sessions.pop(name).close()

    def prefill(self, *, name: str, n_tokens: int, n_seq: int, use_mtp: bool) -> float:
        """Run a prompt in the first sequences; return the seconds."""
        session = self.sessions[name]
        if self.model is None:
            raise ValueError("no model is open")
        text = TEXT * (1 + n_tokens // 20)
        ids = self.model.tokenize(text, add_special=False, parse_special=False)[:n_tokens]
        start = time.perf_counter()
        for seq in range(n_seq):
            session.clear(seq)
            session.prefill(seq, ids, session.open_sampler(GREEDY, None), use_mtp=use_mtp)
        return time.perf_counter() - start

    def cycles(self, *, name: str, width: int, n_cycles: int, n_seq: int) -> list[dict[str, Any]]:
        """Run cycles of one width; return what each took, in microseconds, and the calls it made."""
        session = self.sessions[name]
        asks = [Ask(seq, width, 8) for seq in range(n_seq)]
        found = []
        for _ in range(n_cycles):
            before = calls.counts()
            start = time.perf_counter_ns()
            results, times = session.cycle(asks)
            wall_us = (time.perf_counter_ns() - start) / 1000
            after = calls.counts()
            found.append(
                {
                    "wall_us": wall_us,
                    "draft_us": times.draft_us,
                    "verify_us": times.verify_us,
                    "rest_us": times.sample_us + times.rollback_us,
                    "n_draft_waits": times.n_draft_waits,
                    "built": times.graph_built or times.draft_graph_built,
                    "n_tokens": sum(len(result.tokens) for result in results),
                    "calls": {call: after[call] - before[call] for call in after if after[call] != before[call]},
                }
            )
        return found

    def open_engine(self, *, name: str, device: str, mtp: bool, width: int) -> str:
        """Open the built-in model; return why drafts are made or not, as a code: the text has paths of this machine."""
        options: dict[str, Any] = {} if mtp else {"mtp": "off"}
        engine = pylucebox.Engine.demo(device=device, n_ctx=2048, verify_width=width, **options)
        self.engines[name] = engine
        return engine.spec.reason_code.value

    def generate(self, *, name: str, prompt: str, max_tokens: int, width: int | None) -> dict[str, Any]:
        """Decode greedily; return the tokens, the speed, what became of the drafts and where the time went."""
        done = self.engines[name].generate(prompt, max_tokens=max_tokens, verify_width=width)
        stats, policy = done.stats, done.telemetry
        return {
            "tokens": list(done.token_ids),
            "tokens_per_s": 1000 * stats.decode_tokens / stats.decode_ms if stats.decode_ms else None,
            "n_drafted": stats.num_draft_tokens,
            "n_accepted": stats.num_accepted_tokens,
            "n_cycles": stats.cycles,
            "n_built": stats.graphs_built,
            "parts_ms": {
                "decode": stats.decode_ms,
                "draft": stats.draft_ms,
                "verify": stats.verify_ms,
                "sample": stats.sample_ms,
                "rollback": stats.rollback_ms,
            },
            "verified_histogram": list(stats.verified_histogram),
            "drafted_histogram": list(stats.drafted_histogram),
            "prices_us": {"verify": list(policy.verify_us), "draft": list(policy.draft_us)} if policy else None,
            "plain_reasons": dict(policy.plain_reasons) if policy else {},
        }


def serve() -> None:
    """Answer requests until standard input ends."""
    server = Server()
    for line in sys.stdin:
        request = json.loads(line)
        answer: Callable[..., Any] = getattr(server, request.pop("do"))
        print(json.dumps(answer(**request)), flush=True)
