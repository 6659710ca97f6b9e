"""The drafter in the server: texts of slots that are saved, restored, copied, cut and cancelled; and what it costs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from _server import StartWorker, Worker, together

from pylucebox import Engine

CONTEXT = ("--ctx-size", 2048, "--parallel", 4)
PROMPTS = ["def add(a, b):", "The sum is", "a b a b a b", '{"name": "alpha", ']
LONG = "one two three four five six seven eight nine ten. " * 6
N_TOKENS = 40


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def drafting(work: StartWorker, demo_model: Path, slots: Path) -> Worker:
    return work(demo_model, *CONTEXT, "--slot-save-path", f"{slots}/")


@pytest.fixture(scope="module")
def plain(work: StartWorker, demo_model: Path) -> Worker:
    return work(demo_model, *CONTEXT, "--mtp", "off")


def metric(server: Worker, name: str) -> float:
    with server._open("/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


# ---- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [*PROMPTS, LONG], ids=range(5))
def test_text_is_that_without_drafts(plain: Worker, drafting: Worker, prompt: str) -> None:
    wanted = plain.complete(prompt, n_predict=N_TOKENS)["tokens"]
    assert drafting.complete(prompt, n_predict=N_TOKENS, verify_width=4)["tokens"] == wanted


def test_drafts_are_those_of_the_engines_drafter(drafting: Worker) -> None:
    drafter = drafting.get("/props")["speculative"]["drafter"]
    assert drafter["kind"] == "lucebox"
    assert drafter["draft_chain"] is True
    assert drafter["why_stepwise"] == ""
    assert drafter["draft_vocab"] == 4096
    assert drafter["mtp_kv_in_trunk"] is True
    assert drafter["why_no_kv_in_trunk"] == ""


def test_block_that_reads_prompts_itself(plain: Worker, work: StartWorker, demo_model: Path) -> None:
    """Where the slots share their cells, the model's graph does not write for the block."""
    shared = work(demo_model, *CONTEXT, "--kv-unified")
    drafter = shared.get("/props")["speculative"]["drafter"]
    assert (drafter["kind"], drafter["mtp_kv_in_trunk"]) == ("lucebox", False)
    assert "not split by sequence" in drafter["why_no_kv_in_trunk"]
    for prompt in (*PROMPTS, LONG):
        reply = shared.complete(prompt, n_predict=N_TOKENS, verify_width=4)
        assert reply["tokens"] == plain.complete(prompt, n_predict=N_TOKENS)["tokens"]
        assert reply["timings"]["draft_n_accepted"] > 0


@pytest.mark.parametrize("n_before", [3, 20, 60])
def test_drafts_hold_as_often_behind_a_cached_beginning(drafting: Worker, n_before: int) -> None:
    """The block goes on where it was, in pieces of any length: what it does not know it could not repeat."""
    prompt: list[int] = drafting.post("/tokenize", content=LONG * 2)["tokens"]
    rates = []
    for pieces in ((), (n_before, n_before + 5, n_before + 30)):
        # another text in between, of which nothing is kept
        drafting.complete(PROMPTS[0], n_predict=1, id_slot=0, cache_prompt=True)
        for n in pieces:
            drafting.complete(prompt[:n], n_predict=2, id_slot=0, cache_prompt=True, verify_width=(4, 1)[n % 2])
        reply = drafting.complete(prompt, n_predict=96, id_slot=0, cache_prompt=True, verify_width=8)
        rates.append(reply["timings"]["draft_n_accepted"] / reply["timings"]["draft_n"])
    assert rates[1] == pytest.approx(rates[0], abs=0.1)
    assert rates[0] > 0.5


def test_drafts_hold_as_often_as_in_the_engine(drafting: Worker) -> None:
    prompt = "one two three four five six seven eight nine ten. " * 4
    with Engine.demo(n_ctx=512) as engine:
        stats = engine.generate(prompt, max_tokens=96, verify_width=8).stats
    timings = drafting.complete(prompt, n_predict=96, verify_width=8)["timings"]
    served = timings["draft_n_accepted"] / timings["draft_n"]
    assert stats.acceptance_rate is not None
    assert served == pytest.approx(stats.acceptance_rate, abs=0.1)
    assert served > 0.2


