"""Pictures beside drafts: the block begins anew behind each picture, and no text depends on it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from _images import image_part, png, write_mmproj
from _server import Serve, ServerDied, StartServe, together

SMALL = ("--ctx-size", 4096, "--parallel", 4, "--jinja", "--image-max-tokens", 64)
WIDTHS = (0, 5, 8)
SAMPLING = ({"temperature": 0}, {"temperature": 0.8, "seed": 3})
COUNT = {"type": "text", "text": "Count to nine: one two three one two three one two"}


@pytest.fixture(scope="module")
def mmproj(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mmproj(tmp_path_factory.mktemp("vision") / "mmproj.gguf", demo_model)


@pytest.fixture(scope="module")
def plain(serve: StartServe, demo_model: Path, mmproj: Path) -> Serve:
    return serve(demo_model, *SMALL, "--mmproj", mmproj, "--mtp", "off")


@pytest.fixture(scope="module")
def drafting(serve: StartServe, demo_model: Path, mmproj: Path) -> Serve:
    return serve(demo_model, *SMALL, "--mmproj", mmproj)


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def ask(server: Serve, messages: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
    reply: dict[str, Any] = server.post("/v1/chat/completions", messages=messages, max_tokens=48, **body)
    return reply


def said(reply: dict[str, Any]) -> Any:
    return reply["choices"][0]["message"], reply["usage"]["completion_tokens"]


CASES: dict[str, list[dict[str, Any]]] = {
    "picture-first": [user(image_part(png(1)), COUNT)],
    "picture-last": [user(COUNT, image_part(png(2)))],
    "two-pictures": [user(image_part(png(3)), COUNT, image_part(png(4, 64, 96)), COUNT)],
    "picture-in-the-second-turn": [
        user(COUNT),
        {"role": "assistant", "content": "three four five"},
        user(image_part(png(5)), COUNT),
    ],
    "text-after-a-picture": [user(image_part(png(6))), {"role": "assistant", "content": "one two"}, user(COUNT)],
}


@pytest.mark.parametrize("sampling", SAMPLING, ids=["greedy", "sampled"])
@pytest.mark.parametrize("case", CASES)
def test_text_is_that_without_drafts(plain: Serve, drafting: Serve, case: str, sampling: dict[str, Any]) -> None:
    wanted = said(ask(plain, CASES[case], **sampling, cache_prompt=False))
    for width in WIDTHS:
        reply = ask(drafting, CASES[case], **sampling, cache_prompt=False, verify_width=width)
        assert said(reply) == wanted
        if width > 1:
            assert reply["timings"]["speculative"] == "active"
            assert reply["timings"]["draft_n"] > 0


def test_pictures_matter(plain: Serve) -> None:
    seen = {json.dumps(said(ask(plain, [user(image_part(png(seed)), COUNT)], temperature=0))) for seed in range(6)}
    assert len(seen) > 1


def test_drafts_hold_behind_a_picture(drafting: Serve) -> None:
    """As often as behind a text, as far as so few of them tell."""
    replies = [ask(drafting, CASES["picture-first"], temperature=0, verify_width=4, seed=seed) for seed in range(2)]
    assert sum(reply["timings"]["draft_n_accepted"] for reply in replies) > 0


def test_conversation_goes_on_from_the_cache(plain: Serve, drafting: Serve) -> None:
    texts = {}
    for server in (plain, drafting):
        messages: list[dict[str, Any]] = []
        replies = []
        for turn in range(4):
            messages.append(user(image_part(png(turn)), COUNT) if turn % 2 else user(COUNT))
            width = {} if server is plain else {"verify_width": (4, 1, 8, 2)[turn]}
            reply = ask(server, messages, temperature=0, cache_prompt=True, id_slot=0, **width)
            replies.append(said(reply))
            messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        texts[server] = replies
    assert texts[drafting] == texts[plain]


def test_pictures_of_one_change_nothing_for_others(plain: Serve, drafting: Serve) -> None:
    messages = [*CASES.values(), [user(COUNT)], [user({"type": "text", "text": "Add 2 and 3."})]]
    options = {"temperature": 0.8, "seed": 7, "cache_prompt": False}
    wanted = [said(ask(plain, each, **options)) for each in messages]
    got = together(
        *(
            lambda each=each, i=i: said(ask(drafting, each, **options, verify_width=(0, 3, 8, 1)[i % 4]))  # type: ignore[misc]
            for i, each in enumerate(messages)
        )
    )
    assert got == wanted


def test_client_that_leaves_while_its_picture_is_looked_at(plain: Serve, drafting: Serve) -> None:
    wanted = said(ask(plain, CASES["picture-first"], temperature=0, cache_prompt=False))
    for wait_s in (0.0, 0.02, 0.1):
        link = drafting.connect()
        body = {"messages": CASES["two-pictures"], "max_tokens": 400, "stream": True, "verify_width": 8}
        link.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        time.sleep(wait_s)
        link.close()
        reply = ask(drafting, CASES["picture-first"], temperature=0, cache_prompt=False, verify_width=8)
        assert said(reply) == wanted


@pytest.mark.parametrize(
    "data", [b"", b"no picture", png(1)[:100], b"\x89PNG\r\n\x1a\n" + bytes(64)], ids=["empty", "text", "cut", "zeros"]
)
def test_picture_that_is_none(drafting: Serve, data: bytes) -> None:
    body = {"messages": [user(image_part(data), COUNT)], "max_tokens": 4}
    status, reply = drafting.send("/v1/chat/completions", json.dumps(body).encode())
    assert status == 400, reply
    assert ask(drafting, [user(COUNT)], verify_width=4)["timings"]["speculative"] == "active"


def test_tower_of_another_model(demo_model: Path, tmp_path: Path) -> None:
    """It is refused when the server starts, and not at the first picture."""
    wrong = write_mmproj(tmp_path / "wrong.gguf", demo_model, n_embd=96)
    with pytest.raises(ServerDied, match="mismatch between text model"):
        Serve(demo_model, tmp_path / "log", "--ctx-size", "512", "--parallel", "1", "--mmproj", str(wrong))
