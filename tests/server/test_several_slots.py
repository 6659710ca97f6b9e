"""Several replies at a time: each is the one that it would be alone."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from _server import StartServe, StartWorker, Worker, together

PROMPTS = ["def add(a, b):", "The sum is", "a b a b a b", '{"name": "alpha", ']
CONTEXT = ("--ctx-size", 1024, "--parallel", 4)
N_TOKENS = 48


@pytest.fixture(scope="module")
def adaptive(work: StartWorker, demo_model: Path) -> Worker:
    return work(demo_model, *CONTEXT)


@pytest.fixture(scope="module")
def plain(work: StartWorker, demo_model: Path) -> Worker:
    return work(demo_model, *CONTEXT, "--mtp", "off")


def test_four_slots_have_the_text_of_one(plain: Worker, adaptive: Worker) -> None:
    wanted = [plain.complete(prompt, n_predict=N_TOKENS)["tokens"] for prompt in PROMPTS]
    for width in (0, 4):
        got: list[Any] = [None] * len(PROMPTS)

        def ask(i: int, width: int = width, got: list[Any] = got) -> None:
            got[i] = adaptive.complete(PROMPTS[i], n_predict=N_TOKENS, verify_width=width)["tokens"]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == wanted


def test_a_choice_keeps_its_prompt_when_the_slot_that_read_it_is_given_away(plain: Worker) -> None:
    """The first of two choices ends at once, and the next request takes its slot, with a prompt from a cache."""
    settings = {"n": 2, "seed": 112, "temperature": 0.15, "typical_p": 0.7, "repeat_penalty": 1.3, "n_probs": 10}
    two = {"prompt": "one two three four five six seven eight nine ten. " * 4, "n_predict": 6, "cache_prompt": False}
    others = [("The sum is", 2), ('{"name": "alpha", ', 17), ("| a | b |\n|---|---|\n| 1 | 2 |\n", 5)]

    def choices() -> list[Any]:
        return [choice["completion_probabilities"] for choice in plain.post("/completion", **two, **settings)]

    def other(prompt: str, n_tokens: int) -> None:
        plain.complete(prompt, n_predict=n_tokens, cache_prompt=False)

    wanted = choices()
    assert len(wanted[0]) < len(wanted[1])
    for _ in range(30):
        found = together(choices, *(lambda other_=args: other(*other_) for args in others))[0]
        assert found == wanted


def test_default_server_gives_each_the_logprobs_of_one(serve: StartServe, demo_model: Path) -> None:
    """Without a word about slots: what a reply is does not depend on the others, down to the bits."""
    server = serve(demo_model)
    assert server.get("/props")["total_slots"] == 4
    dice = random.Random(1)
    words = ["one", "two", "three", "sum", "of", "def", "add", "return", "the", "a", "b", "json"]
    prompts = [" ".join(dice.choice(words) for _ in range(dice.choice([5, 30, 120]))) for _ in range(12)]

    def ask(prompt: str) -> Any:
        reply = server.complete(prompt, n_predict=64, n_probs=2, ignore_eos=True)
        return [(token["id"], token["logprob"]) for token in reply["completion_probabilities"]]

    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(ask, prompts)) == alone


def cycles_of_three(server: Worker, path: Path) -> list[Any]:
    """Run three replies together; return their passes in which all three took part, sorted by time."""
    threads = [
        threading.Thread(target=server.complete, args=(prompt,), kwargs={"n_predict": 96, "ignore_eos": True})
        for prompt in PROMPTS[:3]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    cycles = [line["observation"] for line in lines if "observation" in line]
    # the first passes are without an answer of the policies, the last without room
    return [cycle for cycle in cycles if cycle["n_active"] == 3 and cycle["width"] > 1]


@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
def test_drafts_of_slots_that_run_together(
    demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, even: bool
) -> None:
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    flags = ("--ctx-size", "1024", "--parallel", "3", *([] if even else ["--no-even-drafts"]))
    with Worker(demo_model, tmp_path / "log", *flags, policy="Uneven") as server:
        cycles = cycles_of_three(server, tmp_path / "record")
        assert len(cycles) > 6
        full = [cycle for cycle in cycles if cycle["n_rows"] >= 6]
        if even:
            # the widest of 2, 3 and 4 rows is more than three slots can have of eight
            assert {(cycle["width"], cycle["n_rows"]) for cycle in full} == {(2, 6)}
        else:
            assert len({cycle["width"] for cycle in full}) > 1
            assert max(cycle["n_rows"] for cycle in full) == 8


@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
def test_policy_knows_that_a_reply_without_drafts_keeps_others_from_theirs(
    demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, even: bool
) -> None:
    """It observes that reply as well, where they share passes."""
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    flags = ("--ctx-size", "1024", "--parallel", "2", *([] if even else ["--no-even-drafts"]))
    with Worker(demo_model, tmp_path / "log", *flags, policy="Uneven") as server:
        together(
            lambda: server.complete(PROMPTS[0], n_predict=160, ignore_eos=True, id_slot=0, speculative=False),
            lambda: server.complete(PROMPTS[1], n_predict=160, ignore_eos=True, id_slot=1),
        )
    lines = [json.loads(line) for line in (tmp_path / "record").read_text("utf-8").splitlines()]
    shared = [line["context"] for line in lines if "context" in line and line["context"]["n_active"] == 2]
    seen = {line["observation"]["seq"] for line in lines if "observation" in line}
    assert len(shared) > 6
    assert {context["seq"] for context in shared} == {1}
    # with even drafts none are made, otherwise as many as there are tokens left
    assert max(context["max_width"] for context in shared[1:]) == (1 if even else 8)
    assert seen == {0, 1}