def test_next_turn_goes_on_from_the_cache(plain: Worker, drafting: Worker) -> None:
    """Each turn repeats the text so far, so that the slot keeps what it has and goes on in the middle of it."""
    texts: dict[Worker, list[Any]] = {plain: [], drafting: []}
    for server, turns in texts.items():
        prompt: list[int] = server.post("/tokenize", content=LONG)["tokens"]
        for turn in range(4):
            # a turn that does not draft leaves pairs behind that wait
            width = {} if server is plain else {"verify_width": (4, 1, 8, 2)[turn]}
            reply = server.complete(prompt, n_predict=24, cache_prompt=True, id_slot=0, **width)
            turns.append(reply["tokens"])
            prompt = [*prompt, *reply["tokens"], 17 + turn]
        assert reply["timings"]["cache_n"] > 0
    assert texts[drafting] == texts[plain]


def test_turn_that_goes_back_in_the_text(plain: Worker, drafting: Worker) -> None:
    """The second and third prompt part from the first before its end, at a checkpoint or nowhere near one."""
    found = {}
    for server in (plain, drafting):
        start: list[int] = server.post("/tokenize", content=LONG)["tokens"]
        prompts = [[*start, 5, 6, 7], [*start, 9], [*start[:20], 11, 12]]
        width = {} if server is plain else {"verify_width": 5}
        options = {"n_predict": 24, "cache_prompt": True, "id_slot": 1}
        found[server] = [server.complete(prompt, **options, **width)["tokens"] for prompt in prompts]
    assert found[drafting] == found[plain]


def test_prompts_come_back_from_the_servers_cache(plain: Worker, drafting: Worker) -> None:
    """One slot alternates between texts, whose states the server keeps in memory meanwhile."""
    found = {}
    for server in (plain, drafting):
        width = {} if server is plain else {"verify_width": 6}
        replies = []
        for i in (0, 1, 0, 1):
            prompt = f"{LONG}{PROMPTS[i]}" if i else f"{PROMPTS[i]}{LONG}"
            replies.append(server.complete(prompt, n_predict=24, cache_prompt=True, id_slot=2, **width)["tokens"])
        found[server] = replies
    assert found[drafting] == found[plain]


def test_pairs_that_wait_come_back_from_the_servers_cache(demo_model: Path, tmp_path: Path) -> None:
    """A reply that drafts nothing leaves them; they go with the text, and drafts hold as if it had stayed."""
    text = "the cat sat on the mat and the dog sat on the cat. " * 10
    rates = []
    with Worker(demo_model, tmp_path / "log", *map(str, CONTEXT), policy="Still") as drafting:
        prompt: list[int] = drafting.post("/tokenize", content=text)["tokens"]
        for apart in (False, True):
            drafting.complete(PROMPTS[0], n_predict=1, id_slot=2, cache_prompt=True)  # nothing of the text is left
            first = drafting.complete(prompt, n_predict=60, id_slot=2, cache_prompt=True)["tokens"]
            if apart:
                drafting.complete(PROMPTS[3] * 8, n_predict=4, id_slot=2, cache_prompt=True, verify_width=4)
            reply = drafting.complete([*prompt, *first], n_predict=96, id_slot=2, cache_prompt=True, verify_width=8)
            assert reply["timings"]["cache_n"] >= len(prompt) + 58
            rates.append((reply["tokens"], reply["timings"]["draft_n_accepted"], reply["timings"]["draft_n"]))
    assert rates[1] == rates[0]
    assert rates[0][1] > 0


def test_choices_of_a_prompt_without_drafts(plain: Worker, drafting: Worker) -> None:
    """The block knows nothing of the prompt, and the slots may draft again afterwards."""
    options = {"n": 3, "seed": 5, "temperature": 0.8, "max_tokens": 24, "prompt": LONG}
    wanted = [choice["text"] for choice in plain.post("/v1/completions", **options)["choices"]]
    for width in ({"speculative": False}, {"verify_width": 4}, {"speculative": False}, {"verify_width": 4}):
        reply = drafting.post("/v1/completions", **options, **width)
        assert [choice["text"] for choice in reply["choices"]] == wanted


def test_replies_with_and_without_drafts_beside_each_other(plain: Worker, drafting: Worker) -> None:
    """The model's graph writes for the block of some slots of a pass and not of others."""
    wanted = [plain.complete(prompt, n_predict=64, ignore_eos=True)["tokens"] for prompt in PROMPTS]
    for turn in range(2):
        got = together(
            *(
                lambda prompt=prompt, off=(i + turn) % 2: drafting.complete(  # type: ignore[misc]
                    prompt, n_predict=64, ignore_eos=True, **({"speculative": False} if off else {"verify_width": 2})
                )["tokens"]
                for i, prompt in enumerate(PROMPTS)
            )
        )
        assert got == wanted


