"""Errors and exit codes: 0 passed, 1 something was found, 2 wrong call, 7 a program or package is missing."""

from __future__ import annotations

from typing import ClassVar

EXIT_OK, EXIT_FOUND, EXIT_USAGE, EXIT_ENVIRONMENT = 0, 1, 2, 7


class GateError(Exception):
    """What failed, what was seen and what to do."""

    exit_code: ClassVar[int] = EXIT_ENVIRONMENT

    def __init__(self, failed: str, seen: str, remedy: str) -> None:
        super().__init__(f"{failed}: {seen}\nWhat to do: {remedy}")
        self.failed, self.seen, self.remedy = failed, seen, remedy


class ToolMissingError(GateError):
    """A program or a package is not there."""


class UsageError(GateError):
    """The call names what does not exist."""

    exit_code = EXIT_USAGE
