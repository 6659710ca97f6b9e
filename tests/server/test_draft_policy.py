"""Drafts in the server: who decides on them, what is said of them, and that they never change a text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _server import StartWorker, Worker

PROMPTS = ["def add(a, b):", "The sum is", "a b a b a b", '{"name": "alpha", ']
CONTEXT = ("--ctx-size", 1024, "--parallel", 4)
N_TOKENS = 48


@pytest.fixture(scope="module")
def adaptive(work: StartWorker, demo_model: Path) -> Worker:
    return work(demo_model, *CONTEXT)


@pytest.fixture(scope="module")
def plain(work: StartWorker, demo_model: Path) -> Worker:
    return work(demo_model, *CONTEXT, "--mtp", "off")


StartPolicy = Callable[[str], Worker]


@pytest.fixture
def with_policy(demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartPolicy]:
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    started: list[Worker] = []

    def start(name: str) -> Worker:
        log = tmp_path / name.replace(" ", "-")
        started.append(Worker(demo_model, log, "--ctx-size", "256", "--parallel", "1", policy=name))
        return started[-1]

    yield start
    for server in started:
        with server:
            pass


def record(tmp_path: Path, what: str) -> list[Any]:
    lines = (json.loads(line) for line in (tmp_path / "record").read_text("utf-8").splitlines())
    return [line[what] for line in lines if what in line]


def observed(tmp_path: Path, n_tokens: int) -> list[Any]:
    """Return the observations of so many tokens; the last may come after the reply."""
    for _ in range(1000):
        seen = record(tmp_path, "observation")
        if sum(len(cycle["tokens"]) for cycle in seen) >= n_tokens:
            break
        time.sleep(0.01)
    return seen


# ---- texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 7}], ids=["greedy", "sampled"])
def test_every_width_gives_the_text_without_drafts(
    plain: Worker, adaptive: Worker, prompt: str, sampling: dict[str, Any]
) -> None:
    wanted = plain.complete(prompt, **sampling, n_predict=N_TOKENS)["tokens"]
    for width in (0, 1, 2, 5, 8):
        assert adaptive.complete(prompt, **sampling, n_predict=N_TOKENS, verify_width=width)["tokens"] == wanted


# ---- what a request may ask --------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [2, 4, 8])
def test_width_of_a_request_is_the_width_of_its_passes(adaptive: Worker, width: int) -> None:
    timings = adaptive.complete("def add(a, b):", n_predict=N_TOKENS, verify_width=width)["timings"]
    passes = timings["verify_width_n"]
    n_full = passes[width - 1]
    assert n_full > 2
    # only the last passes are narrower, since the reply has no room for more
    assert sum(passes[: width - 1]) <= 2
    assert passes[width:] == [0] * (8 - width)
    assert timings["draft_n"] == sum(i * n for i, n in enumerate(passes))
    assert timings["draft_n_accepted"] == sum(timings["draft_n_accepted_per_pos"])
    # the first token comes out of the prompt
    assert timings["predicted_n"] == 1 + sum(passes) + timings["draft_n_accepted"]
    assert timings["speculative"] == "active"


@pytest.mark.parametrize("body", [{"speculative": False}, {"verify_width": 1}], ids=str)
def test_request_without_drafts(adaptive: Worker, body: dict[str, Any]) -> None:
    timings = adaptive.complete("def add(a, b):", **body)["timings"]
    assert timings["speculative"] == "off-requested"
    assert timings["draft_n"] == 0
    assert timings["verify_width_n"] == [timings["predicted_n"] - 1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "body",
    [
        {"verify_width": 9},
        {"verify_width": -1},
        {"verify_width": "wide"},
        {"verify_width": True},
        {"verify_width": 2.5},
        {"verify_width": 2**63},
        {"speculative": "no"},
        {"speculative": False, "verify_width": 4},
        {"speculative": True, "verify_width": 1},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(adaptive: Worker, body: dict[str, Any]) -> None:
    status, reply = adaptive.send("/completion", json.dumps({"prompt": "a", "n_predict": 1, **body}).encode())
    assert status == 400
    assert "verify_width" in reply.decode() or "speculative" in reply.decode()


# ---- what is said ------------------------------------------------------------------------------------------------


def test_health_and_props_say_whether_drafts_are_made(plain: Worker, adaptive: Worker, demo_mtp: Path) -> None:
    for path in ("/health", "/props"):
        state = adaptive.get(path)["speculative"]
        assert (state["requested"], state["effective"], state["reason_code"]) == (True, True, "active")
        assert str(demo_mtp) in state["reason"]
        assert (state["policy"]["state"], state["policy"]["max_width"]) == ("ok", 8)
        off = plain.get(path)["speculative"]
        assert (off["requested"], off["effective"], off["reason_code"]) == (False, False, "off-requested")


def test_metrics_count_what_the_replies_say(adaptive: Worker) -> None:
    def histogram(name: str) -> tuple[float, float]:
        with adaptive._open("/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return tuple(
            sum(float(line.split()[1]) for line in lines if line.startswith(f"lucebox_{name}_{part}{{"))
            for part in ("sum", "count")
        )  # type: ignore[return-value]

    before = histogram("verify_width"), histogram("accepted_length")
    timings = adaptive.complete("def add(a, b):", n_predict=N_TOKENS, verify_width=4)["timings"]
    after = histogram("verify_width"), histogram("accepted_length")
    n_passes = sum(timings["verify_width_n"])
    assert [now[1] - then[1] for now, then in zip(after, before, strict=True)] == [n_passes, n_passes]
    assert after[0][0] - before[0][0] == n_passes + timings["draft_n"]
    assert after[1][0] - before[1][0] == timings["predicted_n"] - 1


# ---- policies ----------------------------------------------------------------------------------------------------


def test_policy_is_told_what_each_pass_was(with_policy: StartPolicy, tmp_path: Path) -> None:
    reply = with_policy("Recording").complete("def add(a, b):", n_predict=N_TOKENS)
    seen = observed(tmp_path, N_TOKENS - 1)
    assert [token for cycle in seen for token in cycle["tokens"]] == reply["tokens"][1:]
    for cycle in seen:
        assert cycle["n_rows"] == cycle["width"] == cycle["n_verified"] + 1
        assert cycle["n_drafted"] == len(cycle["draft_tokens"]) == len(cycle["draft_probs"])
        assert cycle["draft_tokens"][: cycle["n_accepted"]] == cycle["tokens"][:-1]
        assert all(0 < prob <= 1 for prob in cycle["draft_probs"])
        assert cycle["verify_us"] > 0
        assert (cycle["n_active"], cycle["shared_prefill"]) == (1, False)
    contexts = record(tmp_path, "context")
    n_prompt = reply["tokens_evaluated"]
    assert [context["n_past"] for context in contexts][:2] == [n_prompt, n_prompt + len(seen[0]["tokens"])]


def test_policy_that_wants_no_drafts_is_told_of_every_pass(with_policy: StartPolicy, tmp_path: Path) -> None:
    """Of several at once, but of none too late to draft again, and of the last when the reply is over."""
    server = with_policy("Parked")
    reply = server.complete("def add(a, b):", n_predict=200, ignore_eos=True)
    seen = observed(tmp_path, 199)
    assert [token for cycle in seen for token in cycle["tokens"]] == reply["tokens"][1:]
    widths = [cycle["width"] for cycle in seen]
    n_wanted = len(record(tmp_path, "context")) // 50
    assert n_wanted >= 2
    assert widths.count(2) >= 1
    # each pass is asked about once, and the answer for one that was told of late holds for a few
    assert len(record(tmp_path, "context")) in (len(seen), len(seen) + 1)
    assert server.get("/health")["speculative"]["policy"]["late"] == 0


@pytest.mark.parametrize(("policy", "thread"), [("Asking", "width-policy"), ("Asking called", "MainThread")])
def test_policy_that_asks_decides_after_the_probabilities(
    with_policy: StartPolicy, tmp_path: Path, policy: str, thread: str
) -> None:
    server = with_policy(policy)
    server.complete("def add(a, b):", n_predict=N_TOKENS)
    assert record(tmp_path, "asked")
    seen = observed(tmp_path, N_TOKENS - 1)
    for cycle in seen[1:-1]:  # before the first plan is there, and at the end of the reply
        n_sure = next((i for i, prob in enumerate(cycle["draft_probs"]) if prob < 0.9), cycle["n_drafted"])
        # an answer that is not there in time leaves what was planned before, which is to verify all so far
        assert cycle["n_verified"] in (n_sure, cycle["n_drafted"])
    assert any(cycle["n_verified"] < cycle["n_drafted"] for cycle in seen)
    # drafts that were asked for after looking at the first
    assert max(cycle["n_drafted"] for cycle in seen) in (3, 5)
    assert [len(probs) for probs in record(tmp_path, "asked")][:1] == [1]
    # beside a report that its own thread is at, it is asked there
    assert thread in set(record(tmp_path, "thread")) <= {thread, "width-policy"}


def test_reply_is_asked_about_before_its_prompt(with_policy: StartPolicy, tmp_path: Path) -> None:
    """What is not worth it runs without MTP from the start, and is not reported."""
    server = with_policy("Asking")
    prompt: list[int] = server.post("/tokenize", content="one two three four five six. " * 8)["tokens"]
    before = server.complete(prompt, n_predict=6, cache_prompt=True)
    assert before["timings"]["speculative"] == "not-worth-it"
    assert before["timings"]["draft_n"] == 0
    assert before["timings"]["verify_width_n"] == [5, 0, 0, 0, 0, 0, 0, 0]
    assert not record(tmp_path, "observation")
    # the same prompt once more: nearly all of it is there, but the block knows nothing of it
    after = server.complete(prompt, n_predict=N_TOKENS, cache_prompt=True)
    assert after["timings"]["speculative"] == "active"
    assert after["timings"]["draft_n"] > 0
    assert after["tokens"][:6] == before["tokens"]
    assert record(tmp_path, "worth") == [[len(prompt), 6], [after["timings"]["prompt_n"], N_TOKENS]]
    assert after["timings"]["prompt_n"] < len(prompt)


def test_call_that_takes_too_long_is_the_last(with_policy: StartPolicy, tmp_path: Path) -> None:
    server = with_policy("Dawdling called")
    for _ in range(4):
        timings = server.complete("def add(a, b):", n_predict=N_TOKENS)["timings"]
    threads = record(tmp_path, "thread")
    assert threads[0] == "MainThread"
    assert set(threads[8:]) == {"width-policy"}
    assert server.get("/health")["speculative"]["policy"]["state"] == "ok"
    assert timings["draft_n"] > 0


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("Raising", "RuntimeError: no idea"),
        ("TooWide", "InvalidArgumentError"),
        ("Hanging", "has not answered"),
        ("HoldingTheLock", "has not answered"),
        ("LockHeldElsewhere called", "has not answered"),
        ("Raising called", "RuntimeError: no idea"),
        ("Breaking called", "RuntimeError: no idea"),
    ],
)
def test_policy_that_fails_costs_the_drafts_and_nothing_else(
    plain: Worker, with_policy: StartPolicy, policy: str, reason: str
) -> None:
    server = with_policy(policy)
    wanted = plain.complete("def add(a, b):", n_predict=N_TOKENS)["tokens"]
    state: dict[str, Any] = {}
    for _ in range(400):  # a second, the time after which the policy is given up, takes some replies
        assert server.complete("def add(a, b):", n_predict=N_TOKENS)["tokens"] == wanted
        state = server.get("/health")["speculative"]["policy"]
        if state["state"] == "failed":
            break
    assert state["state"] == "failed"
    assert reason in state["reason"]
    after = server.complete("def add(a, b):", n_predict=N_TOKENS)
    assert after["tokens"] == wanted
    assert after["timings"]["draft_n"] == 0
    assert after["timings"]["speculative"] == "policy-failed"
    # a width that a request brings needs no policy
    fixed = server.complete("def add(a, b):", n_predict=N_TOKENS, verify_width=4)
    assert fixed["tokens"] == wanted
    assert fixed["timings"]["draft_n"] > 0


def test_policy_that_is_late_is_asked_again(with_policy: StartPolicy) -> None:
    server = with_policy("Slow")
    states = set()
    for _ in range(400):
        timings = server.complete("def add(a, b):", n_predict=N_TOKENS)["timings"]
        policy = server.get("/health")["speculative"]["policy"]
        states.add(policy["state"])
        if policy["late"] == 1 and policy["state"] == "ok" and timings["draft_n"] > 0:
            break
    assert states == {"ok", "late"}
    assert policy["late"] == 1
    assert timings["draft_n"] > 0
