"""`lucebox chat`: talk to a model in the terminal, or answer one list of messages with `--json`."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from pylucebox._chat import ChatStep
from pylucebox._errors import LuceboxError
from pylucebox.cli._args import Parser, UsageError, add_engine, add_json, add_model, add_sampling
from pylucebox.cli._io import note, print_json
from pylucebox.cli._ports import EngineFactory, EngineLike
from pylucebox.cli._request import LiveText, document, engine_options, follow, sampling_of, stats_line
from pylucebox.cli._stdin import read_stdin, stdin

SUMMARY = "talk to a model"
DESCRIPTION = (
    "Talk to a model with its own chat template. Ctrl-C stops a reply; /reset forgets the conversation; /quit or"
    " Ctrl-D ends. With --json, reads one JSON array of messages ({'role', 'content'}) from standard input, answers"
    " once and prints one JSON document."
)
DEFAULT_MAX_TOKENS = 1024
PROMPT = "> "
HELP = "/reset forgets the conversation, /quit ends, Ctrl-C stops a reply"

Message = dict[str, Any]


def add_arguments(parser: Parser) -> None:
    """Add the command's flags."""
    add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="first message, with the role 'system' (default: none)")
    parser.add_argument(
        "--thinking",
        choices=("on", "off"),
        help="ask the template for or against reasoning before the answer (default: as the template has it)",
    )
    add_sampling(parser, DEFAULT_MAX_TOKENS)
    add_engine(parser)
    add_json(parser)


def run(args: argparse.Namespace, factory: EngineFactory) -> int:
    """Chat until the input ends, or answer once with `--json`.

    Returns
    -------
    int
        0.
    """
    first: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
    messages = first + read_messages() if args.json else first
    options: dict[str, Any] = {
        "max_tokens": args.max_tokens,
        "stop": args.stop,
        "sampling": sampling_of(args),
        "enable_thinking": None if args.thinking is None else args.thinking == "on",
    }
    with factory(engine_options(args)) as engine:
        if args.json:
            completion = engine.chat(messages, **options)
            print_json(document(args, engine, completion))
            note(stats_line(completion))
        else:
            note(
                f"{args.model or Path(engine.info.path).name}; MTP {'on' if engine.spec.effective else 'off'}: "
                f"{engine.spec.reason}\n{HELP}"
            )
            Conversation(engine, messages, options).hold()
    return 0


def read_messages() -> list[Message]:
    """Read the messages of a one-shot chat from standard input.

    Raises
    ------
    UsageError
        The input is not a JSON array of objects with a role.
    """
    wanted = 'a JSON array of messages such as [{"role": "user", "content": "Hello"}]'
    try:
        messages = json.loads(read_stdin())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"standard input is not JSON ({error}); it must be {wanted}") from error
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise UsageError(f"standard input must be {wanted}")
    return messages


class Conversation:
    """A chat in the terminal.

    Parameters
    ----------
    engine
        Answers.
    first
        Messages that every conversation begins with.
    options
        Settings of each request, as `Engine.chat` takes them.
    """

    def __init__(self, engine: EngineLike, first: list[Message], options: dict[str, Any]) -> None:
        self._engine = engine
        self._first = first
        self._options = options
        self._messages = list(first)

    def hold(self) -> None:
        """Read lines and answer them until the input ends or says so."""
        source = stdin()
        if source.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401, PLC0415 - gives `input` line editing and history
        if isinstance(source, io.TextIOWrapper):
            # Bytes that are not UTF-8 then reach the engine's check, which refuses the one message they are in.
            source.reconfigure(errors="surrogateescape")
        while (line := self._read()) is not None and line != "/quit":
            if line == "/reset":
                self._messages = list(self._first)
                note("the conversation is forgotten")
            elif line.startswith("/"):
                note(f"unknown command {line.split()[0]}: {HELP}")
            elif line:
                self._answer(line)

    def _read(self) -> str | None:
        """Return the next line; None at the end of the input. Ctrl-C at the prompt drops the line typed so far."""
        while True:
            try:
                return input(PROMPT if sys.stdin.isatty() else "").strip()
            except EOFError:
                return None
            except KeyboardInterrupt:
                note(f"\n{HELP}")

    def _answer(self, line: str) -> None:
        asked = [*self._messages, {"role": "user", "content": line}]
        try:
            with _interrupt_cancels(self._engine), Reply(sys.stdout) as reply:
                completion = follow(self._engine.chat(asked, stream=True, **self._options), reply.show)
        except LuceboxError as error:
            # The question is dropped: kept, it would fail again with every later one.
            note(f"lucebox: {error}\nThe last message was left out of the conversation.")
            return
        self._messages = [*asked, completion.message]
        note(stats_line(completion))


class Reply(LiveText):
    """Writes a reply as it comes: reasoning set off by marks of its own, tool calls as JSON."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self._reasons = False

    def show(self, step: ChatStep) -> None:
        """Write what a step added."""
        reasoning, content = step.delta.get("reasoning_content", ""), step.delta.get("content", "")
        if reasoning and not self._reasons:
            self._reasons = True
            self.write("(thinking) ")
        self.write(reasoning)
        if content and self._reasons:
            self._reasons = False
            self.end_line()
            self.write("(answer) ")
        self.write(content)
        for call in step.delta.get("tool_calls", ()):
            self.end_line()
            self.write(f"(tool call) {json.dumps(call.get('function', call), ensure_ascii=False)}")


@contextlib.contextmanager
def _interrupt_cancels(engine: EngineLike) -> Iterator[None]:
    """While a reply runs, let Ctrl-C end the reply and keep what came so far, instead of ending the program."""

    def cancel(_number: int, _frame: FrameType | None) -> None:
        engine.cancel()

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
