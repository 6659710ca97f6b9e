"""Makes the workloads of a session with the model's own tokenizer, in a process of its own.

The model must not stay open while arms are measured, and the program that starts them must not load the native library.
One JSON job on standard input, one JSON answer on standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pylucebox.ab.errors import ComparisonError
from pylucebox.ab.records import Request, Suite, Workload

__all__ = ["Prepared", "prepare"]

_SENTINEL_CTX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is known once the model was looked at.

    Attributes
    ----------
    suite
        The workloads.
    sentinel
        Short run repeated through the session.
    native
        `pylucebox.SystemInfo.as_dict`.
    model_path, sidecar_path
        Files in use; the latter None when there is no separate MTP file.
    drafts
        Whether drafts can be made, and why or why not.
    """

    suite: Suite
    sentinel: Workload
    native: dict[str, Any]
    model_path: str
    sidecar_path: str | None
    drafts: tuple[bool, str]


def prepare(
    *, suite: str, only: tuple[str, ...], model: str | None, sidecar: str | None, n_ctx: int | None
) -> Prepared:
    """Make the workloads.

    Parameters
    ----------
    suite, only
        As `pylucebox.ab.workloads.build_suite` takes them.
    model, sidecar
        Paths; None for the built-in model, and for an MTP file found by the engine.
    n_ctx
        Most tokens of a sequence; None takes the model's training context.

    Raises
    ------
    ComparisonError
        The model cannot be opened, or the workloads do not exist.
    """
    job = {"suite": suite, "only": list(only), "model": model, "sidecar": sidecar, "n_ctx": n_ctx}
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "pylucebox.ab.prepare"],
        input=json.dumps(job).encode(),
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        seen = f"the process ended with status {done.returncode}: {done.stderr[-500:].decode('utf-8', 'replace')}"
        raise ComparisonError("cannot prepare the session", seen=seen) from None
    if "error" in answer:
        raise ComparisonError("cannot prepare the session", seen=answer["error"], advice="")
    request = Request.from_dict(answer["sentinel"])
    sentinel = Workload(
        name="sentinel",
        kind="sentinel",
        title="short run without drafts, repeated through the session",
        requests=(request,),
        warmup=Request(prompt="Every river has a source and a mouth.", max_tokens=16),
        control=None,
        n_ctx=_SENTINEL_CTX,
    )
    return Prepared(
        suite=Suite.from_dict(answer["suite"]),
        sentinel=sentinel,
        native=answer["native"],
        model_path=answer["model_path"],
        sidecar_path=answer["sidecar_path"],
        drafts=(answer["drafts"], answer["reason"]),
    )


def _describe(job: dict[str, Any]) -> dict[str, Any]:
    from pylucebox import Engine, system_info  # noqa: PLC0415 - only this process loads them
    from pylucebox.ab import workloads  # noqa: PLC0415

    # Nothing is computed here, so the smallest context and no device do.
    options: dict[str, Any] = {"n_ctx": 256, "device": "cpu", "n_gpu_layers": 0, "mtp": job["sidecar"] or "auto"}
    engine = Engine.demo(**options) if job["model"] is None else Engine(job["model"], **options)
    with engine:
        n_ctx = min(job["n_ctx"] or engine.info.n_ctx_train, engine.info.n_ctx_train)
        suite = workloads.build_suite(job["suite"], only=job["only"], tokenize=engine.tokenize, n_ctx=n_ctx)
        return {
            "suite": suite.as_dict(),
            "sentinel": workloads.sentinel().as_dict(),
            "native": system_info().as_dict(),
            "model_path": engine.info.path,
            "sidecar_path": engine.info.mtp_path or None,
            "drafts": engine.spec.effective,
            "reason": engine.spec.reason,
        }


def main() -> int:
    """Do the job on standard input."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what native code prints must not mix with the answer
    try:
        answer = _describe(json.load(sys.stdin))
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    with out:
        json.dump(answer, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
