"""What the server shows at its root."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylucebox.serve.page import page_flags


def test_without_the_page_there_is_one_that_says_how_to_get_it() -> None:
    flag, folder = page_flags(["--model", "a"], {}, built_in=False)
    assert flag == "--path"
    text = (Path(folder) / "index.html").read_text("utf-8")
    assert "LUCEBOX_WEB_PAGE" in text
    assert "npm" in text


@pytest.mark.parametrize(
    ("arguments", "environment", "built_in"),
    [
        ((), {}, True),
        (("--path", "mine"), {}, False),
        (("--no-ui",), {}, False),
        (("--no_webui",), {}, False),
        ((), {"LLAMA_ARG_STATIC_PATH": "mine"}, False),
        ((), {"LLAMA_ARG_UI": "0"}, False),
    ],
)
def test_what_was_chosen_is_left_alone(arguments: tuple[str, ...], environment: dict[str, str], built_in: bool) -> None:
    assert page_flags(arguments, environment, built_in=built_in) == ()
