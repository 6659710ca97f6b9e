"""Engine arms: the worker's protocol, with another build of the package that is a few lines long."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pylucebox.ab.engine_arm import EngineProcess, identify, open_engine_arm
from pylucebox.ab.errors import ArmError
from pylucebox.ab.outcome import decode_speeds
from pylucebox.ab.records import Arm, Request

BUILD = """
import os, time
from types import SimpleNamespace

__version__ = "9.9"


def system_info():
    return SimpleNamespace(upstream_build="b1", series_hash="abc", compiler="cc", cmake_args="")


def SamplingParams(**settings):
    return settings


class Engine:
    def __init__(self, model, **options):
        if options.get("verify_width") == 8:
            raise RuntimeError("no room for eight rows")
        self.options, self.model = options, model
        self.spec = SimpleNamespace(effective=True, reason="always")
        self.log = []

    @classmethod
    def demo(cls, **options):
        return cls("demo", **options)

    def close(self):
        pass

    def generate(self, prompt, **settings):
        print("noise on standard output")
        self.log.append(prompt)

    def stream(self, prompt, max_tokens, stop, sampling):
        if prompt == "die":
            os._exit(3)
        if prompt == "hang":
            time.sleep(60)
        if prompt == "fail":
            raise ValueError("bad prompt")
        ids = [len(prompt) + 10 * len(self.log) + (sampling or {}).get("seed", 0), 1, 2, 3][:max_tokens]
        yield SimpleNamespace(token_ids=ids[:1], cycle=None)
        cycle = SimpleNamespace(width=4, n_drafted=3, n_accepted=2, draft_us=1, verify_us=2, rollback_us=0,
                                graph_built=True)
        yield SimpleNamespace(token_ids=ids[1:], cycle=cycle)
        return self._done(ids, prompt)

    def generate_many(self, prompts, max_tokens, stop, sampling):
        return [self._done([5] * max_tokens, prompt) for prompt in prompts]

    def _done(self, ids, prompt):
        per_pos = (1, 1, 1, 0, 0, 0, 0)
        stats = SimpleNamespace(cycles=1, num_drafts=1, num_draft_tokens=3, num_accepted_tokens=2, graphs_built=1,
                                decode_ms=6.0, draft_ms=1.0, verify_ms=2.0, sample_ms=0.0, rollback_ms=0.0,
                                prefill_ms=4.0, prompt_tokens=len(prompt) - 1, num_draft_tokens_per_pos=per_pos,
                                num_accepted_tokens_per_pos=(1, 1, 0, 0, 0, 0, 0))
        return SimpleNamespace(prompt_tokens=len(prompt), token_ids=ids, finish_reason="length",
                               text=os.environ.get("TOGGLE", "text"), stats=stats)
"""

REQUEST = Request(prompt="hello", max_tokens=4)


@pytest.fixture
def build(tmp_path: Path) -> Path:
    (tmp_path / "pylucebox").mkdir()
    (tmp_path / "pylucebox" / "__init__.py").write_text(textwrap.dedent(BUILD), encoding="utf-8")
    return tmp_path


def opened(build: Path, *, width: int = 4, **settings: Any) -> AbstractContextManager[EngineProcess]:
    arm = Arm(name="old", kind="engine", widths=(4,), options={"verify_width": width}, site=str(build), **settings)
    return open_engine_arm(arm, model=None, sidecar=None, n_ctx=256, n_seq=1, timeout_s=20.0)


def test_second_build_is_measured_as_it_is(build: Path) -> None:
    arm = Arm(name="old", kind="engine", widths=(4,), site=str(build), python=sys.executable)
    assert identify(arm)["version"] == "9.9"
    with opened(build) as process:
        outcome = process.run([REQUEST], Request(prompt="warm", max_tokens=1))
    raw = outcome.sequences[0]
    assert raw.token_ids == (15, 1, 2, 3)  # one warm-up ran before
    assert (raw.n_prompt, raw.n_cached, raw.finish_reason) == (5, 1, "length")
    assert [count for count, _ in raw.arrivals] == [1, 4]
    assert [(cycle.width, cycle.n_tokens, cycle.built) for cycle in outcome.cycles] == [(4, 3, True)]
    assert outcome.spec is not None
    assert outcome.spec["num_accepted_tokens_per_pos"] == [1, 1, 0, 0, 0, 0, 0]
    assert outcome.peak_rss_bytes is not None
    assert raw.decode_ms is not None


def test_seed_reaches_the_sampler(build: Path) -> None:
    sampled = Request(prompt="hello", max_tokens=4, temperature=0.5, seed=7)
    with opened(build) as process:
        assert process.run([sampled], None).sequences[0].token_ids == (12, 1, 2, 3)


def test_toggles_reach_the_process(build: Path) -> None:
    with opened(build, env={"TOGGLE": "on"}) as process:
        assert process.run([REQUEST], None).sequences[0].text == "on"


def test_several_requests_run_together(build: Path) -> None:
    with opened(build) as process:
        outcome = process.run([REQUEST, Request(prompt="world!", max_tokens=4)], None)
    assert [raw.n_tokens for raw in outcome.sequences] == [4, 4]
    assert decode_speeds(outcome.sequences)[0] == pytest.approx(2 * 3 / 0.006)
    assert outcome.spec is not None
    assert outcome.spec["cycles"] == 2


def test_engine_that_cannot_be_opened_is_named(build: Path) -> None:
    with pytest.raises(ArmError, match="no room for eight rows") as caught, opened(build, width=8):
        pass
    assert caught.value.code == "start_failed"


def test_build_without_the_package_is_named(tmp_path: Path) -> None:
    arm = Arm(name="old", kind="engine", site=str(tmp_path), python=sys.executable, env={"PYTHONPATH": ""})
    (tmp_path / "pylucebox.py").write_text("raise ImportError('broken build')", encoding="utf-8")
    with pytest.raises(ArmError, match="broken build") as caught:
        identify(arm)
    assert caught.value.code == "start_failed"


def test_interpreter_that_does_not_exist_is_named() -> None:
    arm = Arm(name="old", kind="engine", python="/nonexistent/python")
    with pytest.raises(ArmError, match="/nonexistent/python"):
        identify(arm)


@pytest.mark.parametrize(
    ("prompt", "timeout_s", "code", "seen"),
    [
        ("die", 20.0, "died", "status 3"),
        ("hang", 0.5, "timeout", "no answer in 0.5 s"),
        ("fail", 20.0, "died", "bad prompt"),
    ],
)
def test_failures_of_a_run_have_codes(build: Path, prompt: str, timeout_s: float, code: str, seen: str) -> None:
    with opened(build) as process:
        process.timeout_s = timeout_s
        with pytest.raises(ArmError, match=seen) as caught:
            process.run([Request(prompt=prompt, max_tokens=4)], None)
    assert caught.value.code == code


def test_worker_ends_in_the_middle_of_a_run_when_its_starter_goes_away(build: Path) -> None:
    with opened(build) as process:
        job = {"op": "run", "requests": [Request(prompt="hang", max_tokens=4).as_dict()], "warmup": None}
        assert process.process.stdin is not None
        process.process.stdin.write(json.dumps(job).encode() + b"\n")
        process.process.stdin.flush()
        time.sleep(0.3)
        process.process.stdin.close()
        assert process.process.wait(20) == 1