def test_slot_that_is_saved_and_restored(plain: Worker, drafting: Worker, slots: Path) -> None:
    prompt: list[int] = drafting.post("/tokenize", content=LONG)["tokens"]
    drafting.complete(prompt, n_predict=8, cache_prompt=True, id_slot=0, verify_width=4)
    saved = drafting.post("/slots/0?action=save", filename="text")
    assert (slots / "text").exists()
    # another text in between, and another slot to come back to
    drafting.complete("def add(a, b):", id_slot=0, cache_prompt=True, verify_width=4)
    assert drafting.post("/slots/3?action=restore", filename="text")["n_restored"] == saved["n_saved"]
    longer = [*prompt, *drafting.complete(prompt, n_predict=8, verify_width=1, id_slot=1)["tokens"], 21]
    options = {"n_predict": N_TOKENS, "cache_prompt": True, "id_slot": 3}
    reply = drafting.complete(longer, **options, verify_width=4)
    assert reply["tokens"] == plain.complete(longer, n_predict=N_TOKENS)["tokens"]
    assert reply["timings"]["cache_n"] > 0
    assert reply["timings"]["draft_n"] > 0


def test_several_choices_of_one_prompt(plain: Worker, drafting: Worker) -> None:
    options = {"n": 3, "seed": 5, "temperature": 0.8, "max_tokens": 24, "prompt": LONG}
    texts = [
        [choice["text"] for choice in server.post("/v1/completions", **options, **width)["choices"]]
        for server, width in ((plain, {}), (drafting, {"verify_width": 4}))
    ]
    assert texts[1] == texts[0]


def test_choices_that_fill_all_slots(plain: Worker, drafting: Worker) -> None:
    """No cell is left that a choice could move to from the one that it shares with the others."""
    for seed in range(12):
        options = {"n": 4, "seed": seed, "temperature": 0.8, "n_predict": 12, "ignore_eos": True}
        wanted, got = (
            [choice["tokens"] for choice in server.complete(PROMPTS[seed % 4], **options, **width)]  # type: ignore[index]
            for server, width in ((plain, {}), (drafting, {"verify_width": 2}))
        )
        assert got == wanted


def test_slots_come_and_go(plain: Worker, drafting: Worker) -> None:
    """Replies of different lengths and widths, so that at each time others run together, prompts of all lengths too."""
    asks = [
        (f"{LONG[: 40 * i]}{PROMPTS[i % 4]}", {"n_predict": 8 + 9 * (i % 5), "temperature": 0.7, "seed": i})
        for i in range(12)
    ]
    wanted = [plain.complete(prompt, **options)["tokens"] for prompt, options in asks]
    got = together(
        *(
            lambda prompt=prompt, options=options, i=i: drafting.complete(  # type: ignore[misc]
                prompt, **options, verify_width=(0, 3, 8, 1, 5)[i % 5]
            )["tokens"]
            for i, (prompt, options) in enumerate(asks)
        )
    )
    assert got == wanted


def test_client_that_leaves(plain: Worker, drafting: Worker) -> None:
    wanted = plain.complete(PROMPTS[0], n_predict=N_TOKENS)["tokens"]
    for n_events in (1, 3, 6):
        link = drafting.connect()
        body = {"prompt": LONG, "n_predict": 500, "stream": True, "verify_width": 8, "ignore_eos": True}
        link.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        reply = link.getresponse()
        for _ in range(n_events):
            reply.readline()
        reply.close()
        link.close()
        assert drafting.complete(PROMPTS[0], n_predict=N_TOKENS, verify_width=8)["tokens"] == wanted


def test_context_that_fills_up(work: StartWorker, demo_model: Path) -> None:
    """With and without drafts a reply ends at the same place, whether or not the text may be shifted."""
    for more in ((), ("--context-shift",)):
        small = ("--ctx-size", 256, "--parallel", 1, *more)
        replies = [
            work(demo_model, *small, *mtp).complete(LONG, n_predict=300, ignore_eos=True, **width)
            for mtp, width in ((("--mtp", "off"), {}), ((), {"verify_width": 8}))
        ]
        assert replies[1]["tokens"] == replies[0]["tokens"]
        assert replies[1]["truncated"] == replies[0]["truncated"]


# ---- what is drafted from --------------------------------------------------------------------------------------------


