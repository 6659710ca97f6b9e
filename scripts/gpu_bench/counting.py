"""Counts of what the host does in a cycle: waits, copies, graphs captured and replayed."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gpu_bench import calls
from gpu_bench.arm import Arm
from gpu_bench.settings import OFF, Settings, write_result

__all__ = ["counting"]

WIDTH_PLAN = (1, 8, 4, 8, 1, 4)
"""Widths that take turns, so that graphs of drafts and of verify steps alternate."""


def counting(settings: Settings) -> None:
    """Count calls of the CUDA runtime by width, and the graphs that a mix of widths captures and replays."""
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        preload = None if settings.device == "cpu" else calls.build(Path(folder))
        with Arm(settings.all_arms()[OFF], preload) as arm:
            path = settings.model(settings.types[0])
            arm("open_model", path=str(path), device=settings.device, n_draft_vocab=settings.n_draft_vocab)
            told = arm("open_session", name="one", n_ctx=4096, n_seq=1, n_ubatch=512)
            arm("prefill", name="one", n_tokens=300, n_seq=1, use_mtp=True)
            for width in (1, 4, 8):
                arm("cycles", name="one", width=width, n_cycles=6, n_seq=1)
                rows.append(
                    {"width": width, **told, **_sums(arm("cycles", name="one", width=width, n_cycles=4, n_seq=1))}
                )
            mixed: list[dict[str, Any]] = []
            for width in WIDTH_PLAN * 4:
                mixed += arm("cycles", name="one", width=width, n_cycles=1, n_seq=1)
            rows.append({"width": f"{WIDTH_PLAN}, four times", **told, **_sums(mixed)})
    write_result(settings, "calls", rows, started)
    lines = []
    for row in rows:
        lines.append(f"width {row['width']}: {row['n_cycles']} cycles, {row['n_built']} built graphs of llama.cpp")
        lines.append(f"  waits of the host for drafts: {row['n_draft_waits']}")
        lines += [f"  {name}: {n}" for name, n in row["calls"].items()]
    text = "\n".join(lines) + "\n"
    (settings.out / "calls.txt").write_text(text, encoding="utf-8")
    print(text)


def _sums(cycles: list[dict[str, Any]]) -> dict[str, Any]:
    total: Counter[str] = Counter()
    for cycle in cycles:
        total.update(cycle["calls"])
    return {
        "n_cycles": len(cycles),
        "n_built": sum(cycle["built"] for cycle in cycles),
        "n_draft_waits": sum(cycle["n_draft_waits"] for cycle in cycles),
        "calls": dict(total),
    }
