"""Requests with any settings, four together: what a reply is depends neither on its drafts nor on its neighbours."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _server import StartWorker, Worker, together

CONTEXT = ("--ctx-size", 1024, "--parallel", 4, "--jinja")
PROMPTS = (
    "def add(a, b):",
    "The sum is",
    "a b a b a b",
    '{"name": "alpha", ',
    "one two three four five six seven eight nine ten. " * 4,
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "x",
)
GRAMMARS = ("root ::= [a-z ]+", 'root ::= "one" (" two" | " three")* "."', 'root ::= [0-9]{1,5} "\\n" root?')
SCHEMAS = (
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    {"enum": ["x", "yy", "zzz"]},
)
STOPS = ("\n", " ", "e", "three four", "ve s", ":", "a b", "return", "ten. one", ",")
SAMPLERS = (["top_k", "temperature"], ["temperature"], ["penalties", "dry", "top_p", "temperature"])
SETTINGS: dict[str, tuple[float, Callable[[random.Random], Any]]] = {  # share of requests, and what it may be
    "top_k": (0.2, lambda dice: dice.choice([1, 5, 40, 0])),
    "top_p": (0.2, lambda dice: dice.choice([0.1, 0.5, 0.95])),
    "min_p": (0.2, lambda dice: dice.choice([0.05, 0.5])),
    "typical_p": (0.1, lambda _: 0.7),
    "xtc_probability": (0.1, lambda _: 0.5),
    "mirostat": (0.1, lambda dice: dice.choice([1, 2])),
    "dry_multiplier": (0.15, lambda _: 0.8),
    "repeat_penalty": (0.15, lambda _: 1.3),
    "presence_penalty": (0.15, lambda _: 0.6),
    "repeat_last_n": (0.1, lambda dice: dice.choice([0, -1, 8])),
    "dynatemp_range": (0.1, lambda _: 0.3),
    "logit_bias": (0.1, lambda dice: [[dice.randrange(4096), dice.choice([-5, 5, False])] for _ in range(3)]),
    "n_probs": (0.3, lambda dice: dice.choice([1, 5, 20])),
    "post_sampling_probs": (0.15, lambda _: True),
    "grammar": (0.15, lambda dice: dice.choice(GRAMMARS)),
    "stop": (0.35, lambda dice: dice.sample(STOPS, dice.randrange(1, 4))),
    "ignore_eos": (0.3, lambda _: True),
    "samplers": (0.1, lambda dice: dice.choice(SAMPLERS)),
    "sampler_rng": (0.15, lambda dice: dice.choice(["mt19937", "gumbel"])),
    "n": (0.15, lambda dice: dice.choice([2, 3, 4])),
}
OF_A_RUN = frozenset({"timings", "generation_settings", "id_slot", "tokens_cached"})


@pytest.fixture(scope="module")
def drafting(work: StartWorker, demo_model: Path) -> Worker:
    return work(demo_model, *CONTEXT)


@pytest.fixture(scope="module")
def plain(work: StartWorker, demo_model: Path) -> Worker:
    return work(demo_model, *CONTEXT, "--mtp", "off")


def request_of(dice: random.Random) -> dict[str, Any]:
    body = {
        "prompt": dice.choice(PROMPTS),
        "n_predict": dice.choice([1, 2, 5, 17, 40]),
        "seed": dice.randrange(1000),
        "temperature": dice.choice([0, 0, 0.3, 0.8, 1.3, 2.0]),
        "cache_prompt": False,
        "return_tokens": True,
    }
    body |= {name: make(dice) for name, (share, make) in SETTINGS.items() if dice.random() < share}
    if "grammar" not in body and dice.random() < 0.15:
        body["json_schema"] = dice.choice(SCHEMAS)
    return body


def reply_to(server: Worker, body: dict[str, Any]) -> Any:
    """Return the status and what was said, without what is of this run."""
    status, reply = server.send("/completion", json.dumps(body).encode())

    def said(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: said(value) for name, value in part.items() if name not in OF_A_RUN}
        return [said(each) for each in part] if isinstance(part, list) else part

    return status, said(json.loads(reply))


def check(plain: Worker, drafting: Worker, seed: int, n_requests: int) -> None:
    dice = random.Random(seed)
    for _ in range(n_requests // 4):
        bodies = [request_of(dice) for _ in range(4)]
        widths = [dice.choice([0, 2, 3, 4, 5, 6, 7, 8]) for _ in bodies]
        wanted = [reply_to(plain, body) for body in bodies]
        got = together(
            *(
                lambda body=body, width=width: reply_to(drafting, {**body, "verify_width": width})  # type: ignore[misc]
                for body, width in zip(bodies, widths, strict=True)
            )
        )
        for body, width, one, other in zip(bodies, widths, wanted, got, strict=True):
            assert one[0] in {200, 400}
            assert other == one, f"with width {width}: {body}"


def test_reply_is_that_without_drafts(plain: Worker, drafting: Worker) -> None:
    check(plain, drafting, seed=1, n_requests=80)


@pytest.mark.soak
def test_reply_of_many_is_that_without_drafts(plain: Worker, drafting: Worker) -> None:
    check(plain, drafting, seed=2, n_requests=2000)
