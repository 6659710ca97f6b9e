"""`lucebox chat` on a made-up engine."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from pylucebox._errors import ContextFullError

Lucebox = Callable[..., int]
FEW = ("--max-tokens", "3", "--mtp", "off")


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lay lines into standard input."""

    def lay(*lines: str) -> None:
        data = "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))

    return lay


def asked(factory: Any) -> list[str]:
    """Prompts that reached the engine; the made-up template joins the contents of the messages with bars."""
    return [call["prompt"] for call in factory.opened[0].calls]


def test_each_turn_carries_the_conversation_so_far(lucebox: Lucebox, factory: Any, say: Callable[..., None]) -> None:
    say("one", "two")
    assert lucebox("chat", *FEW) == 0
    first, second = asked(factory)
    assert first == "one"
    assert second.startswith("one|<")
    assert second.endswith("|two")


def test_replies_go_to_standard_output_with_figures_and_state_on_standard_error(
    lucebox: Lucebox, say: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    say("one")
    lucebox("chat", *FEW)
    captured = capsys.readouterr()
    assert captured.out.count("<") == 3
    assert "MTP off: mtp is off" in captured.err.splitlines()[0]
    assert "3 tokens" in captured.err.splitlines()[-1]


def test_reset_forgets_all_but_the_system_message(lucebox: Lucebox, factory: Any, say: Callable[..., None]) -> None:
    say("one", "/reset", "two")
    lucebox("chat", *FEW, "--system", "be brief")
    assert asked(factory) == ["be brief|one", "be brief|two"]


def test_quit_ends_and_leaves_the_rest_unread(lucebox: Lucebox, factory: Any, say: Callable[..., None]) -> None:
    say("/quit", "one")
    assert lucebox("chat", *FEW) == 0
    assert asked(factory) == []
    assert factory.opened[0].closed


def test_unknown_commands_are_not_sent_to_the_model(
    lucebox: Lucebox, factory: Any, say: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    say("/rest", "")
    lucebox("chat", *FEW)
    assert asked(factory) == []
    assert "unknown command /rest" in capsys.readouterr().err


def test_an_interrupt_stops_the_reply_and_keeps_it_and_the_program_goes_on(
    lucebox: Lucebox, factory: Any, say: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(engine: Any) -> None:
        engine.on_step = lambda done: os.kill(os.getpid(), signal.SIGINT) if done == 2 else None

    factory.adjust = interrupt
    before = signal.getsignal(signal.SIGINT)
    say("one", "two")
    assert lucebox("chat", "--max-tokens", "9", "--mtp", "off") == 0
    captured = capsys.readouterr()
    assert captured.err.count("(cancelled)") == 2
    first_reply = captured.out.splitlines()[0]
    assert first_reply.count("<") == 2
    assert asked(factory)[1] == f"one|{first_reply}|two"
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_at_the_prompt_says_how_to_leave_and_goes_on(
    lucebox: Lucebox,
    factory: Any,
    say: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    say()
    answers = iter([KeyboardInterrupt(), "one", EOFError()])

    def ask(_prompt: str) -> str:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr("builtins.input", ask)
    assert lucebox("chat", *FEW) == 0
    assert asked(factory) == ["one"]
    assert capsys.readouterr().err.count("/quit ends") == 2


def test_a_failed_turn_is_reported_and_left_out_and_the_program_goes_on(
    lucebox: Lucebox, factory: Any, say: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse_long(engine: Any) -> None:
        honest = engine.chat

        def chat(messages: Any, **settings: Any) -> Any:
            if messages[-1]["content"] == "long":
                raise ContextFullError(n_ctx=16, n_needed=99)
            return honest(messages, **settings)

        engine.chat = chat

    factory.adjust = refuse_long
    say("long", "short")
    assert lucebox("chat", *FEW) == 0
    assert asked(factory) == ["short"]
    assert "the context is full" in capsys.readouterr().err


def test_reasoning_answer_and_tool_calls_are_set_apart(
    lucebox: Lucebox, factory: Any, say: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    deltas = iter(
        [
            {"reasoning_content": "let me "},
            {"reasoning_content": "see"},
            {"content": "here"},
            {"tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]},
        ]
    )

    def think(engine: Any) -> None:
        engine.delta_of = lambda _step: next(deltas)

    factory.adjust = think
    say("one")
    lucebox("chat", "--max-tokens", "4", "--mtp", "off")
    assert capsys.readouterr().out.splitlines() == [
        "(thinking) let me see",
        "(answer) here",
        '(tool call) {"name": "look", "arguments": "{}"}',
    ]


def test_json_answers_one_list_of_messages(
    lucebox: Lucebox, factory: Any, say: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    say('[{"role": "system", "content": "be brief"},', ' {"role": "user", "content": "Hello"}]')
    assert lucebox("chat", "--json", *FEW) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["message"]["role"] == "assistant"
    assert document["completion"]["token_ids"]
    assert document["spec"]["reason_code"] == "off-requested"
    assert asked(factory) == ["be brief|Hello"]


@pytest.mark.parametrize(("flags", "wish"), [((), None), (("--thinking", "on"), True), (("--thinking", "off"), False)])
def test_the_wish_for_reasoning_reaches_the_engine(
    lucebox: Lucebox, factory: Any, say: Callable[..., None], flags: tuple[str, ...], *, wish: bool | None
) -> None:
    say('[{"role": "user", "content": "Hello"}]')
    lucebox("chat", "--json", *FEW, *flags)
    assert factory.opened[0].calls[0]["enable_thinking"] is wish


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '["hi"]', '[{"content": "x"}]'])
def test_json_refuses_what_is_no_list_of_messages(
    lucebox: Lucebox, factory: Any, say: Callable[..., None], capsys: pytest.CaptureFixture[str], text: str
) -> None:
    say(text)
    assert lucebox("chat", "--json") == 2
    captured = capsys.readouterr()
    assert "role" in json.loads(captured.out)["error"]["message"]
    assert factory.opened == []


def test_bytes_that_are_no_text_do_not_end_the_program(
    lucebox: Lucebox, factory: Any, say: Callable[..., None]
) -> None:
    say("caf\udce9", "two")
    assert lucebox("chat", *FEW) == 0
    assert len(asked(factory)) == 2
