"""Arguments, errors and exit statuses of `lucebox`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pylucebox._errors import InvalidArgumentError, ModelNotFoundError, SidecarMismatchError
from pylucebox.cli import _io, main

Lucebox = Callable[..., int]


def test_help_names_the_commands_and_every_flag_has_a_default_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("demo", "generate", "chat", "doctor", "ab"))
    commands = main.build_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    for name, parser in commands.items():
        for action in parser._actions:
            if action.option_strings and action.dest != "help":
                assert "default" in action.help, f"{name} {action.option_strings}"


def test_help_imports_neither_native_code_nor_rich_nor_numpy() -> None:
    code = (
        "import sys\n"
        "from pylucebox.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'rich', 'numpy', 'cffi', '_cffi_backend', 'pylucebox._native'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("arguments", [(), ("dream",), ("generate",), ("generate", "x", "--no-such-flag")])
def test_wrong_usage_is_status_2_with_the_usage_line(
    lucebox: Lucebox, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert lucebox(*arguments) == 2
    assert "usage: lucebox" in capsys.readouterr().err


def test_flags_cannot_be_abbreviated(lucebox: Lucebox) -> None:
    assert lucebox("generate", "x", "--max", "3") == 2


def test_wrong_usage_with_json_gives_an_error_document(lucebox: Lucebox, capsys: pytest.CaptureFixture[str]) -> None:
    assert lucebox("generate", "x", "--json", "--max-tokens", "0") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "UsageError"
    assert "--max-tokens" in error["message"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelNotFoundError("cannot open the model", path="x.gguf", seen="no such file"), 1),
        (SidecarMismatchError(field="vocabulary size", model_value=1, sidecar_value=2, path="m.gguf"), 1),
        (InvalidArgumentError(argument="n_ctx", value=5, allowed="16 or more"), 2),
    ],
)
def test_errors_become_one_message_and_with_json_also_data(
    lucebox: Lucebox, factory: Any, capsys: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    factory.refuses_with = error
    assert lucebox("generate", "x", "--json") == status
    captured = capsys.readouterr()
    assert captured.err.strip() == f"lucebox: {error}"
    document = json.loads(captured.out)
    assert document["error"]["type"] == type(error).__name__
    assert document["error"]["message"] == str(error)


def test_attributes_of_an_error_are_in_its_document() -> None:
    error = SidecarMismatchError(field="vocabulary size", model_value=1, sidecar_value=2, path="m.gguf")
    fields = _io.error_document(error)["error"]
    assert fields["field"] == "vocabulary size"
    assert (fields["model_value"], fields["sidecar_value"]) == (1, 2)


def test_an_interrupt_is_status_130(lucebox: Lucebox, factory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    factory.settings["fails_with"] = KeyboardInterrupt()
    assert lucebox("generate", "x", "--json") == 130
    captured = capsys.readouterr()
    assert "interrupted" in captured.err
    assert json.loads(captured.out)["error"]["type"] == "KeyboardInterrupt"
    assert factory.opened[0].closed


def test_a_reader_that_goes_away_is_no_error_message() -> None:
    """The command writes into a pipe whose other end is closed."""
    code = (
        "import sys\n"
        "from pylucebox.cli.main import main\n"
        "from pylucebox.cli import doctor\n"
        "doctor.collect = lambda model, load: {'ok': True, 'filler': 'x' * 200_000}\n"
        "sys.exit(main(['doctor', '--json']))\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=pipe, stderr=subprocess.PIPE, text=True, check=False, env=environment
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_characters_that_the_terminal_lacks_do_not_end_the_program() -> None:
    code = (
        "from pylucebox.cli import _io\n"
        "_io.use_tolerant_streams()\n"
        "_io.print_json({'text': 'caf\\u00e9 \\U0001f600'})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "caf\\xe9" in done.stdout


def test_numbers_that_json_lacks_become_null() -> None:
    assert _io.plain({"a": float("nan"), "b": [float("inf")], "c": (1, 2.5)}) == {"a": None, "b": [None], "c": [1, 2.5]}
