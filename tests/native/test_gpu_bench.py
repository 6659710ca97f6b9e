"""`scripts/gpu_bench` in its smallest setting, on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from gpu_bench import random_blocks  # noqa: E402


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "scripts" / "gpu_bench"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=dict(os.environ))


def test_each_section_writes_its_json_and_the_page_shows_it(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path), "--device", "cpu", "--quick", "--sections", "calls,prefill,sequences")
    assert done.returncode == 0, done.stderr
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert set(found) == {"calls", "prefill", "sequences"}
    assert {row["n_seq"] for row in found["sequences"]["rows"]} == {1, 3, 4}
    assert {row["arm"] for row in found["sequences"]["rows"]} == {"default", "default again"}
    assert all(row["wall_us"]["median"] > 0 for row in found["sequences"]["rows"])
    one, *_ = (row for row in found["sequences"]["rows"] if row["width"] == 8)
    # (1 - 0.9^8)/0.1 tokens a cycle
    assert one["tokens_per_s"]["0.9"] * one["wall_us"]["median"] / 1e6 / one["n_seq"] == pytest.approx(5.695, abs=1e-3)
    assert {row["way"] for row in found["prefill"]["rows"]} == {"MTP off", "MTP off again", "MTP on"}
    page = (tmp_path / "gpu.html").read_text()
    assert "Several sequences" in page
    assert "Prompts" in page


def test_the_page_shows_what_kernels_were_measured(tmp_path: Path) -> None:
    interval = {"stock_us": [16, 15.5, 17], "ours_us": [8, 7.5, 9], "noise": [1, 0.99, 1.01]}
    rows = [
        {"case": "f32-columns router", "rows": 9, "speedup": [2, 1.9, 2.1], **interval},
        {"case": "invariant q8_0", "rows": 8, "speedup": [0.5, 0.4, 0.6], **interval},
    ]
    (tmp_path / "kernels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("--out", str(tmp_path), "--page").returncode == 0
    page = (tmp_path / "gpu.html").read_text()
    assert "f32-columns router" in page
    assert "2.00 (1.90 to 2.10)" in page
    assert page.index("What equal bits cost") < page.index("0.50 (0.40 to 0.60)")


def test_an_unknown_section_is_named(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path), "--sections", "kernels,demo")
    assert done.returncode == 2
    assert "--sections has kernels" in done.stderr


def decoded(type_name: str, data: bytes) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    from pylucebox._dequantize import DECODERS

    return DECODERS[type_name](data)


@pytest.mark.parametrize("type_name", ["q8_0", "f16"])
def test_random_blocks_have_the_deviation_asked_for(type_name: str) -> None:
    rows = random_blocks.random_rows("a", type_name, 2560, 0.02)
    values = decoded(type_name, rows(0, 64))
    assert values.size == 64 * 2560
    assert values.std() == pytest.approx(0.02, rel=0.1)
    assert abs(values.mean()) < 0.001


def test_rows_do_not_depend_on_how_they_are_read() -> None:
    rows = random_blocks.random_rows("a", "q4_K", 256, 1.0)
    n_pattern = random_blocks.N_PATTERN_BYTES // 144
    assert rows(0, n_pattern + 8) == rows(0, 5) + rows(5, n_pattern + 3)
