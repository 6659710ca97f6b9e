"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing, in place of one that is there, and remove it if writing fails.

    Raises
    ------
    OSError
        The file cannot be written, for example because the disk is full; `filename` says which.
    """
    try:
        with path.open("wb") as file:
            yield file
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
