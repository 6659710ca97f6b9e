"""What the server shows at its root when llama-server's own page is not built in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["page_flags"]

_FOLDER: Final = Path(__file__).with_name("page")
_FLAGS: Final = {"--path", "--no-ui", "--no-webui", "--ui", "--webui"}
_VARIABLES: Final = ("LLAMA_ARG_STATIC_PATH", "LLAMA_ARG_UI")


def page_flags(arguments: Sequence[str], environment: Mapping[str, str], *, built_in: bool) -> tuple[str, ...]:
    """Return further arguments of llama-server, so that its root says how to get the page.

    Parameters
    ----------
    arguments
        Its command line. What says there, or in `environment`, what to show is left alone.
    environment
        Its environment.
    built_in
        Whether the page is there.
    """
    if built_in or any(name in environment for name in _VARIABLES):
        return ()
    if any(word.replace("_", "-") in _FLAGS for word in arguments):
        return ()
    return ("--path", str(_FOLDER))