def test_draft_vocabulary_changes_drafts_and_no_text(
    plain: Worker, drafting: Worker, work: StartWorker, demo_model: Path
) -> None:
    few = work(demo_model, *CONTEXT, "--draft-vocab", 1056)
    assert few.get("/props")["speculative"]["drafter"]["draft_vocab"] == 1056
    rates = {}
    for server in (few, drafting):
        rates[server] = 0
        for prompt in PROMPTS:
            reply = server.complete(prompt, n_predict=N_TOKENS, verify_width=4)
            assert reply["tokens"] == plain.complete(prompt, n_predict=N_TOKENS)["tokens"]
            rates[server] += reply["timings"]["draft_n_accepted"]
    assert 0 < rates[few] < rates[drafting]


# ---- counts ----------------------------------------------------------------------------------------------------------


def test_each_pass_of_even_drafts_is_one_run_of_the_model(work: StartWorker, demo_model: Path) -> None:
    """Three slots that want 2, 2 and 1 drafts: one run, where without even drafts there are two."""
    n_runs = {}
    for flag in ("--even-drafts", "--no-even-drafts"):
        server = work(demo_model, *CONTEXT, flag)
        before = metric(server, "lucebox_passes_total"), metric(server, "lucebox_model_runs_total")
        together(
            *(
                lambda i=i, server=server: server.complete(  # type: ignore[misc]
                    PROMPTS[i], n_predict=120, ignore_eos=True, verify_width=(3, 3, 2)[i]
                )
                for i in range(3)
            )
        )
        n_passes = metric(server, "lucebox_passes_total") - before[0]
        n_runs[flag] = (metric(server, "lucebox_model_runs_total") - before[1]) / n_passes
    # prompts that begin beside others are runs of their own, as in plain decoding
    assert n_runs["--even-drafts"] < 1.2
    assert n_runs["--no-even-drafts"] > 1.4


@pytest.mark.parametrize("body", [{"verify_width": 5}, {}, {"verify_width": 3, "stop": ["\n"]}], ids=str)
def test_timings_add_up_to_the_tokens(drafting: Worker, body: dict[str, Any]) -> None:
    replies = together(*(lambda prompt=prompt: drafting.complete(prompt, n_predict=64, **body) for prompt in PROMPTS))  # type: ignore[misc]
    for reply in replies:
        timings = reply["timings"]
        passes, accepted = timings["verify_width_n"], timings["draft_n_accepted_per_pos"]
        assert sum(accepted) == timings["draft_n_accepted"] <= timings["draft_n"]
        assert all(earlier >= later for earlier, later in pairwise(accepted))
        # each pass gives the drafts that held and one token; the first token comes from the prompt
        n_given = 1 + sum(passes) + timings["draft_n_accepted"]
        assert timings["predicted_n"] <= n_given
        if reply["stop_type"] == "limit":
            assert timings["predicted_n"] == n_given == 64
        assert timings["draft_n"] >= sum(i * n for i, n in enumerate(passes))


def n_waits(server: Worker) -> int:
    """Return how often threads of a server have waited for something."""
    states = [(thread / "status").read_text("ascii") for thread in Path(f"/proc/{server.process.pid}/task").iterdir()]
    return sum(int(state.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for state in states)


def test_pass_without_drafts_wakes_no_thread_more(plain: Worker, drafting: Worker) -> None:
    """The slots' thread yields to the queue for the decode alone, which makes that wait two times, or three."""
    for server in (plain, drafting):
        server.complete(PROMPTS[1], n_predict=N_TOKENS)
        before = n_waits(server)
        server.complete(PROMPTS[1], n_predict=400, ignore_eos=True, speculative=False)
        assert 400 < n_waits(server) - before < 5 * 400


# ---- costs -----------------------------------------------------------------------------------------------------------


def test_costs_are_measured_once(demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    texts = []
    stamps = []
    for start in range(3):
        # the port and the key of a server change nothing of its passes, a smaller batch does
        more = (("--api-key", f"k{start}"), ("--alias", "other"), ("--ubatch-size", "64"))[start]
        with Worker(demo_model, tmp_path / f"log{start}", "--ctx-size", "512", "--parallel", "1", *more) as server:
            if start:
                texts.append(server.complete(LONG, n_predict=N_TOKENS)["tokens"])
            stamps.append({path: path.stat().st_mtime_ns for path in cache.rglob("*.json")})
    assert [len(files) for files in stamps] == [1, 1, 2]
    assert stamps[0] == stamps[1]
    assert texts[0] == texts[1]
    costs = json.loads(next(iter(stamps[0])).read_text("utf-8"))["costs"]
    assert len(costs["verify_us"]) == 8
    assert all(us > 0 for us in [*costs["verify_us"], *costs["draft_us"]])


def test_policy_has_its_name(drafting: Worker) -> None:
    assert drafting.get("/props")["speculative"]["policy"]["name"] == "AdaptiveWidth"
